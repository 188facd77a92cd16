"""The networkx view: users, generations, reachability, convexity, bytes that cross."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudagraph.ir.dag import Dag, op_node, value_node
from rudagraph.ir.graph import Graph
from rudagraph.ir.text import parse_graph
from tests.ir.graphs import random_graphs

# places:   0 a -> 1 b -> 3 d
#             \--> 2 c --/      4 e reads x alone
DIAMOND = parse_graph("""graph g {
  %x: f32[4] = input argument
  %a: f32[4] = neg(%x)
  %b: f32[4] = exp(%a)
  %c: bf16[4] = cast(%a) [dtype=bf16]
  %wide: f32[4] = cast(%c) [dtype=f32]
  %d: f32[4] = add(%b, %wide)
  %e: f32[4] = mul(%x, %x)
  output result = %d
  output result = %e
  output residual = %b
}""")


@pytest.fixture(scope="module")
def dag() -> Dag:
    return Dag(DIAMOND)


def value(name: str):
    return next(value for value in DIAMOND.values() if value.name == name)


def test_the_view_holds_values_and_ops(dag: Dag) -> None:
    assert networkx.is_directed_acyclic_graph(dag.view)
    assert dag.view.edges[value_node(value("x")), op_node(0)]["bytes"] == 16
    assert dag.view.edges[op_node(2), value_node(value("c"))]["bytes"] == 8
    assert dag.view.nodes[op_node(1)]["opcode"] == "exp"


def test_users(dag: Dag) -> None:
    assert [op.opcode for op in dag.users(value("a"))] == ["exp", "cast"]
    assert [op.opcode for op in dag.users(value("x"))] == ["neg", "mul"]
    assert dag.users(value("d")) == ()


def test_generations(dag: Dag) -> None:
    assert dag.generations() == [[0, 5], [1, 2], [3], [4]]


def test_reachability(dag: Dag) -> None:
    assert dag.ancestors([4]) == {0, 1, 2, 3}
    assert dag.descendants([0]) == {1, 2, 3, 4}
    assert dag.ancestors([0, 5]) == set()
    assert dag.reaches(0, 4) and not dag.reaches(1, 3) and not dag.reaches(4, 0)
    assert not dag.reaches(1, 1)


@pytest.mark.parametrize(
    ("places", "convex"),
    [
        ([], True),
        ([0], True),
        ([0, 1], True),
        ([0, 4], False),
        ([0, 1, 4], False),
        ([0, 1, 2, 3, 4], True),
        ([1, 5], True),
        ([1, 3], True),
        ([1, 3, 4], True),
        ([2, 4], False),
    ],
)
def test_convexity(dag: Dag, places: list[int], convex: bool) -> None:
    assert dag.is_convex(places) == convex


def test_bytes_that_cross(dag: Dag) -> None:
    assert dag.crossing_bytes([0, 1]) == (16, 16 + 16)  # in: x; out: a for the cast, b as output
    assert dag.crossing_bytes([2, 3]) == (16, 16)
    assert dag.crossing_bytes([5]) == (16, 16)
    assert dag.crossing_bytes([]) == (0, 0)


@given(random_graphs(), st.data())
def test_convexity_is_what_contraction_says(graph: Graph, data: st.DataObject) -> None:
    dag = Dag(graph)
    if not graph.ops:
        return
    places = data.draw(st.sets(st.integers(0, len(graph.ops) - 1), min_size=1))
    contracted = networkx.DiGraph()
    group = {place: "set" if place in places else place for place in range(len(graph.ops))}
    contracted.add_nodes_from(group.values())
    for place, op in enumerate(graph.ops):
        for operand in op.inputs:
            source = dag.places.get(operand)
            if source is not None and group[source] != group[place]:
                contracted.add_edge(group[source], group[place])
    assert dag.is_convex(places) == networkx.is_directed_acyclic_graph(contracted)
