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
    predicate,
    same,
    select,
)
from rudagraph.schedule.kernel import LIBM_PREFIX

_FLOATS = (F32, F64)
_MAGIC = 12582912.0  # 1.5 * 2**23: adding it rounds an f32 below 2**22 to a whole number
_LOG2_E = 1.44269504


def _libm(name: str, *arguments: Scalar) -> Scalar:
    """A double of libm; f32 arguments go there and back, which rounds once."""
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
    emit.__doc__ = f"{name} of libm's doubles: at most 0.51 ulp in f32; does not vectorise."
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

_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def _exp_parts(x: Scalar) -> tuple[Scalar, Scalar]:
    """For x in -104…89 or NaN: (exp(r) - 1, bits whose low 9 hold n), x = n * log(2) + r."""
    shifted = fused(x, _LOG2_E, _MAGIC)
    n = shifted - _MAGIC
    r = fused(-n, 0.693145752, x)
    r = fused(-n, 1.42860677e-6, r)
    p = polynomial(r, _EXP)
    return fused(p * r, r, r), shifted.bits(I32)


def _scale(value: Scalar, n_bits: Scalar) -> Scalar:
    """value * 2**n, in two steps so that n may pass the exponent's range."""
    n = n_bits - 0x4B400000
    half = n >> 1
    return value * power_of_two(half) * power_of_two(n - half)


@operation(same(*_FLOATS))
def exp(x: Scalar) -> Scalar:
    """e**x: at most 1 ulp, subnormal results included."""
    if x.kind is F64:
        return _libm("exp", x)
    reduced, n_bits = _exp_parts(clamp_keeping_nan(x, -104.0, 89.0))
    return _scale(reduced + 1.0, n_bits)


@operation(same(*_FLOATS))
def exp_nonpositive(x: Scalar) -> Scalar:
    """e**x for x <= 0 (softmax): at most 1 ulp, results below 2**-126 are 0, NaN passes."""
    if x.kind is F64:
        return _libm("exp", x)
    low = -87.3
    reduced, n_bits = _exp_parts(select(x < low, x.constant(low), x))
    # The low bits of n shifted into the exponent; 127 << 23 is the bias.
    scale = ((n_bits << 23) + 0x3F800000).bits(F32)
    return select(x < low, x.constant(0.0), (reduced + 1.0) * scale)


@operation(same(*_FLOATS))
def expm1(x: Scalar) -> Scalar:
    """e**x - 1: at most 1.5 ulp."""
    if x.kind is F64:
        return _libm("expm1", x)
    reduced, n_bits = _exp_parts(clamp_keeping_nan(x, -30.0, 89.0))
    # n is at most 128: 2**n as 2 * 2**(n - 1) stays finite until the last step.
    half = power_of_two(n_bits - (0x4B400000 + 1))
    result = fused(reduced, half, half - 0.5)
    # The sum would lose the sign of -0.
    return select(x.equals(0.0), x, result + result)


@operation(same(*_FLOATS))
def exp2(x: Scalar) -> Scalar:
    """2**x: at most 1 ulp, subnormal results included."""
    if x.kind is F64:
        return _libm("exp2", x)
    y = clamp_keeping_nan(x, -151.0, 129.0)
    shifted = y + _MAGIC
    r = (y - (shifted - _MAGIC)) * 0.693147181
    p = polynomial(r, _EXP)
    return _scale(fused(p * r, r, r) + 1.0, shifted.bits(I32))


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
    return _libm("log10", x)


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


# ---- sigmoids and error functions


@operation(same(*_FLOATS))
def sigmoid(x: Scalar) -> Scalar:
    """1 / (1 + e**-x): at most 2 ulp."""
    # exp of -|x| cannot overflow, and keeps the left tail exact down to subnormals.
    e = exp(-x.intrinsic("fabs"))
    return select(x < 0.0, e, x.constant(1.0)) / (e + 1.0)


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
    near = fused(polynomial(square, _TANH) * square, x, x)
    e = exp_nonpositive(size * -2.0)
    return select(size > 0.625, copy_sign((1.0 - e) / (e + 1.0), x), near)


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


_ERF_TOP = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_BOTTOM = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
_TANH_TOP = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_BOTTOM = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)


def _rational(x: Scalar, limit: float, top: Sequence[float], bottom: Sequence[float]) -> Scalar:
    """An odd function that is ±1 beyond the limit; half the cost of one with an exponential."""
    y = clamp_keeping_nan(x, -limit, limit)
    square = y * y
    value = y * polynomial(square, top) / polynomial(square, bottom)
    # At the limit the quotient misses 1 by some 1e-8, which a factor x would make visible.
    return select(x.intrinsic("fabs") >= limit, copy_sign(x.constant(1.0), x), value)


def _erf_fast(x: Scalar) -> Scalar:
    """At most 6 ulp, 4e-7 absolute."""
    return _libm("erf", x) if x.kind is F64 else _rational(x, 4.0, _ERF_TOP, _ERF_BOTTOM)


def _tanh_fast(x: Scalar) -> Scalar:
    """At most 6 ulp, 4e-7 absolute."""
    if x.kind is F64:
        return _libm("tanh", x)
    return _rational(x, 7.90531110763549805, _TANH_TOP, _TANH_BOTTOM)


# ---- activations and their derivatives


@operation(same(*_FLOATS))
def silu(x: Scalar) -> Scalar:
    """x * sigmoid(x): at most 3 ulp."""
    return x * sigmoid(x)


@operation(same(*_FLOATS))
def silu_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * d silu / dx."""
    s = sigmoid(x)
    return gradient * s * (1.0 + x * (1.0 - s))


@operation(same(*_FLOATS), small=True)
def sigmoid_backward(gradient: Scalar, result: Scalar) -> Scalar:
    """From the forward result."""
    return gradient * (1.0 - result) * result


@operation(same(*_FLOATS), small=True)
def tanh_backward(gradient: Scalar, result: Scalar) -> Scalar:
    """From the forward result."""
    return gradient * (1.0 - result * result)


def _normal_cdf(x: Scalar) -> Scalar:
    return (1.0 + _erf_fast(x * math.sqrt(0.5))) * 0.5


@operation(same(*_FLOATS))
def gelu_erf(x: Scalar) -> Scalar:
    """x * Phi(x): absolute error at most 3e-7 * |x|; the tail is as coarse as PyTorch's."""
    return x * _normal_cdf(x)


@operation(same(*_FLOATS))
def gelu_erf_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * (Phi(x) + x * phi(x))."""
    density = exp_nonpositive(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return gradient * (_normal_cdf(x) + x * density)


_BETA = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


@operation(same(*_FLOATS))
def gelu_tanh(x: Scalar) -> Scalar:
    """The tanh form of gelu: absolute error at most 3e-7 * |x|."""
    inner = (x + x * x * x * _CUBIC) * _BETA
    return x * 0.5 * (1.0 + _tanh_fast(inner))


@operation(same(*_FLOATS))
def gelu_tanh_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * d gelu_tanh / dx."""
    square = x * x
    t = _tanh_fast((x + x * square * _CUBIC) * _BETA)
    slope = (square * (3.0 * _CUBIC) + 1.0) * _BETA
    return gradient * ((1.0 + t) * 0.5 + x * 0.5 * (1.0 - t * t) * slope)


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
