"""Repeated key and value heads become grouped heads, forward and backward together.

    k5 = reshape(k) [B,G,1,T,D];  e = expand(k5) [B,G,R,T,D];  r = reshape(e) [B,G*R,T,D]
    o, l = attention(q, r, s, m)                          ->  attention(q, k, v, m)
    dq, dr, ds = attention_backward(g, q, r, s, m, o, l)  ->  attention_backward(g, q, k, v, ...)
    d5 = reshape(dr) [B,G,R,T,D];  dk = sum(d5) [axes=[2]] ->  its dk, without the sum
Where any part of this differs, the attention is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rudagraph.capture.cleanup import remove_dead
from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Op, Operand, Value
from rudagraph.ir.types import TensorType


@dataclass(frozen=True)
class _Repeat:
    """A [B,G*R,T,D] value that repeats each head of the [B,G,1,T,D] value `source` R times."""

    source: Value
    times: int

    @property
    def type(self) -> TensorType:
        batch, groups, _, length, width = self.source.type.shape
        return self.source.type.with_shape((batch, groups, length, width))


class _Graph:
    """Producers, users and outputs of the graph being rewritten."""

    def __init__(self, graph: Graph) -> None:
        self.producers = graph.producers()
        self.users = graph.users()
        self.outputs = graph.output_values()
        self.names = GraphBuilder(graph.name)
        self.names.reserve(value.name for value in graph.values())

    def repeat(self, value: Operand) -> _Repeat | None:
        """How a value repeats heads, if it does."""
        if not isinstance(value, Value) or value.type.rank != 4:
            return None
        flat = self._producer(value, "reshape")
        spread = self._producer(flat.inputs[0], "expand") if flat else None
        if spread is None or spread.result.type.rank != 5:
            return None
        source, result = spread.inputs[0], spread.result
        batch, groups, times, length, width = result.type.shape
        fits = source.type.shape == (batch, groups, 1, length, width)
        fits = fits and value.type.shape == (batch, groups * times, length, width)
        return _Repeat(source, times) if fits and times > 1 else None

    def _producer(self, value: Value, opcode: str) -> Op | None:
        op = self.producers.get(value)
        return op if op is not None and op.opcode == opcode else None

    def summed(self, gradient: Value, repeat: _Repeat) -> Op | None:
        """The sum over the repeats of a gradient, where nothing else reads it."""
        apart = self._only_user(gradient, "reshape")
        total = self._only_user(apart.result, "sum") if apart else None
        if apart is None or total is None:
            return None
        batch, groups, _, length, width = repeat.source.type.shape
        fits = apart.result.type.shape == (batch, groups, repeat.times, length, width)
        fits = fits and total["axes"] == (2,) and total.result.type.dtype == gradient.type.dtype
        return total if fits else None

    def _only_user(self, value: Value, opcode: str) -> Op | None:
        users = self.users[value]
        if len(users) != 1 or value in self.outputs or users[0].opcode != opcode:
            return None
        return users[0]


def group_heads(graph: Graph) -> Graph:
    """The graph with grouped heads where heads were repeated."""
    view = _Graph(graph)
    replaced: dict[int, list[Op]] = {}
    for op in graph.ops:
        if op.opcode == "attention":
            replaced.update(_rewrite(view, op))
    if not replaced:
        return graph
    ops = [new for op in graph.ops for new in replaced.get(id(op), [op])]
    return remove_dead(graph.with_ops(tuple(ops)))


def _rewrite(view: _Graph, op: Op) -> dict[int, list[Op]]:
    """Ops to put in place of others, by identity; empty where the pattern does not hold."""
    query, key, value, mask = op.operands
    key_repeat, value_repeat = view.repeat(key), view.repeat(value)
    if key_repeat is None or value_repeat is None or key_repeat.times != value_repeat.times:
        return {}
    repeats = (key_repeat, value_repeat)
    grouped = [
        view.names.fresh(f"{op.results[0].name}.{name}", repeat.type)
        for name, repeat in zip(("key", "value"), repeats, strict=True)
    ]
    replaced: dict[int, list[Op]] = {}
    for backward in view.users[op.results[0]]:
        if backward.opcode != "attention_backward":
            continue
        if backward.operands[2:4] != (key, value):
            return {}
        rewritten = _rewrite_backward(view, backward, grouped, repeats)
        if rewritten is None:
            return {}
        replaced |= rewritten
    views = [
        Op("reshape", (repeat.source,), (new,), (("shape", new.type.shape),), op.location)
        for repeat, new in zip(repeats, grouped, strict=True)
    ]
    replaced[id(op)] = [*views, replace(op, operands=(query, *grouped, mask))]
    return replaced


def _rewrite_backward(
    view: _Graph, op: Op, grouped: list[Value], repeats: tuple[_Repeat, _Repeat]
) -> dict[int, list[Op]] | None:
    replaced: dict[int, list[Op]] = {}
    results = [op.results[0]]
    for gradient, repeat, new in zip(op.results[1:], repeats, grouped, strict=True):
        result = Value(gradient.name, new.type)
        results.append(result)
        if not view.users[gradient] and gradient not in view.outputs:
            continue
        total = view.summed(gradient, repeat)
        if total is None:
            return None
        shape = total.result.type.shape
        replaced[id(total)] = [
            Op("reshape", (result,), total.results, (("shape", shape),), total.location)
        ]
        replaced[id(view.users[gradient][0])] = []
    operands = (*op.operands[:2], *grouped, *op.operands[4:])
    replaced[id(op)] = [replace(op, operands=operands, results=tuple(results))]
    return replaced
