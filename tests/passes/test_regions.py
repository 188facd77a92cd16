"""Groups merged without cycles; the order stays topological whatever is merged."""

from __future__ import annotations

import random

import networkx
import pytest

from rudagraph.passes.regions import Regions


def test_a_detour_is_refused() -> None:
    regions = Regions(3, [(0, 1), (1, 2), (0, 2)])
    assert not regions.merge(0, 2)
    assert regions.merge(0, 1)
    assert regions.merge(0, 2)
    assert regions.groups() == [[0, 1, 2]]


def test_merging_moves_what_depends_on_the_group_behind_it() -> None:
    regions = Regions(4, [(0, 1), (0, 3)])
    assert regions.merge(0, 3)
    assert regions.groups() == [[2], [0, 3], [1]]


def test_a_cycle_through_groups_is_refused() -> None:
    """0 -> 1 and 2 -> 3: once {0, 3} is a group, {1, 2} would be both after and before it."""
    regions = Regions(4, [(0, 1), (2, 3)])
    assert regions.merge(0, 3)
    assert not regions.merge(1, 2)


@pytest.mark.parametrize("seed", range(60))
def test_against_networkx(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 24)
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw.sample(pairs, min(len(pairs), draw.randint(0, 2 * count)))
    regions = Regions(count, edges)
    for _ in range(2 * count):
        left, right = draw.randrange(count), draw.randrange(count)
        left, right = regions.find(left), regions.find(right)
        if left == right:
            continue
        expected = networkx.is_directed_acyclic_graph(contracted(regions, edges, left, right))
        assert regions.merge(left, right) == expected
        groups = regions.groups()
        at = {node: index for index, group in enumerate(groups) for node in group}
        assert sorted(at) == list(range(count))
        assert all(at[a] <= at[b] for a, b in edges)
        assert all(
            regions.find(group[0]) == regions.find(node) for group in groups for node in group
        )


def contracted(
    regions: Regions, edges: list[tuple[int, int]], left: int, right: int
) -> networkx.DiGraph:
    def group(node: int) -> int:
        found = regions.find(node)
        return left if found == right else found

    graph = networkx.DiGraph()
    graph.add_edges_from((group(a), group(b)) for a, b in edges if group(a) != group(b))
    return graph
