"""Where graphs read a call's inputs, and when graphs made before are out of date; no GPU needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from rudagraph.runtime.inputs import SMALL, Inputs

LARGE = SMALL // 4 + 1  # elements of float32


def inputs(*sizes: int) -> tuple[Inputs, list[str]]:
    """Inputs of buffers with these numbers of elements, and a list that grows as they move."""
    moved: list[str] = []
    plan: Any = SimpleNamespace(buffers=[SimpleNamespace(bytes=4 * size) for size in sizes])
    return Inputs(plan, lambda: moved.append("moved")), moved


def test_small_inputs_are_copied_to_one_place_wherever_they_come_from() -> None:
    found, moved = inputs(4, 2)
    first = found.bring([(0, torch.arange(4.0)), (1, torch.ones(2))])
    second = found.bring([(0, torch.full((4,), 7.0)), (1, torch.zeros(2))])
    assert [buffer for buffer, _ in second] == [0, 1]
    for (_, before), (_, now) in zip(first, second, strict=True):
        assert now is before
    assert second[0][1].tolist() == [7.0] * 4 and second[1][1].tolist() == [0.0] * 2
    assert moved == []


def test_a_large_input_is_read_where_it_is_until_it_comes_from_elsewhere() -> None:
    found, moved = inputs(LARGE)
    tensor, other = torch.zeros(LARGE), torch.ones(LARGE)
    for _ in range(2):
        assert found.bring([(0, tensor)]) == [(0, tensor)]
    assert moved == []
    ((_, source),) = found.bring([(0, other)])
    assert moved == ["moved"]  # a graph that reads `tensor` would miss these values
    assert source is not other and torch.equal(source, other)
    tensor += 5
    ((_, again),) = found.bring([(0, tensor)])
    assert again is source and torch.equal(source, tensor)
    assert moved == ["moved"]


def test_graphs_that_read_a_large_input_in_place_are_dropped_once_it_has_to_be_copied() -> None:
    found, moved = inputs(LARGE)
    tensor = torch.zeros(LARGE)
    found.bring([(0, tensor)])
    ((_, source),) = found.bring([(0, tensor)], apart=[0])
    assert source is not tensor and moved == ["moved"]
    assert found.bring([(0, tensor)])[0][1] is source
    assert moved == ["moved"]


def test_the_first_large_input_to_be_copied_makes_no_graph_out_of_date() -> None:
    found, moved = inputs(LARGE)
    found.bring([(0, torch.zeros(LARGE))], apart=[0])
    assert moved == []


def test_addresses_are_learned_anew_when_no_graph_is_left() -> None:
    found, moved = inputs(LARGE)
    tensor, other = torch.zeros(LARGE), torch.ones(LARGE)
    found.bring([(0, tensor)])
    found.forget_addresses()
    assert found.bring([(0, other)])[0][1] is other
    assert moved == []


def test_strided_and_grad_requiring_inputs_are_copied_by_value() -> None:
    found, _ = inputs(6)
    tensor = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    with torch.no_grad():
        ((_, source),) = found.bring([(0, tensor)])
    assert source.is_contiguous() and not source.requires_grad
    assert torch.equal(source, tensor)
