"""Activations of the kernel language and their derivatives, f32 and f64.

The f32 ones are branch-free like those of cpu_math; errors are stated against exact arithmetic
and are no larger than those of PyTorch's own functions. Derivatives take the gradient first.
"""

from __future__ import annotations

import math

from rudagraph.build.cpu_emit import F32, F64, I32, Scalar, operation, same, select
from rudagraph.build.cpu_math import MAGIC, erf, exp_nonpositive, fused, polynomial

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


# Phi(-t) = e**(-t**2 / 2) * w * Q(w) with w = 1 / (1 + 0.28 t), fitted so that the error of Phi is
# at most 5e-9 where it is large and 3e-4 of it where it is small; and 2**f for |f| <= 0.5.
_TAIL_STEP = 0.28
_TAIL = (-0.10656215, 0.392978191, -0.242072359, 0.273036629, 0.0658323765, 0.116787314)
_EXP2 = (1.3264739e-3, 9.67151672e-3, 5.55073358e-2, 0.240222424, 0.693147004, 1.0)
_HALF_LOG2_E = 0.72134752
# There n is -127, for which the power is 0.
_TAIL_END = 13.27


def _normal_tail(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """(t, e**(-t**2 / 2), Phi(-t)) for t = |x|, 0 from 13.25 on.

    A tail keeps its leading digits where 1/2 + x * odd(x**2) cancels. Horner's rule: four vectors
    at a time hide its latency, and steps of several powers would load more coefficients.
    """
    size = x.intrinsic("fabs")
    t = select(size > _TAIL_END, x.constant(_TAIL_END), size)
    square = t * t
    shifted = fused(square, -_HALF_LOG2_E, MAGIC)
    f = fused(square, -_HALF_LOG2_E, MAGIC - shifted)
    power = ((shifted.bits(I32) << 23) + 0x3F800000).bits(F32)
    density = polynomial(f, _EXP2) * power
    w = 1.0 / fused(t, _TAIL_STEP, 1.0)
    return t, density, density * (w * polynomial(w, _TAIL))


def _on_side_of(x: Scalar, tail: Scalar) -> Scalar:
    """The tail left of zero, 1 minus it on the right."""
    return select(x.bits(I32) < 0, tail, 1.0 - tail)


@operation(same(*_FLOATS))
def gelu_erf(x: Scalar) -> Scalar:
    """x * Phi(x): absolute error at most 4e-7, an ulp of the largest; relative error of the left
    tail at most 4e-6 down to -4 and 2e-4 down to -6.
    """
    if x.kind is F64:
        return x * ((1.0 + erf(x * math.sqrt(0.5))) * 0.5)
    _, _, tail = _normal_tail(x)
    return x * _on_side_of(x, tail)


_DENSITY_AT_ZERO = 1.0 / math.sqrt(2.0 * math.pi)


@operation(same(*_FLOATS))
def gelu_erf_slope(x: Scalar) -> Scalar:
    """Phi(x) + x * phi(x): absolute error at most 2e-7; shares most of `gelu_erf` beside it."""
    if x.kind is F64:
        density = exp_nonpositive(x * x * -0.5) * _DENSITY_AT_ZERO
        return (1.0 + erf(x * math.sqrt(0.5))) * 0.5 + x * density
    t, density, tail = _normal_tail(x)
    return _on_side_of(x, fused(t * -_DENSITY_AT_ZERO, density, tail))


@operation(same(*_FLOATS), small=True)
def gelu_erf_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * the slope."""
    return gradient * gelu_erf_slope(x)


_TWICE_BETA = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


@operation(same(*_FLOATS))
def gelu_tanh(x: Scalar) -> Scalar:
    """The tanh form, x / 2 * (1 + tanh(u)) = x * sigmoid(2u): error at most 1.7e-7 * |x|."""
    twice = x * fused(x * x, _CUBIC * _TWICE_BETA, _TWICE_BETA)
    e = exp_nonpositive(-twice.intrinsic("fabs"))
    return x * (select(twice < 0.0, e, x.constant(1.0)) / (e + 1.0))


@operation(same(*_FLOATS))
def gelu_tanh_slope(x: Scalar) -> Scalar:
    """s + x * s * (1 - s) * 2u', s = sigmoid(2u): absolute error at most 2e-7."""
    square = x * x
    twice = x * fused(square, _CUBIC * _TWICE_BETA, _TWICE_BETA)
    slope = fused(square, 3.0 * _CUBIC * _TWICE_BETA, _TWICE_BETA)
    e = exp_nonpositive(-twice.intrinsic("fabs"))
    inverse = 1.0 / (e + 1.0)
    small = e * inverse
    s = select(twice < 0.0, small, inverse)
    return fused(x * (small * inverse), slope, s)


@operation(same(*_FLOATS), small=True)
def gelu_tanh_backward(gradient: Scalar, x: Scalar) -> Scalar:
    """gradient * the slope."""
    return gradient * gelu_tanh_slope(x)
