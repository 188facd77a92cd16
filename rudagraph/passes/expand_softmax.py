"""softmax, log_softmax and their derivatives as primitives along the last axis.

    %y = softmax(%x) [axis=1]
becomes
    %max = amax(%x) [axes=[1], keepdim=true]
    %exp = exp(sub(%x, %max))
    %y = div(%exp, sum(%exp))
An axis that is not the last is moved there by a permute and back. A 0-d tensor counts as one row.
"""

from __future__ import annotations

from rudagraph.ir.graph import Value
from rudagraph.passes.expansion import Expansion, wider


def expand_softmax(e: Expansion) -> None:
    shifted = _shifted(e)
    exponential = e.one("exp", "exp", shifted)
    total = e.row("sum", exponential, "sum")
    _finish(e, e.one("quotient", "div", exponential, total))


def expand_log_softmax(e: Expansion) -> None:
    shifted = _shifted(e)
    exponential = e.one("exp", "exp", shifted)
    log = e.one("log", "log", e.row("sum", exponential, "sum"))
    _finish(e, e.one("difference", "sub", shifted, log))


def expand_softmax_backward(e: Expansion) -> None:
    gradient, y = _input(e, e.value(0)), _input(e, e.value(1))
    total = e.row("sum", e.one("product", "mul", gradient, y), "sum")
    _finish(e, e.one("dx", "mul", e.one("difference", "sub", gradient, total), y))


def expand_log_softmax_backward(e: Expansion) -> None:
    gradient, y = _input(e, e.value(0)), _input(e, e.value(1))
    total = e.row("sum", gradient, "sum")
    along = e.one("along", "mul", e.one("exp", "exp", y), total)
    _finish(e, e.one("dx", "sub", gradient, along))


def _shifted(e: Expansion) -> Value:
    x = _input(e, e.value(0))
    return e.one("shifted", "sub", x, e.row("amax", x, "max"))


def _order(e: Expansion, rank: int) -> tuple[int, ...]:
    """Axes with the softmax's own moved to the end."""
    axis = e.integer("axis")
    return (*(i for i in range(rank) if i != axis), axis)


def _input(e: Expansion, value: Value) -> Value:
    """The operand with the axis last, in the type of the arithmetic."""
    wide = wider(value.type.dtype.compute, e.op.result.type.dtype.compute)
    if value.type.rank == 0:
        value = e.reshape(value, (1,))
    order = _order(e, value.type.rank)
    if order != tuple(range(value.type.rank)):
        value = e.one("turned", "permute", value, axes=order)
    return e.cast(value, wide)


def _finish(e: Expansion, value: Value) -> None:
    result = e.op.result
    order = _order(e, value.type.rank)
    if result.type.rank == 0:
        e.define_reshape(result, e.cast(value, result.type.dtype))
    elif order == tuple(range(len(order))):
        e.define_cast(result, value)
    else:
        back = tuple(order.index(axis) for axis in range(len(order)))
        e.define(result, "permute", e.cast(value, result.type.dtype), axes=back)
