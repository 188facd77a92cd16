"""Says what a kernel computes, where it is something that has a name: norms, gates, losses.

    %y = fused(%x, %w) [kind="rows"] { ... }
becomes
    %y = fused(%x, %w) [form="rms_norm", kind="rows"] { ... }
Forms are found by structure in the graph, forward and backward, never by a model's class, so one
written by hand is found as one of PyTorch's is. Nothing computed changes: kernels are grown for any
graph alike, and the form is for whoever reads the IR, `explain()` or a kernel's source.

A pattern is an expression over opcodes. A name stands for one value wherever it occurs, `_` for
anything, a number for itself, and `(x := add(_, _))` names what a part matches. Operands of
commutative ops match in any order; casts and views between ops do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from rudagraph.ir.graph import Graph, Op, Operand, Value, make_attributes
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.text import print_graph

# Earlier rows first: the core of a longer form is not reported as a shorter one.
_SQUARES = "add(mean(mul({0}, {0})), _)"
_NORMAL = "mul({0}, rsqrt(" + _SQUARES + "))"
_ROOTED = "div({0}, sqrt(" + _SQUARES + "))"
FORMS: tuple[tuple[str, str], ...] = (
    # x̂ = (x - mean) / deviation; the mean may be corrected, so it is only known to be subtracted.
    (
        "residual_layer_norm",
        f"mul(sub((x := add(_, _)), m), rsqrt({_SQUARES.format('sub(x, _)')}))",
    ),
    ("residual_layer_norm", f"div(sub((x := add(_, _)), m), sqrt({_SQUARES.format('sub(x, _)')}))"),
    ("layer_norm", f"mul(sub(x, _), rsqrt({_SQUARES.format('sub(x, _)')}))"),
    ("layer_norm", f"div(sub(x, _), sqrt({_SQUARES.format('sub(x, _)')}))"),
    ("layer_norm", f"div(mul(_, sub(x, _)), sqrt({_SQUARES.format('sub(x, _)')}))"),
    ("residual_rms_norm", f"mul((x := add(_, _)), rsqrt({_SQUARES.format('x')}))"),
    ("residual_rms_norm", f"div((x := add(_, _)), sqrt({_SQUARES.format('x')}))"),
    ("rms_norm", _NORMAL.format("x")),
    ("rms_norm", _ROOTED.format("x")),
    # As our derivative has it, and as PyTorch's derivatives of the single ops have it.
    ("layer_norm_backward", "mul(sub(sub(g, mean(g)), mul(n, mean(mul(g, n)))), _)"),
    ("rms_norm_backward", "mul(sub(g, mul(n, mean(mul(g, n)))), _)"),
    ("rms_norm_backward", "mul(mul(sum(mul(_, _)), -0.5), mul(mul(r, r), r))"),
    ("cross_entropy", "sub(log(sum(exp(s))), sum(where(eq(iota(), _), s, 0)))"),
    ("cross_entropy_backward", "sub(exp(sub(_, _)), eq(iota(), _))"),
    ("log_softmax", "sub((s := sub(x, amax(x))), log(sum(exp(s))))"),
    ("softmax", "div((e := exp(sub(x, amax(x)))), sum(e))"),
    ("softmax_backward", "mul(sub(g, sum(mul(g, y))), y)"),
    ("rotary", "add(mul(_, _), mul(where(eq(iota(), _), neg(h), h), _))"),
    ("rotary_backward", "add(mul(_, _), where(eq(iota(), _), neg(h), h))"),
    ("rotary_backward", "add(mul(_, _), add(where(eq(iota(), _), neg(h), h), 0.0))"),
    ("gated_silu", "mul(silu(_), _)"),
    ("gated_gelu", "mul(gelu(_), _)"),
    ("dropout_residual", "add(_, where(bernoulli(_), _, 0))"),
    ("dropout", "where(bernoulli(_), _, 0)"),
    ("gelu_tanh", "mul(mul(x, 0.5), add(tanh(_), 1.0))"),
    ("bias_gelu", "gelu(add(_, _))"),
    ("gelu", "gelu(_)"),
    ("gelu_backward", "gelu_backward(_, _)"),
    ("silu", "silu(_)"),
    ("silu_backward", "silu_backward(_, _)"),
)


def recognise(graph: Graph) -> Graph:
    """The graph with the attribute `form` on each kernel that computes something known."""
    known: dict[str, tuple[str, ...]] = {}  # by the body's text: equal layers are looked at once
    ops = tuple(_named(op, known) for op in graph.ops)
    if ops == graph.ops:
        return graph
    return replace(graph, ops=ops)


def forms(body: Graph) -> tuple[str, ...]:
    """Names of the known forms in a kernel's body, in the order they are computed."""
    matcher = _Matcher(body)
    claimed: set[Value] = set()
    found: dict[int, str] = {}
    for name, pattern in FORMS:
        for position, op in enumerate(body.ops):
            if len(op.results) == 1 and op.results[0] not in claimed:
                match = matcher.find(op.results[0], _parsed(pattern))
                # The same deviation under another root is the same form, computed once more.
                if match is not None and not _again(op.results[0], match, claimed):
                    claimed |= match.values
                    found[position] = name
    return tuple(dict.fromkeys(found[position] for position in sorted(found)))


def _again(root: Value, match: _Match, claimed: set[Value]) -> bool:
    inside = match.values - {root}
    return bool(inside) and inside <= claimed


def _named(op: Op, known: dict[str, tuple[str, ...]]) -> Op:
    if op.body is None or op.get("form") is not None:
        return op
    text = print_graph(op.body)
    if text not in known:
        known[text] = forms(op.body)
    names = known[text]
    if not names:
        return op
    attributes = make_attributes(**dict(op.attributes), form=", ".join(names))
    return replace(op, attributes=attributes)


@cache
def _parsed(pattern: str) -> ast.expr:
    return ast.parse(pattern, mode="eval").body


@dataclass(frozen=True)
class _Match:
    """What names stand for so far, and the values that the pattern's own ops have made."""

    names: tuple[tuple[str, Operand], ...] = ()
    values: frozenset[Value] = frozenset()


class _Matcher:
    """Finds expressions in one body; where operands may change places, all orders are tried."""

    def __init__(self, body: Graph) -> None:
        self._producers = body.producers()

    def find(self, root: Value, expression: ast.expr) -> _Match | None:
        return next(self._match(root, expression, _Match()), None)

    def _match(self, operand: Operand, expression: ast.expr, so_far: _Match) -> Iterator[_Match]:
        match expression:
            case ast.Name(id="_"):
                yield so_far
            case ast.Name(id=name):
                value = self._seen_through(operand)
                if dict(so_far.names).get(name, value) == value:
                    yield replace(so_far, names=(*so_far.names, (name, value)))
            case ast.NamedExpr(target=target, value=part):
                for inner in self._match(operand, part, so_far):
                    yield from self._match(operand, target, inner)
            case ast.Constant() | ast.UnaryOp():
                if not isinstance(operand, Value) and operand == ast.literal_eval(expression):
                    yield so_far
            case ast.Call(func=ast.Name(id=opcode), args=parts):
                value = self._seen_through(operand)
                op = self._producers.get(value) if isinstance(value, Value) else None
                if op is not None and op.opcode == opcode and len(op.operands) == len(parts):
                    known = replace(so_far, values=so_far.values | set(op.results))
                    yield from self._in_each_order(op, parts, known)

    def _in_each_order(self, op: Op, parts: list[ast.expr], so_far: _Match) -> Iterator[_Match]:
        yield from self._match_all(op.operands, parts, so_far)
        if has(op, Tag.COMMUTATIVE):
            yield from self._match_all(op.operands[::-1], parts, so_far)

    def _match_all(
        self, operands: tuple[Operand, ...], parts: list[ast.expr], so_far: _Match
    ) -> Iterator[_Match]:
        if not parts:
            yield so_far
            return
        for inner in self._match(operands[0], parts[0], so_far):
            yield from self._match_all(operands[1:], parts[1:], inner)

    def _seen_through(self, operand: Operand) -> Operand:
        """The operand without the casts and views that lie over it."""
        while isinstance(operand, Value):
            op = self._producers.get(operand)
            if op is None or not (op.opcode == "cast" or has(op, Tag.VIEW)):
                break
            operand = op.operands[0]
        return operand
