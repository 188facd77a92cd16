"""The verifier: each rule, with the text a broken graph is answered with."""

from __future__ import annotations

import pytest

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Graph, Op, Port, Role, Value, make_attributes
from rudagraph.ir.ops import Tag
from rudagraph.ir.text import parse_graph
from rudagraph.ir.types import DType, TensorType
from rudagraph.ir.verify import verify

F2 = TensorType(DType.F32, (2,))
X, Y, Z = (Value(name, F2) for name in "xyz")
HINT = "  what to do: this is a fault of the pass just run; RUDAGRAPH_DUMP=dir writes every stage"


def graph_of(*ops: Op, outputs: tuple[Port, ...] = ()) -> Graph:
    return Graph("g", (Port(X, Role.ARGUMENT, "x"),), ops, outputs)


def neg(operand: Value, result: Value) -> Op:
    return Op("neg", (operand,), (result,))


def message(graph: Graph, **keywords: object) -> str:
    with pytest.raises(VerifyError) as caught:
        verify(graph, **keywords)
    return str(caught.value)


def test_a_sound_graph_is_returned_itself() -> None:
    graph = graph_of(neg(X, Y), outputs=(Port(Y, Role.RESULT, "y"), Port(X, Role.RESIDUAL, "x")))
    assert verify(graph) is graph


def test_the_message_shows_the_ops_around() -> None:
    ops = (neg(X, Y), Op("exp", (Y,), (Z,)), Op("add", (Z, Value("w", F2)), (Value("v", F2),)))
    graph = graph_of(*ops, neg(Y, Value("u", F2)))
    assert message(graph, stage="fuse") == (
        "%w is used before it is defined\n"
        "  %y: f32[2] = neg(%x)\n"
        "  %z: f32[2] = exp(%y)\n"
        "  %v: f32[2] = add(%z, %w)\n"
        "  ^ here\n"
        "  %u: f32[2] = neg(%y)\n"
        "  where: graph g after fuse\n" + HINT
    )


@pytest.mark.parametrize(
    ("ops", "what"),
    [
        ((Op("negate", (X,), (Y,)),), "there is no op named negate"),
        ((neg(Y, Z), neg(X, Y)), "%y is used before it is defined"),
        (
            (neg(Value("x", TensorType(DType.F32, (3,))), Y),),
            "%x is f32[2], the operand says f32[3]",
        ),
        ((neg(X, X),), "%x is defined twice"),
        ((neg(X, Y), neg(X, Y)), "%y is defined twice"),
        (
            (neg(X, Value("y", TensorType(DType.BF16, (2,)))),),
            "results are (bf16[2]), the op gives (f32[2])",
        ),
        ((Op("neg", (X,), (Y, Z)),), "results are (f32[2], f32[2]), the op gives (f32[2])"),
        ((Op("neg", (X, X), (Y,)),), "neg takes 1 operands, not 2"),
        (
            (Op("neg", (X,), (Y,), make_attributes(axis=1)),),
            "neg has no attribute axis; it has: none",
        ),
        ((neg(X, Value("a b", F2)),), "'a b' is no name: letters, digits, _ and . only"),
        ((Op("fused", (X,), (Y,)),), "a fused op needs a body"),
        ((Op("library", (X,), (Y,)),), "a library op needs a target"),
        ((Op("library", (X,), (), make_attributes(target="aten.x")),), "library has no result"),
        (
            (Op("library", (X,), (Y,), make_attributes(target="aten.x", name="x")),),
            "library has no attribute name",
        ),
        (
            (Op("library", (X,), (Y,), make_attributes(target="aten.x", keywords=(("a",),))),),
            "keywords must be pairs of name and value, not (('a',),)",
        ),
    ],
)  # fmt: skip
def test_each_rule_of_an_op(ops: tuple[Op, ...], what: str) -> None:
    assert message(graph_of(*ops)).splitlines()[0] == what


def test_holes_have_operands() -> None:
    text = 'library(%x) [target="t", arguments=[[$1]]]'
    text = f"graph g {{ %x: f32[] = input argument %y: f32[] = {text} }}"
    assert message(parse_graph(text)).startswith("the call has a hole $1 that no operand fills\n")


@pytest.mark.parametrize(
    ("graph", "what"),
    [
        (
            Graph("g", (Port(X, Role.GRADIENT),), (), ()),
            "%x cannot be an input of role gradient",
        ),
        (
            Graph("g", (Port(X, Role.ARGUMENT), Port(X, Role.BUFFER)), (), ()),
            "%x is defined twice",
        ),
        (
            Graph("g", (Port(Value("x-1", F2), Role.ARGUMENT),), (), ()),
            "'x-1' is no name: letters, digits, _ and . only",
        ),
        (graph_of(outputs=(Port(X, Role.KEY),)), "%x cannot be an output of role key"),
        (graph_of(outputs=(Port(Y, Role.RESULT),)), "output %y is not defined"),
        (
            graph_of(outputs=(Port(Value("x", TensorType(DType.F64, (2,))), Role.RESULT),)),
            "output %x is not defined",
        ),
    ],
)
def test_each_rule_of_a_port(graph: Graph, what: str) -> None:
    assert message(graph) == f"{what}\n  where: graph g after g\n{HINT}"


def test_tags_can_be_forbidden() -> None:
    graph = graph_of(Op("softmax", (X,), (Y,), make_attributes(axis=0)))
    assert verify(graph) is graph
    got = message(graph, forbidden=Tag.COMPOSITE | Tag.LIBRARY)
    assert got.startswith("softmax (Tag.COMPOSITE) must be gone by now\n")


BODY = """\
graph g {
  %x: f32[2] = input argument
  %y: f32[2] = fused(%x) {
    %a: f32[2] = input operand
    %b: f32[2] = neg(%a)
    output result = %b
  }
  output result = %y
}
"""


def test_bodies_are_verified() -> None:
    graph = parse_graph(BODY)
    assert verify(graph) is graph
    wrong = parse_graph(BODY.replace("%b: f32[2] = neg", "%b: f32[2] = isnan"))
    assert "results are (f32[2]), the op gives (b8[2])\n  %b: f32[2] = isnan(%a)\n  ^ here" in (
        message(wrong)
    )


def test_a_body_takes_what_it_is_given() -> None:
    wrong = parse_graph(BODY.replace("fused(%x)", "fused(%x, %x)"))
    assert message(wrong).startswith(
        "operands ['f32[2]', 'f32[2]'] do not match the body's inputs ['f32[2]']\n"
    )


def test_bodies_do_not_nest() -> None:
    inner = BODY[BODY.index("{\n    %a") : BODY.index("  output result = %y")].rstrip()
    nested = BODY.replace("neg(%a)", f"fused(%a) {inner}")
    assert message(parse_graph(nested)).startswith("a fused body cannot hold a fused op\n")


def test_a_body_has_the_name_that_its_text_gives_it() -> None:
    graph = parse_graph(BODY)
    op = graph.ops[0]
    assert op.body is not None
    body = Graph("kernel", op.body.inputs, op.body.ops, op.body.outputs)
    renamed = graph.with_ops((Op(op.opcode, op.operands, op.results, body=body),))
    assert message(renamed).startswith("a body is named body, not kernel\n")
