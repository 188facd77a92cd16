"""The rewriting engine: what stays, what is renamed, what is refused; dead code."""

from __future__ import annotations

import pytest

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Op, Operand
from rudagraph.ir.rewrite import Rewriter, remove_dead, rewrite
from rudagraph.ir.text import parse_graph, print_graph
from rudagraph.ir.verify import verify

GRAPH = parse_graph("""graph g {
  %x: f32[4] = input argument "x"
  %a: f32[4] = neg(%x)  # m.py:1 @layers.0
  %b: f32[4] = relu(%a)  # m.py:2
  %c: f32[4] = add(%b, %a)  # m.py:3
  output result "c" = %c
  output result "b" = %b
}""")


def test_the_same_graph_where_no_rule_fires() -> None:
    assert rewrite(GRAPH, lambda rewriter, op: None) is GRAPH


def test_users_read_the_replacement() -> None:
    def drop_relu(rewriter: Rewriter, op: Op) -> Operand:
        return op.operands[0] if op.opcode == "relu" else None

    graph = verify(rewrite(GRAPH, drop_relu))
    assert (
        print_graph(graph)
        == """graph g {
  %x: f32[4] = input argument "x"
  %a: f32[4] = neg(%x)  # m.py:1 @layers.0
  %c: f32[4] = add(%a, %a)  # m.py:3
  output result "c" = %c
  output result "b" = %a
}
"""
    )


def test_a_new_op_takes_name_and_location() -> None:
    def relu_by_maximum(rewriter: Rewriter, op: Op) -> Operand:
        if op.opcode != "relu":
            return None
        half = rewriter.one("mul", op.operands[0], 0.5, name="half")
        return rewriter.one("maximum", rewriter.one("add", half, half, name="half"), 0.0)

    graph = verify(rewrite(GRAPH, relu_by_maximum))
    assert (
        print_graph(graph)
        == """graph g {
  %x: f32[4] = input argument "x"
  %a: f32[4] = neg(%x)  # m.py:1 @layers.0
  %half: f32[4] = mul(%a, 0.5)  # m.py:2
  %half_2: f32[4] = add(%half, %half)  # m.py:2
  %b: f32[4] = maximum(%half_2, 0.0)  # m.py:2
  %c: f32[4] = add(%b, %a)  # m.py:3
  output result "c" = %c
  output result "b" = %b
}
"""
    )


def test_a_number_becomes_a_tensor() -> None:
    graph = verify(rewrite(GRAPH, lambda rewriter, op: 2.0 if op.opcode == "relu" else None))
    assert [op.opcode for op in graph.ops] == ["neg", "full", "add"]
    assert graph.ops[1].result.name == "b"
    assert graph.ops[1]["value"] == 2.0


def test_rules_see_producers_as_they_are_now() -> None:
    seen: list[str] = []

    def rule(rewriter: Rewriter, op: Op) -> Operand:
        for operand in op.operands:
            if producer := rewriter.producer(operand):
                seen.append(producer.opcode)
        if op.opcode == "neg":
            return rewriter.one("exp", op.operands[0])
        return None

    rewrite(GRAPH, rule)
    assert seen == ["exp", "relu", "exp"]
    rewriter = Rewriter(GRAPH, rule)
    assert rewriter.producer(GRAPH.inputs[0].value) is None
    assert rewriter.producer(0.5) is None


def test_several_results_are_replaced_together() -> None:
    graph = parse_graph("""graph g {
      %x: f32[2,4] = input argument
      %y: f32[2,4], %rstd: f32[2,1] = rms_norm(%x, none) [axes=1, epsilon=0.1, style="torch"]
      %z: f32[2,4] = neg(%y)
      output result = %z
    }""")

    def rule(rewriter: Rewriter, op: Op) -> tuple[Operand, ...] | None:
        return (op.operands[0], None) if op.opcode == "rms_norm" else None

    assert [op.opcode for op in verify(rewrite(graph, rule)).ops] == ["neg"]


def test_a_replacement_has_the_type_of_what_it_replaces() -> None:
    def rule(rewriter: Rewriter, op: Op) -> Operand:
        return rewriter.one("isnan", op.operands[0]) if op.opcode == "relu" else None

    with pytest.raises(VerifyError, match=r"a rule gives b8\[4\] for %b: f32\[4\] of relu"):
        rewrite(GRAPH, rule)


def test_fused_ops_are_walked_around() -> None:
    graph = parse_graph("""graph g {
      %x: f32[4] = input argument
      %n: f32[4] = neg(%x)
      %y: f32[4] = fused(%n) {
        %a: f32[4] = input operand
        %b: f32[4] = neg(%a)
        output result = %b
      }
      output result = %y
    }""")

    def rule(rewriter: Rewriter, op: Op) -> Operand:
        return rewriter.one("abs", op.operands[0]) if op.opcode == "neg" else None

    changed = verify(rewrite(graph, rule))
    assert changed.ops[0].opcode == "abs"
    assert changed.ops[1].body == graph.ops[1].body
    assert changed.ops[1].operands == (changed.ops[0].result,)


def test_dead_code_goes() -> None:
    graph = parse_graph("""graph g {
      %x: f32[2,4] = input argument
      %unused: f32[2,4] = input argument
      %a: f32[2,4] = neg(%x)
      %b: f32[2,4] = exp(%a)
      %c: f32[2,4] = add(%a, %a)
      output result = %c
    }""")
    smaller = verify(remove_dead(graph))
    assert [op.opcode for op in smaller.ops] == ["neg", "add"]
    assert smaller.inputs == graph.inputs
    assert remove_dead(smaller) is smaller


def test_unread_gradients_are_not_computed() -> None:
    graph = parse_graph("""graph g {
      %g: f32[2,4] = input argument
      %x: f32[2,4] = input argument
      %m: f32[2,1] = input argument
      %r: f32[2,1] = input argument
      %w: f32[4] = input argument
      %dx: f32[2,4], %db: f32[4] = layer_norm_backward(%g, %x, %m, %r, %w) [axes=1, needs=[true, false, true]]
      output result = %db
    }""")  # noqa: E501
    smaller = verify(remove_dead(graph))
    assert smaller.ops[0]["needs"] == (False, False, True)
    assert [value.name for value in smaller.ops[0].results] == ["db"]
