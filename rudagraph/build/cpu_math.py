"""Elementary functions of the kernel language.

The f32 ones are polynomials without branches or calls, so that loops around them vectorise; each
docstring states the largest error found over its domain, in ulp of the result (tests hold them to
it). f64, and f32 functions that steps hardly ever use, go through libm's doubles. NaN, infinities,
signed zeros and subnormals behave as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from rudagraph.build.cpu_emit import (
    B8,
    F32,
    F64,
    I32,
    NUMBERS,
    Operation,
    Scalar,
    declare,
    operation,
    other_target,
    predicate,
    same,
    select,
)
from rudagraph.schedule.kernel import LIBM_PREFIX

_FLOATS = (F32, F64)
MAGIC = 12582912.0  # 1.5 * 2**23: adding it rounds an f32 below 2**22 to a whole number
_LOG2_E = 1.44269504


def _libm(name: str, *arguments: Scalar) -> Scalar:
    """A double of libm; f32 arguments go there and back, which rounds once."""
    special = other_target(arguments[0])
    if special is not None:
        return special(name, list(arguments))
    builder = arguments[0].builder
    double = ir.DoubleType()
    function = declare(
        builder.module, LIBM_PREFIX + name, ir.FunctionType(double, [double] * len(arguments))
    )
    function.attributes.add("nounwind")
    is_single = arguments[0].kind is F32
    wide = [argument.instruction("fpext", F64) if is_single else argument for argument in arguments]
    result = Scalar(builder, builder.call(function, [value.value for value in wide]), F64)
    return result.instruction("fptrunc", F32) if is_single else result


def _through_libm(name: str, arity: int = 1) -> Operation:
    def unary(x: Scalar) -> Scalar:
        return _libm(name, x)

    def binary(x: Scalar, y: Scalar) -> Scalar:
        return _libm(name, x, y)

    emit = unary if arity == 1 else binary
    emit.__name__ = name
    emit.__doc__ = f"{name} of libm's doubles: at most 0.51 ulp in f32; one call a lane."
    return operation(same(*_FLOATS))(emit)


def fused(x: Scalar, y: Scalar | float, z: Scalar | float) -> Scalar:
    """x * y + z with one rounding."""
    return x.intrinsic("fma", y, z)


def polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Horner's rule with fused steps, highest power first."""
    result = x.constant(coefficients[0])
    for coefficient in coefficients[1:]:
        result = fused(result, x, coefficient)
    return result


def copy_sign(magnitude: Scalar, sign: Scalar) -> Scalar:
    return magnitude.intrinsic("copysign", sign)


def is_nan(x: Scalar) -> Scalar:
    return x.differs(x)


def clamp_keeping_nan(x: Scalar, low: float, high: float) -> Scalar:
    below = select(x > high, x.constant(high), x)
    return select(below < low, x.constant(low), below)


def power_of_two(exponent: Scalar) -> Scalar:
    """2**exponent for an i32 in -126…127."""
    return ((exponent + 127) << 23).bits(F32)


@operation(same(*_FLOATS), small=True)
def fma(x: Scalar, y: Scalar, z: Scalar) -> Scalar:
    """x * y + z with one rounding."""
    return fused(x, y, z)


@operation(same(*_FLOATS), small=True)
def sqrt(x: Scalar) -> Scalar:
    """Correctly rounded."""
    return x.intrinsic("sqrt")


@operation(same(*_FLOATS), small=True)
def rsqrt(x: Scalar) -> Scalar:
    """1 / sqrt(x), each rounded, as PyTorch does: at most 1 ulp."""
    return 1.0 / x.intrinsic("sqrt")


@operation(same(*_FLOATS), small=True)
def reciprocal(x: Scalar) -> Scalar:
    """1 / x, correctly rounded."""
    return 1.0 / x


# ---- exponentials

# (e**r - 1 - r) / r**2 for |r| < 0.347, and one power more for expm1
_EXP = (1.39465529e-3, 8.3692321e-3, 4.16662618e-2, 1.66665153e-1, 0.500000008)
_EXPM1 = (1.99097943e-4, 1.39465529e-3, 8.33328029e-3, 4.16662618e-2, 1.66666668e-1, 0.500000008)


def _reduce(x: Scalar, bias: int = 0) -> tuple[Scalar, Scalar]:
    """For x in -104…89 or NaN: (r, bits whose low 9 hold n + bias), x = n * log(2) + r."""
    magic = MAGIC + bias
    shifted = fused(x, _LOG2_E, magic)
    n = shifted - magic
    r = fused(-n, 0.693145752, x)
    return fused(-n, 1.42860677e-6, r), shifted.bits(I32)


def _exp_reduced(r: Scalar) -> Scalar:
    return polynomial(r, (*_EXP, 1.0, 1.0))


# Of two exponents, which then need none added.
_TWO_BIASES = 254


def _scale(value: Scalar, n_bits: Scalar) -> Scalar:
    """value * 2**n in two steps, so that n, here with two biases, may pass the exponent's range."""
    half = n_bits >> 1
    return value * (half << 23).bits(F32) * ((n_bits - half) << 23).bits(F32)


def _single_scale(n_bits: Scalar) -> Scalar:
    """2**n for n in -126…127 and 0 for -127: the low bits of n shifted into the exponent."""
    return ((n_bits << 23) + 0x3F800000).bits(F32)


@operation(same(*_FLOATS))
def exp(x: Scalar) -> Scalar:
    """e**x: at most 1 ulp, subnormal results included."""
    if x.kind is F64:
        return _libm("exp", x)
    r, n_bits = _reduce(clamp_keeping_nan(x, -104.0, 89.0), _TWO_BIASES)
    return _scale(_exp_reduced(r), n_bits)


@operation(same(*_FLOATS))
def exp_nonpositive(x: Scalar) -> Scalar:
    """e**x for x <= 0 (softmax): at most 1 ulp, results below 2**-126.5 are 0, NaN passes."""
    if x.kind is F64:
        return _libm("exp", x)
    # At the limit n is -127, for which the scale is 0.
    r, n_bits = _reduce(select(x < -88.0, x.constant(-88.0), x))
    return _exp_reduced(r) * _single_scale(n_bits)


@operation(same(*_FLOATS))
def expm1(x: Scalar) -> Scalar:
    """e**x - 1: at most 1.5 ulp."""
    if x.kind is F64:
        return _libm("expm1", x)
    r, n_bits = _reduce(clamp_keeping_nan(x, -30.0, 89.0))
    reduced = fused(polynomial(r, _EXPM1) * r, r, r)
    # n is at most 128: 2**n as 2 * 2**(n - 1) stays finite until the last step.
    half = power_of_two(n_bits - (0x4B400000 + 1))
    result = fused(reduced, half, half - 0.5)
    # The sum would lose the sign of -0.
    return select(x.equals(0.0), x, result + result)


# (2**f - 1) / f for |f| < 0.5005
_EXP2 = (1.54674729e-4, 1.34005235e-3, 9.61803566e-3, 5.55032703e-2, 0.240226511, 0.693147207)


@operation(same(*_FLOATS))
def exp2(x: Scalar) -> Scalar:
    """2**x: at most 1 ulp, subnormal results included."""
    if x.kind is F64:
        return _libm("exp2", x)
    y = clamp_keeping_nan(x, -151.0, 129.0)
    magic = MAGIC + _TWO_BIASES
    shifted = y + magic
    power = polynomial(y - (shifted - magic), (*_EXP2, 1.0))
    return _scale(power, shifted.bits(I32))


# ---- logarithms

_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_SMALLEST_NORMAL = 2.0**-126


def _log_parts(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """For x > 0: (k, f, log(1 + f) - f + f * f / 2), x = 2**k * (1 + f), f in -0.3…0.42."""
    is_small = x < _SMALLEST_NORMAL
    normal = select(is_small, x * 2.0**23, x)
    bits = normal.bits(I32)
    k = (bits - 0x3F3504F3) >> 23
    f = (bits - (k << 23)).bits(F32) - 1.0
    exponent = k.instruction("sitofp", F32) - select(is_small, x.constant(23.0), 0.0)
    return exponent, f, polynomial(f, _LOG) * f * (f * f)


def _log_edges(x: Scalar, value: Scalar) -> Scalar:
    """The logarithm's value at 0, below 0, at infinity and NaN."""
    value = select(x < math.inf, value, x)  # infinity and NaN
    value = select(x.equals(0.0), x.constant(-math.inf), value)
    return select(x < 0.0, x.constant(math.nan), value)


@operation(same(*_FLOATS))
def log(x: Scalar) -> Scalar:
    """Natural logarithm: at most 1 ulp, subnormal arguments included."""
    if x.kind is F64:
        return _libm("log", x)
    k, f, rest = _log_parts(x)
    rest = fused(k, -2.12194440e-4, rest)
    rest = fused(f * f, -0.5, rest)
    return _log_edges(x, fused(k, 0.693359375, f + rest))


def _log_other_base(x: Scalar, high: float, low: float, unit: float) -> Scalar:
    """log(x) / log(base); high + low = 1 / log(base), unit = log(2) / log(base)."""
    k, f, rest = _log_parts(x)
    rest = fused(f * f, -0.5, rest)
    value = fused(f, high, fused(f, low, rest * high))
    return _log_edges(x, fused(k, unit, value))


@operation(same(*_FLOATS))
def log2(x: Scalar) -> Scalar:
    """Logarithm to base 2: at most 2 ulp."""
    if x.kind is F64:
        return _libm("log2", x)
    return _log_other_base(x, 1.4426950, 1.925963033e-8, 1.0)


@operation(same(*_FLOATS))
def log10(x: Scalar) -> Scalar:
    """Logarithm to base 10: at most 2 ulp."""
    if x.kind is F64:
        return _libm("log10", x)
    return _log_other_base(x, 0.43429449200630188, -1.0103050118726031e-8, math.log10(2.0))


_LOG1P_EVEN = (-4.53948975e-2, -1.32274792e-1, -1.66416913e-1, -2.50001878e-1)
_LOG1P_ODD = (1.05468750e-1, 1.44911826e-1, 1.99886635e-1)


@operation(same(*_FLOATS))
def log1p(x: Scalar) -> Scalar:
    """log(1 + x): at most 1.5 ulp."""
    if x.kind is F64:
        return _libm("log1p", x)
    # 1 + x = 2**k * (1 + m) with m in -0.25…0.5, and m = x * 2**-k + (2**-k - 1) rounds once.
    k = ((x + 1.0).bits(I32) - 0x3F400000) & -0x800000
    scaled = (x.bits(I32) - k).bits(F32)
    quarter = (x.of(I32, 0x40800000) - k).bits(F32)  # 4 * 2**-k
    m = scaled + fused(quarter, 0.25, -1.0)
    square = m * m
    even = polynomial(square, _LOG1P_EVEN)
    odd = polynomial(square, _LOG1P_ODD)
    p = fused(odd, m, even)
    p = fused(p, m, 3.33335280e-1)
    p = fused(p, m, -4.99999970e-1)
    p = fused(p, square, m)
    value = fused(k.instruction("sitofp", F32) * 2.0**-23, 0.693147182, p)
    value = select(x.equals(0.0), x, value)
    value = select(x < math.inf, value, x)
    value = select(x.equals(-1.0), x.constant(-math.inf), value)
    return select(x < -1.0, x.constant(math.nan), value)


# ---- tanh and the error function


_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


@operation(same(*_FLOATS))
def tanh(x: Scalar) -> Scalar:
    """Hyperbolic tangent: at most 2 ulp."""
    if x.kind is F64:
        return _libm("tanh", x)
    size = x.intrinsic("fabs")
    square = x * x
    near = fused(polynomial(square, _TANH) * square, size, size)
    e = exp_nonpositive(size * -2.0)
    return copy_sign(select(size > 0.625, (1.0 - e) / (e + 1.0), near), x)


_ERF_FAR = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2)
_ERF_NEAR = (
    -5.96761703e-4,
    4.99119423e-3,
    -2.67681349e-2,
    1.12819925e-1,
    -3.76125336e-1,
    1.28379166e-1,
)


@operation(same(*_FLOATS))
def erf(x: Scalar) -> Scalar:
    """Error function: at most 1.1 ulp."""
    if x.kind is F64:
        return _libm("erf", x)
    size, square = x.intrinsic("fabs"), x * x
    r = fused(size, _ERF_FAR[0], _ERF_FAR[1])
    u = fused(size, _ERF_FAR[2], _ERF_FAR[3])
    r = fused(r, square, u)
    for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = fused(r, size, coefficient)
    r = fused(r, size, -size)
    far = copy_sign(1.0 - exp_nonpositive(r), x)
    near = fused(polynomial(square, _ERF_NEAR), x, x)
    return select(size > 0.927734375, far, near)


# ---- rounding and tests, also for integers, where they change nothing


def _rounding(name: str, intrinsic: str) -> Operation:
    def emit(x: Scalar) -> Scalar:
        return x.intrinsic(intrinsic) if x.kind.is_floating else x

    emit.__name__ = name
    emit.__doc__ = f"{name} to a whole number, of the same kind."
    return operation(same(*NUMBERS), small=True)(emit)


floor = _rounding("floor", "floor")
ceil = _rounding("ceil", "ceil")
trunc = _rounding("trunc", "trunc")
round = _rounding("round", "rint")  # half to even


@operation(predicate(*NUMBERS, B8), small=True)
def isnan(x: Scalar) -> Scalar:
    """Whether x is NaN."""
    return x.differs(x)


@operation(predicate(*NUMBERS, B8), small=True)
def isinf(x: Scalar) -> Scalar:
    """Whether x is infinite, of either sign."""
    if not x.kind.is_floating:
        return x.differs(x)
    return x.intrinsic("fabs").equals(math.inf)


sin = _through_libm("sin")
cos = _through_libm("cos")
tan = _through_libm("tan")
asin = _through_libm("asin")
acos = _through_libm("acos")
atan = _through_libm("atan")
sinh = _through_libm("sinh")
cosh = _through_libm("cosh")
atan2 = _through_libm("atan2", 2)
