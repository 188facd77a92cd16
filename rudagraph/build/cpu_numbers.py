"""Arithmetic, casts, comparisons and selection of the kernel language.

Both arguments of a binary operation are of one kind, which is the result's: nothing widens, and
integers wrap. Division by an integer zero has a defined result (it cannot raise from a kernel).
Invariant: only the `accumulate_` operations may be reordered by the compiler.
"""

from __future__ import annotations

from llvmlite import ir

from rudagraph.build.cpu_emit import (
    B8,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    KINDS,
    NUMBERS,
    U8,
    U32,
    U64,
    Kind,
    Operation,
    Scalar,
    declare,
    exactly,
    operation,
    predicate,
    same,
    select,
)
from rudagraph.build.cpu_math import _libm

_FLOATS = (F32, F64)
_INTEGERS = (I64, I32, I16, I8, U8, U32, U64)
_ALL = (*NUMBERS, U32, U64, B8)


# ---- casts, which are also the constructors of literals: float32(0.5), int64(7)


def _cast(kind: Kind, name: str) -> Operation:
    def emit(x: Scalar) -> Scalar:
        return convert(x, kind)

    emit.__name__ = name
    emit.__doc__ = f"Any number as {kind}, as PyTorch casts."
    return operation(exactly(kind, KINDS), small=True)(emit)


def convert(x: Scalar, kind: Kind) -> Scalar:
    """x as another kind: floats truncate towards zero, integers wrap, b8 is "not zero"."""
    if x.kind is kind:
        return x
    if kind is B8:
        return x.differs(0)
    if x.kind.is_floating and kind.is_floating:
        return x.instruction("fpext" if kind.bits > x.kind.bits else "fptrunc", kind)
    if kind.is_floating:
        return x.instruction("sitofp" if x.kind.is_signed else "uitofp", kind)
    if x.kind.is_floating:
        return _to_integer(x, kind)
    if kind.bits == x.kind.bits:
        return Scalar(x.builder, x.value, kind)
    if kind.bits < x.kind.bits:
        return x.instruction("trunc", kind)
    return x.instruction("sext" if x.kind.is_signed else "zext", kind)


def _to_integer(x: Scalar, kind: Kind) -> Scalar:
    """Saturates at 32 or 64 bits (NaN is 0), then wraps: no number is undefined behaviour."""
    wide = I32 if kind.bits < 32 else I64 if kind is U32 else kind
    source, target = f"f{x.kind.bits}", f"i{wide.bits}"
    direction = "si" if wide.is_signed else "ui"
    name = f"llvm.fpto{direction}.sat.{target}.{source}"
    function = declare(x.builder.module, name, ir.FunctionType(wide.llvm, [x.kind.llvm]))
    return convert(Scalar(x.builder, x.builder.call(function, [x.value]), wide), kind)


float32 = _cast(F32, "float32")
float64 = _cast(F64, "float64")
int64 = _cast(I64, "int64")
int32 = _cast(I32, "int32")
int16 = _cast(I16, "int16")
int8 = _cast(I8, "int8")
uint8 = _cast(U8, "uint8")
uint32 = _cast(U32, "uint32")
uint64 = _cast(U64, "uint64")
boolean = _cast(B8, "boolean")


# ---- arithmetic


@operation(same(*_ALL), small=True)
def add(x: Scalar, y: Scalar) -> Scalar:
    """x + y; on b8 "or"."""
    return x | y if x.kind is B8 else x + y


@operation(same(*NUMBERS, U32, U64), small=True)
def sub(x: Scalar, y: Scalar) -> Scalar:
    """x - y."""
    return x - y


@operation(same(*_ALL), small=True)
def mul(x: Scalar, y: Scalar) -> Scalar:
    """x * y; on b8 "and"."""
    return x & y if x.kind is B8 else x * y


@operation(same(*_FLOATS), small=True)
def div(x: Scalar, y: Scalar) -> Scalar:
    """x / y, floating only; division by zero gives infinity or NaN."""
    return x / y


@operation(same(*NUMBERS), small=True)
def neg(x: Scalar) -> Scalar:
    """-x."""
    return -x


@operation(same(*NUMBERS), small=True)
def abs(x: Scalar) -> Scalar:
    """|x|; the smallest integer wraps to itself."""
    if x.kind.is_floating:
        return x.intrinsic("fabs")
    return select(x < 0, -x, x) if x.kind.is_signed else x


@operation(same(*NUMBERS), small=True)
def sign(x: Scalar) -> Scalar:
    """-1, 0 or 1 of the same kind; 0 for NaN."""
    positive = select(x > 0, x.constant(1), 0)
    return positive - select(x < 0, x.constant(1), 0)


@operation(same(*NUMBERS), small=True)
def relu(x: Scalar) -> Scalar:
    """The larger of x and 0; NaN stays NaN."""
    return select(x < 0, x.constant(0), x)


@operation(same(*_ALL), small=True)
def maximum(x: Scalar, y: Scalar) -> Scalar:
    """The larger; NaN if either is NaN."""
    return _extreme(x, y, "maximum", ">")


@operation(same(*_ALL), small=True)
def minimum(x: Scalar, y: Scalar) -> Scalar:
    """The smaller; NaN if either is NaN."""
    return _extreme(x, y, "minimum", "<")


def _extreme(x: Scalar, y: Scalar, name: str, better: str) -> Scalar:
    if x.kind is B8:
        return x | y if better == ">" else x & y
    if x.kind.is_floating:
        return x.intrinsic(name, y)
    return select(x.compare(better, y), x, y)


# ---- accumulation: the only operations whose order the compiler may change


@operation(same(*NUMBERS), small=True)
def accumulate_add(total: Scalar, value: Scalar) -> Scalar:
    """total + value, in whatever order is fastest: a sum in a loop vectorises."""
    if not total.kind.is_floating:
        return total + value
    builder = total.builder
    result = builder.fadd(total.value, value.value, flags=("reassoc",))
    return Scalar(builder, result, total.kind)


@operation(same(*_ALL), small=True)
def accumulate_max(largest: Scalar, value: Scalar) -> Scalar:
    """The larger, NaN if either is NaN; vectorises in a loop."""
    return _extreme(largest, value, "maximum", ">")


@operation(same(*_ALL), small=True)
def accumulate_min(smallest: Scalar, value: Scalar) -> Scalar:
    """The smaller, NaN if either is NaN; vectorises in a loop."""
    return _extreme(smallest, value, "minimum", "<")


# ---- division that rounds


@operation(same(*NUMBERS))
def floor_divide(x: Scalar, y: Scalar) -> Scalar:
    """x / y rounded down, as PyTorch computes it; an integer divided by 0 is 0."""
    if not x.kind.is_floating:
        quotient, rest = _divide(x, y)
        if not x.kind.is_signed:
            return quotient
        is_below = rest.differs(0) & y.differs(0) & (rest ^ y).compare("<", 0)
        return quotient - is_below.instruction("zext", x.kind)
    rest = _libm("fmod", x, y)
    quotient = (x - rest) / y
    is_below = rest.differs(0.0) & ((y < 0.0) ^ (rest < 0.0))
    quotient = select(is_below, quotient - 1.0, quotient)
    down = quotient.intrinsic("floor")
    nearest = select(quotient - down > 0.5, down + 1.0, down)
    zero = x.constant(0.0).intrinsic("copysign", x / y)
    result = select(quotient.differs(0.0), nearest, zero)
    return select(y.equals(0.0), x / y, result)


@operation(same(*NUMBERS))
def truncate_divide(x: Scalar, y: Scalar) -> Scalar:
    """x / y rounded towards zero; an integer divided by 0 is 0."""
    return (x / y).intrinsic("trunc") if x.kind.is_floating else _divide(x, y)[0]


@operation(same(*NUMBERS))
def remainder(x: Scalar, y: Scalar) -> Scalar:
    """x - floor(x / y) * y, of the divisor's sign; an integer modulo 0 is itself."""
    if x.kind.is_floating:
        rest = _libm("fmod", x, y)
        has_wrong_sign = rest.differs(0.0) & ((y < 0.0) ^ (rest < 0.0))
        return select(has_wrong_sign, rest + y, rest)
    rest = _divide(x, y)[1]
    if not x.kind.is_signed:
        return rest
    has_wrong_sign = rest.differs(0) & (rest ^ y).compare("<", 0)
    return select(has_wrong_sign, rest + y, rest)


@operation(same(*NUMBERS))
def fmod(x: Scalar, y: Scalar) -> Scalar:
    """x - trunc(x / y) * y, of the dividend's sign; an integer modulo 0 is itself."""
    return _libm("fmod", x, y) if x.kind.is_floating else _divide(x, y)[1]


def _divide(x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    """(quotient towards zero, rest); the two divisors that trap are taken out: 0, and -1."""
    is_zero = y.equals(0)
    is_special = is_zero | y.equals(-1) if x.kind.is_signed else is_zero
    divisor = select(is_special, y.constant(1), y)
    divide = x.builder.sdiv if x.kind.is_signed else x.builder.udiv
    quotient = Scalar(x.builder, divide(x.value, divisor.value), x.kind)
    rest = x - quotient * divisor
    if x.kind.is_signed:
        quotient = select(is_special, -x, quotient)
    return select(is_zero, x.constant(0), quotient), select(is_zero, x, rest)


# ---- powers


@operation(same(*NUMBERS))
def pow(x: Scalar, y: Scalar) -> Scalar:
    """x**y: floats through libm's doubles; integers wrap, and negative exponents give 0, 1, -1."""
    if x.kind.is_floating:
        return _libm("pow", x, y)
    result, base, exponent = x.constant(1), x, y
    for _ in range(x.kind.bits - x.kind.is_signed):
        result = select((exponent & 1).differs(0), result * base, result)
        base, exponent = base * base, exponent >> 1
    if not x.kind.is_signed:
        return result
    alternating = select((y & 1).differs(0), x, x.constant(1))
    inverse = select(x.equals(-1), alternating, select(x.equals(1), x, 0))
    return select(y < 0, inverse, result)


# ---- comparisons, logic, bits


def _comparison(name: str, sign: str) -> Operation:
    def emit(x: Scalar, y: Scalar) -> Scalar:
        return x.compare(sign, y)

    emit.__name__ = name
    emit.__doc__ = f"x {sign} y; with NaN false, except for !=."
    return operation(predicate(*_ALL), small=True)(emit)


eq = _comparison("eq", "==")
ne = _comparison("ne", "!=")
lt = _comparison("lt", "<")
le = _comparison("le", "<=")
gt = _comparison("gt", ">")
ge = _comparison("ge", ">=")


@operation(predicate(*_ALL), small=True)
def logical_and(x: Scalar, y: Scalar) -> Scalar:
    """Both are not zero."""
    return convert(x, B8) & convert(y, B8)


@operation(predicate(*_ALL), small=True)
def logical_or(x: Scalar, y: Scalar) -> Scalar:
    """Either is not zero."""
    return convert(x, B8) | convert(y, B8)


@operation(predicate(*_ALL), small=True)
def logical_xor(x: Scalar, y: Scalar) -> Scalar:
    """Exactly one is not zero."""
    return convert(x, B8) ^ convert(y, B8)


@operation(predicate(*_ALL), small=True)
def logical_not(x: Scalar) -> Scalar:
    """x is zero."""
    return ~convert(x, B8)


@operation(same(*_INTEGERS, B8), small=True)
def bitwise_and(x: Scalar, y: Scalar) -> Scalar:
    """x & y."""
    return x & y


@operation(same(*_INTEGERS, B8), small=True)
def bitwise_or(x: Scalar, y: Scalar) -> Scalar:
    """x | y."""
    return x | y


@operation(same(*_INTEGERS, B8), small=True)
def bitwise_xor(x: Scalar, y: Scalar) -> Scalar:
    """x ^ y."""
    return x ^ y


@operation(same(*_INTEGERS, B8), small=True)
def bitwise_not(x: Scalar) -> Scalar:
    """The complement; on b8 "not"."""
    return ~x


@operation(same(*_INTEGERS), small=True)
def shift_left(x: Scalar, y: Scalar) -> Scalar:
    """x << y; 0 for a count that is negative or not below the width."""
    is_valid = _is_shift(x, y)
    return select(is_valid, x << select(is_valid, y, 0), 0)


@operation(same(*_INTEGERS), small=True)
def shift_right(x: Scalar, y: Scalar) -> Scalar:
    """x >> y, with the sign; a count out of range shifts everything out."""
    is_valid = _is_shift(x, y)
    everything = x >> (x.kind.bits - 1) if x.kind.is_signed else x.constant(0)
    return select(is_valid, x >> select(is_valid, y, 0), everything)


def _is_shift(x: Scalar, y: Scalar) -> Scalar:
    is_below = y < x.kind.bits
    return is_below & (y >= 0) if x.kind.is_signed else is_below


def _select_rule(name: str, condition: Kind, first: Kind, second: Kind) -> Kind:
    exactly(B8, B8)(name, condition)
    return same(*_ALL)(name, first, second)


@operation(_select_rule, small=True)
def where(condition: Scalar, first: Scalar, second: Scalar) -> Scalar:
    """`first` where the condition holds, else `second`; both are computed."""
    return select(condition, first, second)
