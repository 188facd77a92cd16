"""Equal layers in a row: how their names tell them apart, and where a sequence repeats with them.

    layers.2.norm = rms_norm(layers.1.mlp, layers.2.norm.weight)      layers.3.norm is the same one
    layers.3.norm = rms_norm(layers.2.mlp, layers.3.norm.weight)      layer further on

Names come from module paths, so what belongs to the next layer is called the same but for an
index. Input: ops or ports in order. Output: where they repeat, and any of them as it is some layers
further on. Invariant: nothing is taken for a repeat that differs in more than its layer's index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rudagraph.ir.graph import (
    Op,
    Operand,
    Port,
    Value,
    make_attributes,
)
from rudagraph.ir.layers import MOST_KINDS, LayerNames
from rudagraph.ir.text import print_graph

# Two or three that are alike can be neighbours by chance, in a row of several kinds.
_ENOUGH = 4


@dataclass(frozen=True, slots=True)
class Run:
    """`reach` positions from `start` on: `length` further on is the same, `step` layers on."""

    start: int
    length: int
    step: int
    reach: int

    @property
    def repeats(self) -> int:
        """How often all of `length` positions come."""
        return self.reach // self.length + 1

    def of(self, step: int) -> Run | None:
        """The same run with so many layers as one repeat; None where it has no two of them."""
        times, rest = divmod(step, abs(self.step))
        reach = self.reach - (times - 1) * self.length
        if rest or reach < times * self.length:
            return None
        return Run(self.start, times * self.length, times * self.step, reach)


class Layers(LayerNames):
    """The layers `prefix`.0, `prefix`.1 … in a graph whose ops are these."""

    def __init__(self, prefix: str, ops: Sequence[Op]) -> None:
        super().__init__(prefix)
        self.streams = self._streams_of_each(ops)
        # The layer that draws a random stream, None where that belongs to no layer; forward tells,
        # as backward has ops named after the layer before.
        self.drawn_by: dict[int, int | None] = {}
        for op in ops:
            if isinstance(stream := op.get("stream"), int):
                self.drawn_by.setdefault(stream, self.index(op.results[0].name))

    def _streams_of_each(self, ops: Sequence[Op]) -> int:
        """From how many random streams a layer draws."""
        first: dict[str, tuple[int, int]] = {}
        for op in ops:
            parts, stream = self.split(op.results[0].name), op.get("stream")
            if parts is None or not isinstance(stream, int):
                continue
            before, index, after = parts
            other, known = first.setdefault(f"{before}*{after}", (index, stream))
            if index != other:
                return (stream - known) // (index - other)
        return 0

    # -- the same, some layers further on

    def value(self, value: Value, layers: int) -> Value:
        return Value(self.later(value.name, layers), value.type)

    def port(self, port: Port, layers: int) -> Port:
        return Port(self.value(port.value, layers), port.role, self.later(port.target, layers))

    def drawing(self, op: Op, streams: Callable[[int], int]) -> Op:
        """The op with other numbers for the random streams that it, or its body, draws from."""
        if not self.streams:
            return op
        stream = op.get("stream")
        if isinstance(stream, int):
            named = {**dict(op.attributes), "stream": streams(stream)}
            return replace(op, attributes=make_attributes(**named))
        if op.body is None or all(inner.get("stream") is None for inner in op.body.ops):
            return op
        body = [self.drawing(inner, streams) for inner in op.body.ops]
        return replace(op, body=op.body.with_ops(tuple(body)))

    # -- what repeats

    def upwards(self, items: Sequence[Op | Port]) -> Run | None:
        """The longest run of two repeats or more in which layers follow one another."""
        return self._run(items, 1)

    def downwards(self, items: Sequence[Op | Port]) -> Run | None:
        """The longest run in which each layer comes after the next one, as in backward."""
        return self._run(items, -1)

    def _run(self, items: Sequence[Op | Port], direction: int) -> Run | None:
        places: dict[str, list[tuple[int, int]]] = {}  # position and layer of what is alike
        for position, item in enumerate(items):
            parts = self.split(_name(item))
            if parts is not None:
                places.setdefault(f"{parts[0]}*{parts[2]}", []).append((position, parts[1]))
        best: Run | None = None
        for kinds in range(1, MOST_KINDS + 1):
            distances = Counter(
                (there - here, layer - other)
                for found in places.values()
                for (here, other), (there, layer) in zip(found, found[kinds:], strict=False)
                if (layer - other) * direction > 0
            )
            for (length, step), _ in distances.most_common(1):
                run = self._longest(items, length, step)
                if run.reach >= length and (best is None or run.reach > best.reach):
                    best = run
            if best is not None and best.repeats >= _ENOUGH:
                break
        return best

    def _longest(self, items: Sequence[Op | Port], length: int, step: int) -> Run:
        best, start = Run(0, length, step, 0), 0
        for position in range(len(items) - length):
            if not self._follows(items[position], items[position + length], step):
                start = position + 1
            elif position + 1 - start > best.reach:
                best = Run(start, length, step, position + 1 - start)
        return best

    def _follows(self, one: Op | Port, other: Op | Port, step: int) -> bool:
        """Whether the other is the same further on; both may read what all layers read."""
        if isinstance(one, Port) or isinstance(other, Port):
            return isinstance(one, Port) and self.port(one, step) == other
        if (one.opcode, len(one.results)) != (other.opcode, len(other.results)):
            return False
        return (
            all(self._is_later(a, b, step) for a, b in zip(one.results, other.results, strict=True))
            and len(one.operands) == len(other.operands)
            and all(
                b is a or self._is_later(a, b, step)
                for a, b in zip(one.operands, other.operands, strict=True)
            )
            and one.location.line == other.location.line
            and self.later(one.location.module, step) == other.location.module
            and _content(self.drawing(one, lambda stream: stream + step * self.streams))
            == _content(other)
        )

    def _is_later(self, one: Operand, other: Operand, step: int) -> bool:
        if not isinstance(one, Value) or not isinstance(other, Value):
            return repr(one) == repr(other)
        here, there = self.split(one.name), self.split(other.name)
        if here is None or there is None:
            return one is other
        (before, index, after), (before_other, other_index, after_other) = here, there
        return (
            other_index - index == step
            and (before, after) == (before_other, after_other)
            and one.type == other.type
        )

    def read_by_all(self, ops: Sequence[Op], run: Run) -> set[Value]:
        """What every repeat reads though it belongs to one layer, and what that is made from."""
        stack: list[Value] = []
        for position in range(run.start, run.start + run.length):
            both = zip(ops[position].operands, ops[position + run.length].operands, strict=True)
            stack += [a for a, b in both if isinstance(a, Value) and a is b]
        makers = {value: op for op in ops[: run.start] for value in op.results}
        found: set[Value] = set()
        while stack:
            value = stack.pop()
            if value not in found and self.index(value.name) is not None:
                found.add(value)
                stack += makers[value].inputs if value in makers else ()
        return found


def _content(op: Op) -> tuple[str, str]:
    """As text, in which 1 and 1.0 differ."""
    return repr(op.attributes), "" if op.body is None else print_graph(op.body)


def _name(item: Op | Port) -> str:
    return item.value.name if isinstance(item, Port) else item.results[0].name
