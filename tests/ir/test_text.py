"""Text form: what is printed parses to the same graph, and what is no graph says so."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudagraph.errors import ParseError
from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Hole, Location, Op, Port, Role, Value, make_attributes
from rudagraph.ir.text import parse_graph, print_graph
from rudagraph.ir.types import DType, TensorType
from rudagraph.ir.verify import verify
from tests.ir.graphs import random_graphs

STEP = """\
graph joint {
  %weight: bf16[8,4] = input parameter "proj.weight"
  %x: bf16[2,4] = input argument "tokens[0]"
  %key: i64[] = input key
  %across: bf16[4,8] = permute(%weight) [axes=[1, 0]]
  %y: bf16[2,8] = matmul(%x, %across)  # model.py:12 @layers.0.proj
  %half: bf16[2,8] = fused(%y) [kind="pointwise"] {  # model.py:13
    %in: bf16[2,8] = input operand
    %low: bf16[2,8] = mul(%in, -0.5)  # @layers.0
    %top: bf16[2,8] = maximum(%low, -inf)
    output result = %top
  }
  %pool: bf16[2,8] = library(%half) [arguments=[$0, [3, 3], none, true], keywords=[["memory", "a # b"], ["dtype", bf16]], target="aten.pool.default"]
  output result "loss" = %pool
  output gradient "proj.weight" = %across
}
"""  # noqa: E501


def round_trip(graph: Graph) -> None:
    text = print_graph(graph)
    parsed = parse_graph(text)
    assert parsed == graph
    assert print_graph(parsed) == text


def test_hand_written_text_comes_back_to_the_letter() -> None:
    graph = parse_graph(STEP)
    assert print_graph(graph) == STEP
    assert parse_graph(print_graph(graph)) == graph


def test_locations_and_bodies_are_read() -> None:
    graph = parse_graph(STEP)
    locations = [op.location for op in graph.ops]
    assert locations[0] == Location()
    assert locations[1] == Location("layers.0.proj", "model.py:12")
    assert locations[2] == Location("", "model.py:13")
    body = graph.ops[2].body
    assert body is not None
    assert body.ops[0].location == Location("layers.0", "")
    assert body.ops[0].operands[1] == -0.5
    assert graph.ops[3]["arguments"] == (Hole(0), (3, 3), None, True)
    assert graph.inputs[1] == Port(
        Value("x", TensorType(DType.BF16, (2, 4))), Role.ARGUMENT, "tokens[0]"
    )


def test_locations_can_be_left_out() -> None:
    text = print_graph(parse_graph(STEP), locations=False)
    assert "model.py" not in text
    assert all(op.location == Location() for op in parse_graph(text).ops)


def test_headers_and_blank_lines_are_for_people() -> None:
    text = "# after fuse: 4 -> 3 ops\n\n" + STEP.replace("  %key", "\n  # the key\n  %key")
    assert parse_graph(text) == parse_graph(STEP)


def test_attributes_have_one_order_and_none_is_absent() -> None:
    head = "graph g {\n  %x: f32[2] = input argument\n"
    first = parse_graph(head + "  %y: f32[] = sum(%x) [keepdim=false, axes=[0], dtype=none]\n}")
    second = parse_graph(head + "  %y: f32[] = sum(%x) [axes=[0], keepdim=false]\n}")
    assert first == second
    assert first.ops[0].attributes == make_attributes(keepdim=False, axes=(0,))


@pytest.mark.parametrize(
    "number",
    [0.0, -0.0, 1e-05, 1e300, -1.5, math.inf, -math.inf, math.nan, 0, -3, 2**63, True, False],
)
def test_numbers_keep_type_sign_and_value(number: float) -> None:
    builder = GraphBuilder("g")
    x = builder.input("x", TensorType(DType.F32, ()), Role.ARGUMENT)
    y = builder.one("add", x, number)
    builder.output(y, Role.RESULT)
    graph = builder.finish()
    round_trip(graph)
    got = parse_graph(print_graph(graph)).ops[0].operands[1]
    assert type(got) is type(number)
    assert repr(got) == repr(number)


def test_every_nan_is_the_same_nan() -> None:
    x = Value("x", TensorType(DType.F32, ()))
    y = Value("y", TensorType(DType.F32, ()))
    ops = [
        Op("where", (x, nan, x), (y,), make_attributes(value=nan, pair=(1, (nan,))))
        for nan in (float("nan"), -float("nan"), math.nan)
    ]
    assert ops[0] == ops[1] == ops[2]
    round_trip(Graph("g", (Port(x, Role.ARGUMENT),), (ops[0],), ()))
    assert copy.deepcopy(ops[0]) == ops[0]


@pytest.mark.parametrize(
    "target", ["", 'say "no"', "back\\slash", "tab\tand\nline", "größe.π", "# no comment", "{%x}"]
)
def test_targets_are_any_text(target: str) -> None:
    value = Value("x", TensorType(DType.I8, (0, 7)))
    round_trip(Graph("g", (Port(value, Role.BUFFER, target),), (), (Port(value, Role.RESULT),)))


@pytest.mark.parametrize("line", ["", "model.py:7", "dir with space/me@home.py:7", "a # b.py:1"])
@pytest.mark.parametrize("module", ["", "layers.0.norm"])
def test_locations_come_back(line: str, module: str) -> None:
    x = Value("x", TensorType(DType.F32, ()))
    op = Op("neg", (x,), (Value("y", x.type),), location=Location(module, line))
    round_trip(Graph("g", (Port(x, Role.ARGUMENT),), (op,), ()))


def test_every_dtype_and_role_comes_back() -> None:
    inputs = tuple(
        Port(Value(f"v{i}.{role.value}", TensorType(dtype, (i,))), role, role.value)
        for i, role in enumerate(Role)
        for dtype in [list(DType)[i % len(DType)]]
    )
    round_trip(Graph("g", inputs, (), inputs))


@given(random_graphs())
def test_random_graphs_come_back(graph: Graph) -> None:
    verify(graph)
    round_trip(graph)


_ATTRIBUTES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text()
    | st.sampled_from(list(DType))
    | st.builds(Hole, st.integers(0, 99)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), _ATTRIBUTES, max_size=4))
def test_any_attributes_come_back(attributes: dict[str, object]) -> None:
    x = Value("x", TensorType(DType.F32, ()))
    op = Op("library", (x, None, -0.0), (Value("y", x.type),), make_attributes(**attributes))
    round_trip(Graph("g", (Port(x, Role.ARGUMENT),), (op,), ()))


_HEAD = "graph g {\n  %x: f32[2] = input argument\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            _HEAD + "  %y: f32[2] = neg(%z)\n}",
            "expected a value defined above, got '%z'\n"
            "  where: line 3 of the graph text: %y: f32[2] = neg(%z)\n"
            "  what to do: compare the line with the grammar in docs/ir.md",
        ),
        (
            _HEAD + "  %x: f32[2] = neg(%x)\n}",
            "expected a new name, got '%x, which is defined above'\n"
            "  where: line 3 of the graph text: %x: f32[2] = neg(%x)\n"
            "  what to do: compare the line with the grammar in docs/ir.md",
        ),
        (
            _HEAD + "  %y: f33[2] = neg(%x)\n}",
            "expected a dtype, got 'f33'\n"
            "  where: line 3 of the graph text: %y: f33[2] = neg(%x)\n"
            "  what to do: compare the line with the grammar in docs/ir.md",
        ),
    ],
)
def test_errors_show_the_line(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "expected", "line"),
    [
        ("", "expected 'graph', got 'end of text'", 1),
        ("grap g {\n}", "expected 'graph', got 'grap'", 1),
        ("graph g {\n", "expected a value, got 'end of text'", 2),
        ("graph g {\n}\n}", "expected a end, got '}'", 3),
        ("graph g {\n  & \n}", "expected a token, got '& \\n}'", 2),
        ("graph g {\n  %x: f32[-2] = input key\n}", "expected a size, got '-2'", 2),
        ("graph g {\n  %x: f32[1.5] = input key\n}", "expected a size, got '1.5'", 2),
        ("graph g {\n  %x: f32[2] = input weight\n}", "expected a role, got 'weight'", 2),
        ("graph g {\n  %x: f32[2] = input key 3\n}", "expected a value, got '3'", 2),
        (_HEAD + '  %y: f32[2] = neg(%x, "a")\n}', "expected a value, a number or none", 3),
        (_HEAD + "  %y: f32[2] = neg(%x) [a=b]\n}", "expected an attribute value, got 'b'", 3),
        (_HEAD + "  %y: f32[2] = neg(%x) [a=1, a=2]\n}", "expected each attribute once", 3),
        (_HEAD + '  %y: f32[2] = neg(%x) [a="\\q"]\n}', "expected a JSON string", 3),
        (_HEAD + "  %y: f32[2] = neg(%x %x)\n}", "expected ',', got '%x'", 3),
        (_HEAD + "  %y: f32[2] neg(%x)\n}", "expected '=', got 'neg'", 3),
        (_HEAD + "  output result = %y\n}", "expected a value defined above, got '%y'", 3),
        (
            _HEAD + "  %y: f32[2] = fused(%x) {\n    output result = %x\n  }\n}",
            "expected a value defined above, got '%x'",
            4,
        ),
    ],
)
def test_what_is_no_graph_is_refused(text: str, expected: str, line: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert caught.value.what.startswith(expected)
    assert caught.value.where.split(":")[0] == f"line {line} of the graph text"
