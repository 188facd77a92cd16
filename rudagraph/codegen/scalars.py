"""Register text of every op a fused body may hold: the table's expressions, creation, folds.

Input: an op and the names of its operands. Output: an expression in the result's register type.
What depends on the loop around it (an element's index, a random word) comes in as text.
"""

from __future__ import annotations

import math

from rudagraph.codegen import expressions
from rudagraph.codegen.expressions import ROUNDED, accumulator_dtype, convert, literal
from rudagraph.ir.graph import Op
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.random import threshold
from rudagraph.ir.types import DType


def register_text(op: Op, operands: list[str], place: str) -> str:
    """The op's value before rounding; `place` is an iota's index or a bernoulli's word."""
    if has(op, Tag.REDUCTION):  # of one element, which it returns
        return convert(operands[0], op.inputs[0].type.dtype, op.result.type.dtype)
    match op.opcode:
        case "full":
            return _full(op)
        case "iota":
            return _iota(op, place)
        case "bernoulli":
            return _bernoulli(op, place)
    return expressions.expression(op, operands)


def needs_rounding(op: Op) -> bool:
    """Whether `register_text` may give what the result's 16-bit type cannot hold."""
    if op.result.type.dtype not in ROUNDED:
        return False
    if has(op, Tag.REDUCTION):
        return op.inputs[0].type.dtype is not op.result.type.dtype
    if op.opcode in ("full", "iota"):
        return op.opcode == "iota"
    return expressions.needs_rounding(op)


def finished(op: Op, accumulator: str) -> str:
    """The result of a reduction from its accumulator, before rounding."""
    dtype = accumulator_dtype(op)
    if op.opcode == "mean":
        count = op.inputs[0].type.numel // max(op.result.type.numel, 1)
        if op.result.type.numel == 0:
            count = math.prod(op.inputs[0].type.shape[axis] for axis in reduced_axes(op))
        accumulator = f"div({accumulator}, {literal(count, dtype)})"
    return convert(accumulator, dtype, op.result.type.dtype)


def folds_exactly(op: Op) -> bool:
    """Whether a reduction's finished value is one its 16-bit type holds."""
    return op.opcode in ("amax", "amin") and op.inputs[0].type.dtype is op.result.type.dtype


def reduced_axes(op: Op) -> tuple[int, ...]:
    axes = op["axes"]
    assert isinstance(axes, tuple)
    return tuple(axis for axis in axes if isinstance(axis, int))


def int_of(op: Op, name: str) -> int:
    """An integer attribute."""
    value = op[name]
    assert isinstance(value, int)
    return value


def _full(op: Op) -> str:
    value, dtype = op["value"], op.result.type.dtype
    assert isinstance(value, (bool, int, float))
    return literal(expressions.round_number(value, dtype) if dtype in ROUNDED else value, dtype)


def _iota(op: Op, index: str) -> str:
    """In i64 or f64 whatever the result's type: an index is exact before it rounds."""
    start, step, dtype = op["start"], op["step"], op.result.type.dtype
    assert isinstance(start, (int, float)) and isinstance(step, (int, float))
    if (start, step) == (0, 1):
        return f"{expressions.REGISTER[dtype]}({index})"
    wide = DType.F64 if dtype.is_floating else DType.I64
    text = f"{expressions.REGISTER[wide]}({index})"
    if step != 1:
        text = f"mul({text}, {literal(step, wide)})"
    if start != 0:
        text = f"add({text}, {literal(start, wide)})"
    return convert(text, wide, dtype)


def _bernoulli(op: Op, word: str) -> str:
    """True where the word is at least the threshold, which may be one more than any word."""
    probability, bits = op["probability"], op["bits"]
    assert isinstance(probability, (int, float)) and isinstance(bits, int)
    least = threshold(probability, bits)
    if bits == 16:
        return f"ge({word}, int32({least}))"
    return "False" if least == 1 << 32 else f"ge({word}, uint32({least}))"
