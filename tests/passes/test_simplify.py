"""Simplify on random graphs: the same bits, sound graphs, nothing left to do, fast."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Role
from rudagraph.ir.text import parse_graph
from rudagraph.ir.types import DType, TensorType
from rudagraph.ir.verify import verify
from rudagraph.passes.simplify import simplify
from tests.ir.graphs import random_graphs
from tests.passes.test_passes import assert_same_bits

# What the rules look for, so that they find it often.
_NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.1])


@given(random_graphs(_NUMBERS))
def test_random_graphs_keep_their_bits(graph: Graph) -> None:
    simple = verify(simplify(graph), stage="simplify")
    assert len(simple.ops) <= len(graph.ops) + 1
    assert simplify(simple) is simple
    assert_same_bits(graph, simple)


def test_a_graph_without_anything_to_do_is_returned_itself() -> None:
    graph = parse_graph("""graph g {
      %x: f32[4] = input argument
      %y: f32[4] = exp(%x)
      output result = %y
    }""")
    assert simplify(graph) is graph


def test_a_division_by_zero_is_left_to_the_step() -> None:
    graph = parse_graph("""graph g {
      %seven: i64[4] = full() [dtype=i64, shape=[4], value=7]
      %q: i64[4] = floor_divide(%seven, 0)
      output result = %q
    }""")
    assert [op.opcode for op in simplify(graph).ops] == ["full", "floor_divide"]


def test_random_library_ops_are_not_merged() -> None:
    graph = parse_graph("""graph g {
      %x: f32[4] = input argument
      %a: f32[4] = library(%x) [arguments=[$0], target="aten.rand_like.default"]
      %b: f32[4] = library(%x) [arguments=[$0], target="aten.rand_like.default"]
      %c: f32[4] = library(%x) [arguments=[$0], target="aten.celu.default"]
      %d: f32[4] = library(%x) [arguments=[$0], target="aten.celu.default"]
      output result = %a
      output result = %b
      output result = %c
      output result = %d
    }""")
    assert [op.result.name for op in simplify(graph).ops] == ["a", "b", "c"]


def test_copies_stay_apart() -> None:
    graph = parse_graph("""graph g {
      %x: f32[4,1] = input argument
      %e: f32[4,3] = expand(%x) [shape=[4,3]]
      %a: f32[4,3] = copy(%e)
      %b: f32[4,3] = copy(%e)
      output result = %a
      output result = %b
    }""")
    assert simplify(graph) is graph


def test_a_long_chain_settles() -> None:
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(DType.BF16, (4, 1)), Role.ARGUMENT)
    value = x
    for _ in range(200):
        value = builder.one("cast", value, dtype=DType.F32)
        value = builder.one("mul", value, 1.0)
        value = builder.one("cast", value, dtype=DType.BF16)
        value = builder.one("permute", value, axes=(1, 0))
    builder.output(value, Role.RESULT)
    assert simplify(builder.finish()).ops == ()
