"""Minimum cuts against networkx and against every cut there is; the tie-break."""

from __future__ import annotations

import itertools
import random

import networkx
import pytest

from rudagraph.errors import VerifyError
from rudagraph.ir.dag import UNCUTTABLE, source_side


@pytest.mark.parametrize("seed", range(50))
def test_the_cut_is_as_small_as_networkx_finds(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(3, 14)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    edges = [(a, b, draw.randint(1, 9)) for a, b in draw.sample(pairs, min(len(pairs), 3 * count))]
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_weighted_edges_from(edges, weight="capacity")
    wanted = networkx.minimum_cut_value(graph, 0, count - 1)
    left = source_side(edges, 0, count - 1)
    assert 0 in left
    assert count - 1 not in left
    assert sum(c for a, b, c in edges if a in left and b not in left) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_smallest_of_all_cuts_and_the_nearest_to_the_sink(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(3, 8)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    edges = [(*draw.choice(pairs), draw.randint(1, 3)) for _ in range(3 * count)]  # some twice

    def size(left: set[int]) -> int:
        return sum(c for a, b, c in edges if a in left and b not in left)

    inner = range(1, count - 1)
    cuts = [
        {0, *some} for length in range(count - 1) for some in itertools.combinations(inner, length)
    ]
    best = min(map(size, cuts))
    nearest = max((left for left in cuts if size(left) == best), key=len)
    named = {node for edge in edges for node in edge[:2]} | {0}
    assert source_side(edges, 0, count - 1) == nearest & named


def test_of_equal_cuts_the_one_nearest_to_the_sink() -> None:
    assert source_side([("s", "a", 2), ("a", "b", 2), ("b", "t", 2)], "s", "t") == {"s", "a", "b"}


def test_a_path_that_may_not_be_cut() -> None:
    with pytest.raises(VerifyError, match="may not be cut"):
        source_side([("s", "a", UNCUTTABLE), ("a", "t", UNCUTTABLE)], "s", "t")


def test_parts_that_source_and_sink_alone_join_are_cut_each_for_itself() -> None:
    chain = [("a", "b", 3), ("b", "c", 1), ("c", "d", 2)]
    layers = [(f"{tail}{i}", f"{head}{i}", size) for i in range(4) for tail, head, size in chain]
    ends = [("s", f"a{i}", 2 if i < 3 else 1) for i in range(4)] + [
        (f"d{i}", "t", 5) for i in "0123"
    ]
    # Three are cut at their edge of 1; of the last one the first edge is as cheap, and farther.
    left = source_side([*layers, *ends, ("s", "t", 7), ("a0", "s", 2)], "s", "t")
    assert left == {"s"} | {f"{node}{i}" for i in range(4) for node in "ab"}
