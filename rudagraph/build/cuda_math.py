"""Elementary functions of the kernel language on CUDA.

Most are libdevice's, which are also those that PyTorch's own CUDA kernels call. Sigmoids and GELUs
have forms of their own, cheap enough to stay behind memory; each docstring states the largest error
found (tests hold them to it). NaN and infinities behave as in PyTorch.
"""

from __future__ import annotations

import math

from rudagraph.build.cpu_emit import F32, F64, Operation, Scalar, same, select
from rudagraph.build.cpu_math import fused, polynomial
from rudagraph.build.cuda_emit import TileOperation, assembly, call, call_by_name, cuda_operation

_FLOATS = (F32, F64)
_LOG2_E = 1.4426950408889634


def _from_libdevice(name: str, errors: str, arity: int = 1) -> TileOperation:
    def unary(x: Scalar) -> Scalar:
        return call_by_name(name, [x])

    def binary(x: Scalar, y: Scalar) -> Scalar:
        return call_by_name(name, [x, y])

    emit = unary if arity == 1 else binary
    emit.__name__ = name
    emit.__doc__ = f"{name} of libdevice: {errors} in f32."
    return TileOperation(Operation(emit, same(*_FLOATS), small=True))


exp = _from_libdevice("exp", "at most 2 ulp, results below 2**-126 are 0")
expm1 = _from_libdevice("expm1", "at most 1 ulp")
exp2 = _from_libdevice("exp2", "at most 2 ulp")
log = _from_libdevice("log", "at most 1 ulp")
log2 = _from_libdevice("log2", "at most 1 ulp")
log10 = _from_libdevice("log10", "at most 2 ulp")
log1p = _from_libdevice("log1p", "at most 1 ulp")
tanh = _from_libdevice("tanh", "at most 2 ulp")
erf = _from_libdevice("erf", "at most 2 ulp")
sin = _from_libdevice("sin", "at most 2 ulp")
cos = _from_libdevice("cos", "at most 2 ulp")
tan = _from_libdevice("tan", "at most 4 ulp")
asin = _from_libdevice("asin", "at most 2 ulp")
acos = _from_libdevice("acos", "at most 2 ulp")
atan = _from_libdevice("atan", "at most 2 ulp")
sinh = _from_libdevice("sinh", "at most 3 ulp")
cosh = _from_libdevice("cosh", "at most 2 ulp")
atan2 = _from_libdevice("atan2", "at most 3 ulp", 2)
rsqrt = _from_libdevice("rsqrt", "at most 2 ulp")


@cuda_operation(same(*_FLOATS))
def exp_nonpositive(x: Scalar) -> Scalar:
    """e**x for x <= 0 (softmax): as `exp`."""
    return call_by_name("exp", [x])


@cuda_operation(same(*_FLOATS))
def exp_coarse(x: Scalar) -> Scalar:
    """e**x where 16 bits or a sum follow: relative error at most (2 + |x|) * 2**-23."""
    return call_by_name("exp", [x]) if x.kind is F64 else power_of_two(x * _LOG2_E)


@cuda_operation(same(*_FLOATS))
def reciprocal_coarse(x: Scalar) -> Scalar:
    """1 / x where 16 bits follow: at most 1 ulp, results below 2**-126 are 0."""
    return 1.0 / x if x.kind is F64 else fast_reciprocal(x)


def power_of_two(x: Scalar) -> Scalar:
    """2**x for an f32: at most 2 ulp, results below 2**-126 are 0; one instruction."""
    return call("llvm.nvvm.ex2.approx.ftz.f", F32, x)


def fast_reciprocal(x: Scalar) -> Scalar:
    """1 / x for an f32: at most 1 ulp, results below 2**-126 are 0; one instruction."""
    return assembly("rcp.approx.ftz.f32 $0, $1;", "=f,f", F32, x)


def _logistic(x: Scalar) -> Scalar:
    """1 / (1 + e**-x): at most 3 ulp, results below 2**-126 are 0."""
    e = call_by_name("exp", [-x])
    return fast_reciprocal(e + 1.0) if x.kind is F32 else 1.0 / (e + 1.0)


@cuda_operation(same(*_FLOATS))
def sigmoid(x: Scalar) -> Scalar:
    """1 / (1 + e**-x): at most 3 ulp, results below 2**-126 are 0."""
    return _logistic(x)


@cuda_operation(same(*_FLOATS))
def silu(x: Scalar) -> Scalar:
    """x * sigmoid(x): at most 4 ulp."""
    return x * _logistic(x)


@cuda_operation(same(*_FLOATS))
def silu_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * d silu / dx."""
    s = _logistic(x)
    return gradient * s * fused(x, 1.0 - s, x.constant(1.0))


@cuda_operation(same(*_FLOATS))
def sigmoid_backward(gradient: Scalar, result: Scalar) -> Scalar:
    """From the forward result."""
    return gradient * (1.0 - result) * result


@cuda_operation(same(*_FLOATS))
def tanh_backward(gradient: Scalar, result: Scalar) -> Scalar:
    """From the forward result."""
    return gradient * (1.0 - result * result)


# -log2(Phi(-x)) for x in 0…13, highest power first. Fitted for the smallest error of
# max(Phi(-x), 0.001): absolute near 0, where Phi is added to, relative in the tail.
_TAIL = (
    *(7.621532606e-07, -1.327485649e-05, 5.759015647e-05, 4.524589753e-04, -7.472002848e-03),
    *(5.276918429e-02, 4.591231724e-01, 1.151114811, 0.9999998224),
)


def _normal_cdf(x: Scalar) -> Scalar:
    """Phi(x): absolute error at most 1.5e-7, relative at most 1e-4 in the lower tail."""
    if x.kind is F64:
        return call_by_name("erfc", [x * -math.sqrt(0.5)]) * 0.5
    size = call("llvm.minnum.f32", F32, x.intrinsic("fabs"), x.constant(13.0))
    tail = power_of_two(-polynomial(size, _TAIL))
    return select(x < 0.0, tail, 1.0 - tail)


@cuda_operation(same(*_FLOATS))
def gelu_erf(x: Scalar) -> Scalar:
    """x * Phi(x): absolute error at most 2e-7 * |x|."""
    return x * _normal_cdf(x)


@cuda_operation(same(*_FLOATS))
def gelu_erf_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * (Phi(x) + x * phi(x))."""
    scale = 1.0 / math.sqrt(2.0 * math.pi)
    if x.kind is F64:
        density = call_by_name("exp", [x * x * -0.5]) * scale
    else:
        density = power_of_two(x * x * (-0.5 * _LOG2_E)) * scale
    return gradient * fused(x, density, _normal_cdf(x))


_BETA = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def _tanh_odds(x: Scalar) -> Scalar:
    """(1 - s) / s of s = (1 + tanh(BETA * (x + CUBIC * x**3))) / 2, which is a sigmoid."""
    inner = x * fused(x * x, -2.0 * _BETA * _CUBIC * _LOG2_E, x.constant(-2.0 * _BETA * _LOG2_E))
    if x.kind is F64:
        return call_by_name("exp2", [select(inner > 1000.0, inner.constant(1000.0), inner)])
    # Kept finite, so that its product with s is a number.
    return power_of_two(call("llvm.minnum.f32", F32, inner, inner.constant(126.0)))


def _share(odds: Scalar) -> Scalar:
    return fast_reciprocal(odds + 1.0) if odds.kind is F32 else 1.0 / (odds + 1.0)


@cuda_operation(same(*_FLOATS))
def gelu_tanh(x: Scalar) -> Scalar:
    """The tanh form of gelu: absolute error at most 3e-7 * |x|, small in the lower tail."""
    return x * _share(_tanh_odds(x))


@cuda_operation(same(*_FLOATS))
def gelu_tanh_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * d gelu_tanh / dx: absolute error at most 4e-7."""
    odds = _tanh_odds(x)
    s = _share(odds)
    slope = fused(x * x, 6.0 * _BETA * _CUBIC, x.constant(2.0 * _BETA))
    return gradient * fused(x * s * slope, odds * s, s)
