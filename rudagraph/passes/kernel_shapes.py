"""What a fused kernel can hold: the domain of an op and the shapes of values inside a domain.

A kernel runs over a domain (d0, …, dk), row by row along the last axis. Inside, a value is *full*
(the domain's shape), a *row* value (…, 1) or a *partial* broadcast; reductions run along rows, and
sums over columns or everything are results only. `domain_of` is None for ops that fit no kernel.
"""

from __future__ import annotations

import enum
from typing import cast as typed

from rudagraph.ir.graph import Op
from rudagraph.ir.ops import Tag, opcodes

Shape = tuple[int, ...]

_ELEMENTWISE = opcodes(Tag.POINTWISE | Tag.CREATION) | {"bernoulli"}
_REDUCTIONS = opcodes(Tag.REDUCTION)
# Reductions a kernel can do along a row.
_ALONG_ROWS = frozenset(("sum", "mean", "amax", "amin"))
# And over all elements; over columns only sums.
_OVER_ALL = frozenset(("sum", "amax", "amin"))


class Fold(enum.Enum):
    """How a reduction lies in its domain."""

    ROWS = "rows"  # last axis, kept with extent 1: usable inside
    COLUMNS = "columns"  # all axes but the last: a result only
    ALL = "all"  # every axis: a result only


def is_elementwise(op: Op) -> bool:
    return op.opcode in _ELEMENTWISE


def fold_of(op: Op) -> Fold | None:
    """How a kernel does this reduction; None where it cannot."""
    if op.opcode not in _REDUCTIONS:
        return None
    shape = op.inputs[0].type.shape
    axes, last = typed(Shape, op["axes"]), len(shape) - 1
    if op.get("keepdim", False):
        return Fold.ROWS if axes == (last,) and op.opcode in _ALONG_ROWS else None
    if not axes or op.opcode not in _OVER_ALL:
        return None
    if axes == tuple(range(last + 1)):
        return Fold.ALL
    return Fold.COLUMNS if op.opcode == "sum" and axes == tuple(range(last)) else None


def domain_of(op: Op) -> Shape | None:
    """The smallest domain the op can run in; None where it fits no kernel."""
    if is_elementwise(op):
        return op.result.type.shape
    return op.inputs[0].type.shape if fold_of(op) is not None else None


def leaves_only(op: Op) -> bool:
    """Whether the op's result may not be read inside its own kernel."""
    return fold_of(op) in (Fold.COLUMNS, Fold.ALL)


def rows_of(domain: Shape) -> Shape:
    """The shape of a row value."""
    return (*domain[:-1], 1) if domain else ()


def broadcasts_to(shape: Shape, domain: Shape) -> bool:
    if len(shape) > len(domain):
        return False
    tail = domain[len(domain) - len(shape) :]
    return all(n in (1, extent) for n, extent in zip(shape, tail, strict=True))


def may_leave(shape: Shape, domain: Shape) -> bool:
    """Whether a value of this shape can be a result of a kernel over the domain."""
    return shape in (domain, rows_of(domain))
