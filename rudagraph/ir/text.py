"""Text form of a graph: grammar, printer and parser, side by side; parse(print_graph(g)) == g.

    graph    := "graph" NAME "{" port* op* output* "}"
    port     := value "=" "input" ROLE [STRING]
    op       := value ("," value)* "=" OPCODE "(" [operand ("," operand)*] ")"
                ["[" attr ("," attr)* "]"] [body] [comment]
    body     := "{" port* op* output* "}"
    output   := "output" ROLE [STRING] "=" "%"NAME
    value    := "%"NAME ":" DTYPE "[" INT ("," INT)* "]"
    operand  := "%"NAME | number | "none"
    attr     := NAME "=" (number | STRING | DTYPE | "none" | "$"INT | "[" ... "]")
    comment  := "#" [file:line] ["@" module.path]      the user's line and module, kept

Numbers are Python literals, with inf, -inf, nan, true and false. Other lines starting with # are
headers for people; the parser skips them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TypeVar

from rudagraph.errors import ParseError
from rudagraph.ir.graph import Attribute, Graph, Hole, Location, Op, Operand, Port, Role, Value
from rudagraph.ir.types import DType, TensorType

_T = TypeVar("_T")

# What the text can spell: names of values, and the name every body has.
NAME = re.compile(r"[A-Za-z0-9_.]+")
BODY = "body"
_DTYPES = {dtype.value: dtype for dtype in DType}


# -- printer


def print_graph(graph: Graph, *, locations: bool = True) -> str:
    """The graph as text, one op a line, ending in a newline."""
    lines = [f"graph {graph.name} {{"]
    lines += _print_section(graph, "  ", locations)
    return "\n".join([*lines, "}"]) + "\n"


def print_op(op: Op, *, indent: str = "", locations: bool = True) -> str:
    """One op as text, its body on further lines."""
    results = ", ".join(f"{value}: {value.type}" for value in op.results)
    operands = ", ".join(_print_operand(operand) for operand in op.operands)
    text = f"{indent}{results} = {op.opcode}({operands})"
    if op.attributes:
        pairs = ", ".join(f"{name}={_print_attribute(value)}" for name, value in op.attributes)
        text += f" [{pairs}]"
    comment = _print_location(op.location) if locations else ""
    if op.body is None:
        return text + comment
    inner = _print_section(op.body, indent + "  ", locations)
    return "\n".join([text + " {" + comment, *inner, indent + "}"])


def _print_section(graph: Graph, indent: str, locations: bool) -> list[str]:
    lines = [
        f"{indent}{port.value}: {port.value.type} = input {port.role.value}{_print_target(port)}"
        for port in graph.inputs
    ]
    lines += [print_op(op, indent=indent, locations=locations) for op in graph.ops]
    lines += [
        f"{indent}output {port.role.value}{_print_target(port)} = {port.value}"
        for port in graph.outputs
    ]
    return lines


def _print_target(port: Port) -> str:
    return f" {json.dumps(port.target)}" if port.target else ""


def _print_location(location: Location) -> str:
    parts = [location.line] if location.line else []
    parts += [f"@{location.module}"] if location.module else []
    return "  # " + " ".join(parts) if parts else ""


def _print_operand(operand: Operand) -> str:
    if isinstance(operand, Value):
        return str(operand)
    return _print_attribute(operand)


def _print_attribute(value: Attribute) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return json.dumps(value)
        case DType():
            return str(value)
        case Hole(index):
            return f"${index}"
        case tuple():
            return "[" + ", ".join(_print_attribute(item) for item in value) + "]"
    raise TypeError(f"{value!r} is no attribute value")


# -- parser

_TOKEN = re.compile(
    r"""(?P<newline>\n)|(?P<space>[ \t\r]+)|(?P<comment>\#[^\n]*)|(?P<value>%[A-Za-z0-9_.]+)
    |(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>-?(?:inf\b|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))
    |(?P<hole>\$\d+)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|(?P<punct>[{}()\[\],:=])""",
    re.VERBOSE,
)


def parse_graph(text: str) -> Graph:
    """The graph that the text describes; ParseError with the line where it is none."""
    parser = _Parser(text)
    parser.expect("name", "graph")
    name = parser.expect("name")
    graph = parser.section(name)
    parser.expect("end")
    return graph


class _Parser:
    """Recursive descent over tokens; comments at the end of an op's line are its location."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.tokens: list[tuple[str, str, int]] = []
        self.comments: dict[int, str] = {}
        self.position = 0
        self._scan(text)

    def _scan(self, text: str) -> None:
        line, start, code_on_line = 1, 0, False
        while start < len(text):
            match = _TOKEN.match(text, start)
            if match is None:
                raise self._error(line, "a token", text[start : start + 20])
            kind, start = str(match.lastgroup), match.end()
            if kind == "newline":
                line, code_on_line = line + 1, False
            elif kind == "comment":
                if code_on_line:
                    self.comments[line] = match.group()[1:].strip()
            elif kind != "space":
                self.tokens.append((kind, match.group(), line))
                code_on_line = True
        self.tokens.append(("end", "end of text", line))

    def _error(self, line: int, expected: str, got: str) -> ParseError:
        source = self.lines[line - 1].strip() if line <= len(self.lines) else ""
        return ParseError(
            what=f"expected {expected}, got {got!r}",
            where=f"line {line} of the graph text" + (f": {source}" if source else ""),
            hint="compare the line with the grammar in docs/ir.md",
        )

    def peek(self, text: str) -> bool:
        return self.tokens[self.position][1] == text

    def expect(self, kind: str, text: str | None = None) -> str:
        got_kind, got, line = self.tokens[self.position]
        if got_kind != kind or (text is not None and got != text):
            raise self._error(line, repr(text) if text else f"a {kind}", got)
        self.position += 1
        return got

    def accept(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.position += 1
        return True

    def separated(self, item: Callable[[], _T], close: str) -> tuple[_T, ...]:
        items: list[_T] = []
        while not self.accept(close):
            if items:
                self.expect("punct", ",")
            items.append(item())
        return tuple(items)

    def section(self, name: str) -> Graph:
        self.expect("punct", "{")
        inputs: list[Port] = []
        ops: list[Op] = []
        outputs: list[Port] = []
        scope: dict[str, Value] = {}
        while not self.accept("}"):
            if self.accept("output"):
                role, target = self.role(), self.target()
                self.expect("punct", "=")
                outputs.append(Port(self.known(scope), role, target))
                continue
            results = self.results(scope)
            if self.accept("input"):
                inputs.append(Port(results[0], self.role(), self.target()))
            else:
                ops.append(self.op(results, scope))
            scope.update({value.name: value for value in results})
        return Graph(name, tuple(inputs), tuple(ops), tuple(outputs))

    def role(self) -> Role:
        line = self.tokens[self.position][2]
        name = self.expect("name")
        if name not in {role.value for role in Role}:
            raise self._error(line, "a role", name)
        return Role(name)

    def target(self) -> str:
        if self.tokens[self.position][0] != "string":
            return ""
        return self.string()

    def string(self) -> str:
        line = self.tokens[self.position][2]
        text = self.expect("string")
        try:
            return str(json.loads(text))
        except json.JSONDecodeError:
            raise self._error(line, "a JSON string", text) from None

    def extent(self) -> int:
        line = self.tokens[self.position][2]
        text = self.expect("number")
        if not text.isdecimal():
            raise self._error(line, "a size", text)
        return int(text)

    def known(self, scope: dict[str, Value]) -> Value:
        line = self.tokens[self.position][2]
        name = self.expect("value")[1:]
        if name not in scope:
            raise self._error(line, "a value defined above", f"%{name}")
        return scope[name]

    def results(self, scope: dict[str, Value]) -> tuple[Value, ...]:
        values = [self.typed_value(scope)]
        while self.accept(","):
            values.append(self.typed_value(scope))
        self.expect("punct", "=")
        return tuple(values)

    def typed_value(self, scope: dict[str, Value]) -> Value:
        line = self.tokens[self.position][2]
        name = self.expect("value")[1:]
        if name in scope:
            raise self._error(line, "a new name", f"%{name}, which is defined above")
        self.expect("punct", ":")
        dtype = self.expect("name")
        if dtype not in _DTYPES:
            raise self._error(line, "a dtype", dtype)
        self.expect("punct", "[")
        shape = self.separated(self.extent, "]")
        return Value(name, TensorType(_DTYPES[dtype], shape))

    def op(self, results: tuple[Value, ...], scope: dict[str, Value]) -> Op:
        opcode, line = self.expect("name"), self.tokens[self.position - 1][2]
        self.expect("punct", "(")
        operands = self.separated(lambda: self.operand(scope), ")")
        attributes: tuple[tuple[str, Attribute], ...] = ()
        if self.accept("["):
            attributes = self.separated(self.named_attribute, "]")
        names = [name for name, _ in attributes]
        if len(set(names)) < len(names):
            raise self._error(line, "each attribute once", ", ".join(names))
        body = self.section(BODY) if self.peek("{") else None
        return Op(opcode, operands, results, attributes, self.location(line), body)

    def location(self, line: int) -> Location:
        source, _, module = f" {self.comments.get(line, '')}".partition(" @")
        return Location(module, source.strip())

    def operand(self, scope: dict[str, Value]) -> Operand:
        if self.tokens[self.position][0] == "value":
            return self.known(scope)
        line = self.tokens[self.position][2]
        operand = self.attribute()
        if operand is None or isinstance(operand, (bool, int, float)):
            return operand
        raise self._error(line, "a value, a number or none", str(operand))

    def named_attribute(self) -> tuple[str, Attribute]:
        name = self.expect("name")
        self.expect("punct", "=")
        return name, self.attribute()

    def attribute(self) -> Attribute:
        kind, text, line = self.tokens[self.position]
        self.position += 1
        if text == "[":
            return self.separated(self.attribute, "]")
        if kind == "string":
            self.position -= 1
            return self.string()
        if kind == "hole":
            return Hole(int(text[1:]))
        if kind == "number":
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        constants: dict[str, Attribute] = {
            "true": True,
            "false": False,
            "none": None,
            "inf": math.inf,
            "nan": math.nan,
            **_DTYPES,
        }
        if text in constants:
            return constants[text]
        raise self._error(line, "an attribute value", text)
