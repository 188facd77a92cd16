"""Activations of the kernel language and their derivatives, f32 and f64.

The f32 ones are branch-free like those of cpu_math; errors are stated against exact arithmetic
and are no larger than those of PyTorch's own functions. Derivatives take the gradient first.
"""

from __future__ import annotations

import math

from rudagraph.build.cpu_emit import F32, F64, Scalar, operation, same, select
from rudagraph.build.cpu_math import erf, exp2_nonpositive, exp_nonpositive, fused, polynomial

_FLOATS = (F32, F64)


@operation(same(*_FLOATS))
def sigmoid(x: Scalar) -> Scalar:
    """1 / (1 + e**-x): at most 2.4 ulp; results below 2**-126.5 are 0."""
    # exp of -|x| cannot overflow, and keeps the left tail exact.
    e = exp_nonpositive(-x.intrinsic("fabs"))
    return select(x < 0.0, e, x.constant(1.0)) / (e + 1.0)


@operation(same(*_FLOATS), small=True)
def sigmoid_backward(gradient: Scalar, result: Scalar) -> Scalar:
    """From the forward result."""
    return gradient * (1.0 - result) * result


@operation(same(*_FLOATS), small=True)
def tanh_backward(gradient: Scalar, result: Scalar) -> Scalar:
    """From the forward result."""
    return gradient * (1.0 - result * result)


@operation(same(*_FLOATS))
def silu(x: Scalar) -> Scalar:
    """x * sigmoid(x): at most 3.2 ulp."""
    return x * sigmoid(x)


@operation(same(*_FLOATS))
def silu_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * s * (1 + x * (1 - s)), s = sigmoid(x)."""
    s = sigmoid(x)
    return gradient * s * (1.0 + x * (1.0 - s))


# (1 + log2(Phi(-a))) / a for a in 0…5.6, exact where Phi is large; falls on beyond that
_LOG_PHI = (-2.29441414e-6, 3.37981199e-5, -1.63651284e-4, -1.82356648e-4, 7.11177392e-3)
_LOG_PHI_LOW = (-5.25225499e-2, -0.459201688, -1.15110572)


def _normal_cdf(x: Scalar) -> Scalar:
    """Phi(x): absolute error at most 9e-8, and no cancellation for negative x."""
    if x.kind is F64:
        return (1.0 + erf(x * math.sqrt(0.5))) * 0.5
    size = x.intrinsic("fabs")
    tail = exp2_nonpositive(fused(polynomial(size, (*_LOG_PHI, *_LOG_PHI_LOW)), size, -1.0))
    return select(x < 0.0, tail, 1.0 - tail)


@operation(same(*_FLOATS))
def gelu_erf(x: Scalar) -> Scalar:
    """x * Phi(x): absolute error at most 1.3e-7 * |x|."""
    return x * _normal_cdf(x)


@operation(same(*_FLOATS))
def gelu_erf_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * (Phi(x) + x * phi(x)): absolute error at most 2.5e-7."""
    density = exp_nonpositive(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return gradient * (_normal_cdf(x) + x * density)


_BETA = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


@operation(same(*_FLOATS))
def gelu_tanh(x: Scalar) -> Scalar:
    """The tanh form, x / 2 * (1 + tanh(u)) = x * sigmoid(2u): error at most 1.3e-7 * |x|."""
    twice = (x + x * x * x * _CUBIC) * (2.0 * _BETA)
    e = exp_nonpositive(-twice.intrinsic("fabs"))
    return x * (select(twice < 0.0, e, x.constant(1.0)) / (e + 1.0))


@operation(same(*_FLOATS))
def gelu_tanh_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * (s + x * s * (1 - s) * 2u'), s = sigmoid(2u): absolute error at most 1e-6."""
    square = x * x
    twice = (x + x * square * _CUBIC) * (2.0 * _BETA)
    slope = (square * (3.0 * _CUBIC) + 1.0) * (2.0 * _BETA)
    e = exp_nonpositive(-twice.intrinsic("fabs"))
    inverse = 1.0 / (e + 1.0)
    small = e * inverse
    s = select(twice < 0.0, small, inverse)
    return gradient * (s + x * (small * inverse) * slope)
