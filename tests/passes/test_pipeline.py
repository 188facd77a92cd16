"""The pipeline: passes in order, verified and recorded; the real tuples keep a graph's meaning."""

from __future__ import annotations

import pytest

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Graph
from rudagraph.ir.text import parse_graph
from rudagraph.passes.pipeline import JOINT_PASSES, run_passes
from rudagraph.passes.simplify import simplify

GRAPH = parse_graph("""graph joint {
  %x: f32[4,8] = input argument "x"
  %w: f32[8] = input parameter "w"
  %a: f32[4,8] = mul(%x, 1.0)
  %y: f32[4,8], %rstd: f32[4,1] = rms_norm(%a, %w) [axes=1, epsilon=1e-05, style="torch"]
  output result "y" = %y
}""")


def unchanged(graph: Graph) -> Graph:
    return graph


def breaks(graph: Graph) -> Graph:
    return graph.with_ops(graph.ops[1:])


def test_passes_run_in_order_and_are_recorded() -> None:
    seen: list[tuple[str, int]] = []
    result = run_passes(
        (unchanged, simplify, unchanged),
        GRAPH,
        lambda name, graph: seen.append((name, len(graph.ops))),
    )
    assert seen == [("unchanged", 2), ("simplify", 1), ("unchanged", 1)]
    assert [op.opcode for op in result.ops] == ["rms_norm"]
    assert run_passes((unchanged,), GRAPH) is GRAPH


def test_a_pass_that_breaks_a_graph_is_named() -> None:
    with pytest.raises(VerifyError) as caught:
        run_passes((unchanged, breaks), GRAPH)
    assert caught.value.what.startswith("%a is used before it is defined\n")
    assert caught.value.where == "graph joint after breaks"


def test_every_pass_is_a_function_named_after_its_file() -> None:
    for run in JOINT_PASSES:
        assert run.__module__ == f"rudagraph.passes.{run.__name__}"
