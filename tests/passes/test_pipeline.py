"""The pipeline: passes in order, verified and recorded; the real tuples keep a graph's meaning."""

from __future__ import annotations

import pytest

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Graph
from rudagraph.ir.text import parse_graph
from rudagraph.passes.pipeline import JOINT_PASSES, Pass, run_passes
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


def _fails(graph: Graph) -> Graph:
    raise KeyError("a pass that meets what cannot be")


@pytest.mark.parametrize("verified", ["each", "last"])
def test_an_error_of_a_pass_is_its_own_where_all_is_valid(
    verified: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUDAGRAPH_VERIFY", verified)
    with pytest.raises(KeyError, match="cannot be"):
        run_passes((unchanged, _fails), GRAPH)


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


@pytest.mark.parametrize("verified", ["each", "last"])
@pytest.mark.parametrize("then", [unchanged, simplify, _fails], ids=lambda run: run.__name__)
def test_a_pass_that_breaks_a_graph_is_named(
    verified: str, then: Pass, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUDAGRAPH_VERIFY", verified)
    with pytest.raises(VerifyError) as caught:
        run_passes((unchanged, breaks, then), GRAPH)
    assert caught.value.what.startswith("%a is used before it is defined\n")
    assert caught.value.where == "graph joint after breaks"


def test_every_pass_is_a_function_named_after_its_file() -> None:
    for run in JOINT_PASSES:
        assert run.__module__ == f"rudagraph.passes.{run.__name__}"
