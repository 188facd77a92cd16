"""Rules of simplify for arithmetic: neutral elements, inverse pairs, powers, casts, choices.

Each rule looks at one op and the producers of its operands. The result must have the same bits:
x + 0.0 stays for floats, because it turns -0.0 into 0.0, and so does x * 0, because of NaN.
"""

from __future__ import annotations

import math
from typing import cast as typed

from rudagraph.ir.graph import Number, Op, Operand, Value
from rudagraph.ir.rewrite import Replacement, Rewriter, Rule
from rudagraph.ir.types import DType

_FRACTION_BITS = {DType.F16: 10, DType.BF16: 7, DType.F32: 23, DType.F64: 52}
_EXPONENT_BITS = {DType.F16: 5, DType.BF16: 8, DType.F32: 8, DType.F64: 11}


def _is_number(operand: Operand, number: float) -> bool:
    """Whether the operand is this number, the sign of a zero included."""
    if isinstance(operand, Value) or operand is None:
        return False
    return operand == number and math.copysign(1, operand) == math.copysign(1, number)


def _neutral(rewriter: Rewriter, op: Op, neutral: float) -> Operand:
    """The other operand, in the result's shape, if one operand holds such a number everywhere.

    A constant tensor may give the result its shape and nothing else: then the other is expanded.
    """
    for x, number in (op.operands, op.operands[::-1]):
        if isinstance(x, Value) and _holds_number(rewriter, number, neutral):
            return _as_result(rewriter, op, x)
    return None


def _holds_number(rewriter: Rewriter, operand: Operand, number: float) -> bool:
    constant = rewriter.producer(operand, "full")
    return _is_number(operand if constant is None else typed(Number, constant["value"]), number)


def _add(rewriter: Rewriter, op: Op) -> Replacement:
    """x + 0 for integers; x + -0.0 for floats, which keeps both zeros."""
    return _neutral(rewriter, op, -0.0 if op.result.type.dtype.is_floating else 0)


def _sub(rewriter: Rewriter, op: Op) -> Replacement:
    """x - 0.0 keeps -0.0; x - -0.0 does not."""
    x, number = op.operands
    if isinstance(x, Value) and _holds_number(rewriter, number, 0):
        return _as_result(rewriter, op, x)
    return None


def _mul(rewriter: Rewriter, op: Op) -> Replacement:
    if (same := _neutral(rewriter, op, 1)) is not None:
        return same
    if op.result.type.dtype in (DType.U8, DType.B8):
        return None
    negated = _neutral(rewriter, op, -1)
    return None if negated is None else rewriter.one("neg", negated)


def _div(rewriter: Rewriter, op: Op) -> Replacement:
    """A power of two divides as its reciprocal multiplies: both round the same real number."""
    x, number = op.operands
    if not isinstance(x, Value) or isinstance(number, Value) or number is None or number == 0:
        return None
    mantissa, exponent = math.frexp(number)
    if abs(mantissa) == 0.5 and abs(exponent) < 100:
        return rewriter.one("mul", x, 1 / number)
    return None


def _pow(rewriter: Rewriter, op: Op) -> Replacement:
    """Small powers, as PyTorch computes them where the exponent is a number."""
    x, exponent = op.operands
    if not isinstance(x, Value) or isinstance(exponent, Value) or exponent is None:
        return None
    if exponent == 1:
        return x
    if exponent == 2:
        return rewriter.one("mul", x, x)
    if not x.type.dtype.is_floating:
        return None
    if exponent == 3 and x.type.dtype.compute is x.type.dtype:  # 16 bits would round in between
        return rewriter.one("mul", rewriter.one("mul", x, x, name=f"{rewriter.name}.square"), x)
    roots = {0.5: "sqrt", -1.0: "reciprocal", -0.5: "rsqrt"}
    return rewriter.one(roots[exponent], x) if exponent in roots else None


def _undo(rewriter: Rewriter, op: Op) -> Replacement:
    """f(f(x)) = x: neg, and the complements of b8 and integers."""
    (x,) = op.operands
    inner = rewriter.producer(x, op.opcode)
    if inner is None or inner.operands[0] is None:
        return None
    source = typed(Value, inner.operands[0])
    return source if source.type == op.result.type else None


def _once(rewriter: Rewriter, op: Op) -> Replacement:
    """f(f(x)) = f(x): abs, relu, roundings, sign."""
    return op.operands[0] if rewriter.producer(op.operands[0], op.opcode) else None


def _extreme(rewriter: Rewriter, op: Op) -> Replacement:
    """An infinity that never wins, or an operand against itself; NaN propagates either way."""
    if op.operands[0] == op.operands[1] and isinstance(op.operands[0], Value):
        return op.operands[0]
    return _neutral(rewriter, op, -math.inf if op.opcode == "maximum" else math.inf)


def _both(rewriter: Rewriter, op: Op) -> Replacement:
    """x & true and x | false on b8."""
    if any(value.type.dtype is not DType.B8 for value in op.inputs):
        return None
    return _neutral(rewriter, op, 1 if op.opcode.endswith("_and") else 0)


# -- casts


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide is narrow or narrow is DType.B8:
        return True
    if wide is DType.B8:
        return False
    if narrow.is_floating:
        return (
            wide.is_floating
            and _FRACTION_BITS[wide] >= _FRACTION_BITS[narrow]
            and _EXPONENT_BITS[wide] >= _EXPONENT_BITS[narrow]
        )
    bits = 8 * narrow.size - (narrow is not DType.U8)
    if wide.is_floating:
        return bits <= _FRACTION_BITS[wide] + 1
    return wide is not DType.U8 and bits <= 8 * wide.size - 1


def _cast(rewriter: Rewriter, op: Op) -> Replacement:
    """A cast to the same type goes; two casts become one where the first loses nothing.

    From floats to integers what is out of range is anyone's guess, and a guess may depend on the
    type it starts from: such a second cast keeps its source.
    """
    (x,) = op.inputs
    target = op.result.type.dtype
    if x.type.dtype is target:
        return x
    inner = rewriter.producer(x, "cast")
    if inner is None:
        return None
    (source,) = inner.inputs
    if not _holds(x.type.dtype, source.type.dtype):
        return None
    if source.type.dtype is target:
        return source
    guesses = x.type.dtype.is_floating and target.is_integer
    return None if guesses else rewriter.one("cast", source, dtype=target)


# -- choices


def _where(rewriter: Rewriter, op: Op) -> Replacement:
    condition, chosen, other = op.operands
    constant = rewriter.producer(condition, "full")
    if constant is not None:
        return _as_result(rewriter, op, chosen if constant["value"] else other)
    if isinstance(chosen, Value) and chosen == other and chosen.type == op.result.type:
        return chosen
    inverted = rewriter.producer(condition, "logical_not")
    if inverted is not None and inverted.inputs[0].type.dtype is DType.B8:
        return rewriter.like(op, inverted.operands[0], other, chosen)
    return None


def _as_result(rewriter: Rewriter, op: Op, branch: Operand) -> Operand:
    """The branch taken, in the shape of the result; a number becomes a tensor."""
    if not isinstance(branch, Value) or branch.type == op.result.type:
        return branch
    return rewriter.one("expand", branch, shape=op.result.type.shape)


# -- random ops that are certain


def _bernoulli(rewriter: Rewriter, op: Op) -> Replacement:
    probability = op["probability"]
    return probability == 0 if probability in (0, 1) else None


def _dropout(rewriter: Rewriter, op: Op) -> Replacement:
    if op["probability"] == 0:
        return op.operands[0]
    return 0.0 if op["probability"] == 1 else None


ARITHMETIC: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "maximum": _extreme,
    "minimum": _extreme,
    **dict.fromkeys(("neg", "bitwise_not", "logical_not"), _undo),
    **dict.fromkeys(("abs", "relu", "floor", "ceil", "trunc", "round", "sign"), _once),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "logical_and", "logical_or"), _both),
    "cast": _cast,
    "where": _where,
    "bernoulli": _bernoulli,
    "dropout": _dropout,
}
