"""What every expansion of a composite shares: names, casts, and reduced axes brought to the end.

Input: a builder and the composite op. Output: primitives, the last of which define the op's own
results under their own names, so that no user of the composite changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import cast as typed

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Attribute, Op, Operand, Value, make_attributes
from rudagraph.ir.types import DType, TensorType


@dataclass
class Expansion:
    """Emits the primitives of one composite.

    `parts` is what a forward composite leaves for its derivative, under one of its results.
    """

    builder: GraphBuilder
    op: Op
    parts: dict[Value, tuple[Value, ...]] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Prefix of the names of intermediate values."""
        return self.op.results[0].name

    def one(self, suffix: str, opcode: str, *operands: Operand, **attributes: Attribute) -> Value:
        """A new intermediate value."""
        return self.builder.one(opcode, *operands, name=f"{self.stem}.{suffix}", **attributes)

    def define(
        self, result: Value, opcode: str, *operands: Operand, **attributes: Attribute
    ) -> Value:
        """The op whose result is the composite's own `result`."""
        canonical = make_attributes(**attributes)
        self.builder.add(Op(opcode, operands, (result,), canonical, self.op.location))
        return result

    # -- casts: arithmetic in the compute type, one rounding where the composite rounds

    def cast(self, value: Value, dtype: DType, suffix: str = "") -> Value:
        if value.type.dtype is dtype:
            return value
        short = value.name.rpartition(".")[2]
        return self.one(suffix or f"{short}.{dtype}", "cast", value, dtype=dtype)

    def wide(self, value: Value) -> Value:
        """The value in its compute type."""
        return self.cast(value, value.type.dtype.compute)

    def define_cast(self, result: Value, value: Value) -> Value:
        """Round `value`, just emitted, to the type of `result`, which it becomes."""
        last = self.builder.ops[-1]
        if last.results == (value,) and value.type == result.type:
            self.builder.ops[-1] = replace(last, results=(result,))
            return result
        return self.define(result, "cast", value, dtype=result.type.dtype)

    # -- shapes

    def reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.type.shape == shape:
            return value
        short = value.name.rpartition(".")[2]
        return self.one(f"{short}.shaped", "reshape", value, shape=shape)

    def define_reshape(self, result: Value, value: Value) -> Value:
        return self.define(result, "reshape", value, shape=result.type.shape)

    def row(self, opcode: str, value: Value, suffix: str) -> Value:
        """A reduction of the last axis that keeps it with extent 1."""
        return self.one(suffix, opcode, value, axes=(value.type.rank - 1,), keepdim=True)

    # -- attributes, typed

    def integer(self, name: str) -> int:
        return typed(int, self.op[name])

    def number(self, name: str) -> float:
        return float(typed(float, self.op[name]))

    def flags(self, name: str) -> tuple[bool, ...]:
        return typed(tuple[bool, ...], self.op[name])

    def value(self, index: int) -> Value:
        """Operand `index`, a tensor."""
        return typed(Value, self.op.operands[index])

    def optional(self, index: int) -> Value | None:
        operand = self.op.operands[index]
        return operand if isinstance(operand, Value) else None


def merged_tail(type: TensorType, axes: int) -> tuple[int, ...]:
    """The shape with its last `axes` axes made one."""
    lead = type.shape[: type.rank - axes]
    return (*lead, math.prod(type.shape[type.rank - axes :]))


def wider(left: DType, right: DType) -> DType:
    """The larger of two floating types of arithmetic."""
    return left if left.size >= right.size else right
