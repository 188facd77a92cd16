"""The body of a fused op: ops of one kernel with names that equal layers share.

    layers.3.norm.y, layers.3.norm.y.square      ->   norm.y, norm.y.square
Input: the ops of a kernel, the ops that every kernel repeats for itself, the values others read.
Invariant: two groups that differ only in layer indices and counters give equal bodies, so the
kernel is generated and compiled once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rudagraph.ir.graph import Graph, Location, Op, Operand, Port, Role, Value

Inlined = Mapping[Value, Op]
_COUNTERS = re.compile(r"(_\d+)\.\d+(?=\.|$)")


def values_read(op: Op, inlined: Inlined) -> tuple[Value, ...]:
    """The values from outside that a kernel with this op reads, once each, in order."""
    found: dict[Value, None] = {}
    stack = list(reversed(op.inputs))
    while stack:
        value = stack.pop()
        source = inlined.get(value)
        if source is None:
            found[value] = None
        else:
            stack += reversed(source.inputs)
    return tuple(found)


def fused_op(parts: list[Op], inlined: Inlined, leaving: Iterable[Value]) -> Op:
    """One op that does what `parts` do, in order; `leaving` are its results."""
    ops = _with_inlined(parts, inlined)
    made = {value for op in ops for value in op.results}
    operands = list(dict.fromkeys(v for op in ops for v in op.inputs if v not in made))
    outside = set(leaving)
    results = [value for op in ops for value in op.results if value in outside]
    renamer = _Renamer()
    inputs = [Port(renamer.rename(value), Role.OPERAND) for value in operands]
    body_ops = [renamer.op(op) for op in ops]
    outputs = [Port(renamer.names[value], Role.RESULT) for value in results]
    body = Graph("body", tuple(inputs), tuple(body_ops), tuple(outputs))
    attributes = (("kind", "rows"),)
    return Op("fused", tuple(operands), tuple(results), attributes, parts[0].location, body)


def _with_inlined(parts: list[Op], inlined: Inlined) -> list[Op]:
    """The parts with what they repeat in front of the first reader."""
    members = {value for op in parts for value in op.results}
    done: set[Value] = set()
    ops: list[Op] = []

    def add(op: Op) -> None:
        if op.results[0] in done:
            return
        done.update(op.results)
        for value in op.inputs:
            if value in inlined and value not in members:
                add(inlined[value])
        ops.append(op)

    for part in parts:
        add(part)
    return ops


@dataclass
class _Renamer:
    """Gives body values short names, unique in order."""

    names: dict[Value, Value] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def rename(self, value: Value, opcode: str = "value") -> Value:
        base = canonical_name(value.name, opcode)
        count = self.counts.get(base, 0) + 1
        self.counts[base] = count
        name = base if count == 1 else f"{base}_{count}"
        renamed = Value(name, value.type)
        self.names[value] = renamed
        return renamed

    def op(self, op: Op) -> Op:
        operands: tuple[Operand, ...] = tuple(
            self.names[operand] if isinstance(operand, Value) else operand
            for operand in op.operands
        )
        results = tuple(self.rename(value, op.opcode) for value in op.results)
        return Op(op.opcode, operands, results, op.attributes, canonical_location(op.location))


def canonical_name(name: str, otherwise: str = "value", most: int = 3) -> str:
    """What follows the last index of a module path, without counters: so many parts at most.

    A gradient stays one, and has a part more: grad.layers.3.mlp.up_2 is grad.mlp.up. Where nothing
    but an index is left, as in a Sequential, it is `otherwise`.
    """
    if name.startswith("grad."):
        return f"grad.{canonical_name(name.removeprefix('grad.'), otherwise, most + 1)}"
    # A digit after a counter is one more counter, not an index: add_2.2.turned is add.turned.
    parts = _COUNTERS.sub(r"\1", name).split(".")
    parts = [_without_counter(part) for part in parts]
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    for index in reversed(range(len(parts))):
        if parts[index].isdigit():
            parts = parts[index + 1 :]
            break
    return ".".join(part for part in parts[-most:] if part) or otherwise


@functools.lru_cache(maxsize=1 << 14)
def _without_counter(part: str) -> str:
    return re.sub(r"_\d+$", "", part)


@functools.lru_cache(maxsize=1 << 14)
def canonical_location(location: Location) -> Location:
    """The same for equal layers: indices of the module path are stars."""
    module = ".".join("*" if part.isdigit() else part for part in location.module.split("."))
    return replace(location, module=module)
