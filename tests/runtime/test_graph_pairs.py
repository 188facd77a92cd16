"""Which pair of CUDA graphs a call takes, by what the caller still holds; no GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rudagraph.runtime.cuda_graph import MOST_PAIRS, Graphs, Pair


class Captured:
    """A graph whose returned memory is free or held."""

    def __init__(self, is_free: bool) -> None:
        self.is_free = is_free


@pytest.fixture(autouse=True)
def _pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)


def graphs(*pairs: tuple[bool, bool], apart: bool = False, accumulates: bool = False) -> Graphs:
    """Pairs by whether results and gradients are free."""
    made: Any = object.__new__(Graphs)
    made.pairs, made.spare_uses = [], 0
    made._gradients_apart, made._accumulates = apart, accumulates
    for results, gradients in pairs:
        pair: Any = Pair(apart)
        pair.forward, pair.backward = Captured(results), Captured(gradients)
        made.pairs.append(pair)
    return made  # type: ignore[no-any-return]


def test_a_pair_that_nobody_holds_anything_of_is_replayed() -> None:
    found = graphs((False, True), (True, True))
    assert found._choose() is found.pairs[1]
    assert [pair.was_free for pair in found.pairs] == [False, True]
    assert found.spare_uses == 0


def test_gradients_lie_apart_once_somebody_holds_them_during_forward() -> None:
    found = graphs((True, False))
    (before,) = found.pairs
    assert before.pool is before.backward_pool
    pair = found._choose()
    assert pair is not None and pair is not before and found.pairs == []
    assert pair.pool is not pair.backward_pool
    assert found.spare_uses == 1


def test_a_forward_beside_gradients_that_lie_apart_is_replayed() -> None:
    found = graphs((True, False), apart=True)
    pair = found._choose()
    assert pair is found.pairs[0] and not pair.was_free
    assert found.spare_uses == 0


def test_who_adds_up_gradients_gets_a_second_pair_and_no_third() -> None:
    found = graphs((True, False), apart=True, accumulates=True)
    second = found._choose()
    assert second is not None and second not in found.pairs
    full = graphs(*[(True, False)] * MOST_PAIRS, apart=True, accumulates=True)
    assert full._choose() is None
    assert full.spare_uses == 1


def test_who_holds_results_gets_a_pair_with_memory_of_its_own() -> None:
    found = graphs((False, True))
    pair = found._choose()
    assert pair is not None and pair is not found.pairs[0]
    assert pair.pool is not found.pairs[0].pool and pair.pool is pair.backward_pool
