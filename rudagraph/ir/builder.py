"""GraphBuilder: emits ops with inferred types and unique, readable names.

Input: operands already defined in the graph being built. Output: a Graph in definition order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rudagraph.ir.graph import (
    Attribute,
    Graph,
    Location,
    Op,
    Operand,
    Port,
    Role,
    Value,
    make_attributes,
)
from rudagraph.ir.infer import infer
from rudagraph.ir.types import TensorType


@dataclass
class GraphBuilder:
    """Collects inputs, ops and outputs; `finish` gives the graph."""

    name: str
    inputs: list[Port] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    location: Location = field(default_factory=Location)
    _taken: set[str] = field(default_factory=set)
    _counts: dict[str, int] = field(default_factory=dict)  # the last number given to each name

    def reserve(self, names: Iterable[str]) -> None:
        """Keep these names for values that are added as they are."""
        self._taken.update(names)

    def fresh(self, hint: str, type: TensorType) -> Value:
        """A new value whose name is `hint`, made unique by a number where it is taken."""
        base = cleaned(hint)
        name, count = base, self._counts.get(base, 1)
        if count > 1:  # all smaller numbers are taken, since names never become free
            name = _numbered(base, count)
        while name in self._taken:
            count += 1
            name = _numbered(base, count)
        self._counts[base] = count
        self._taken.add(name)
        return Value(name, type)

    def input(self, hint: str, type: TensorType, role: Role, target: str = "") -> Value:
        value = self.fresh(hint, type)
        self.inputs.append(Port(value, role, target))
        return value

    def output(self, value: Value, role: Role, target: str = "") -> None:
        self.outputs.append(Port(value, role, target))

    def add(self, op: Op) -> None:
        """Append an op whose results are already named."""
        for value in op.results:
            self._taken.add(value.name)
        self.ops.append(op)

    def emit(
        self,
        opcode: str,
        *operands: Operand,
        name: str | Sequence[str] = "",
        types: tuple[TensorType, ...] | None = None,
        body: Graph | None = None,
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Append an op; result types are inferred unless given.

        Results are named after `name`, or each after its own.
        """
        return self._append(opcode, operands, name, types, body, make_attributes(**attributes))

    def one(
        self, opcode: str, *operands: Operand, name: str = "", **attributes: Attribute
    ) -> Value:
        """`emit` for an op with a single result."""
        canonical = make_attributes(**attributes)
        (value,) = self._append(opcode, operands, name, None, None, canonical)
        return value

    def _append(
        self,
        opcode: str,
        operands: tuple[Operand, ...],
        name: str | Sequence[str],
        types: tuple[TensorType, ...] | None,
        body: Graph | None,
        attributes: tuple[tuple[str, Attribute], ...],
    ) -> tuple[Value, ...]:
        if types is None:
            types = infer(opcode, operands, dict(attributes), body)
        names = [name] * len(types) if isinstance(name, str) else name
        results = tuple(
            self.fresh(hint or opcode, type) for hint, type in zip(names, types, strict=True)
        )
        self.ops.append(Op(opcode, operands, results, attributes, self.location, body))
        return results

    def finish(self) -> Graph:
        return Graph(self.name, tuple(self.inputs), tuple(self.ops), tuple(self.outputs))


@functools.lru_cache(maxsize=1 << 14)
def cleaned(hint: str) -> str:
    """The hint as a name: what no name may hold becomes an underscore."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", hint).strip("_.") or "value"


def _numbered(base: str, count: int) -> str:
    return f"{base}.{count}" if base[-1:].isdigit() else f"{base}_{count}"
