"""Strides as pure arithmetic: what view ops do to them, and which results are not row-major.

Strides and offsets count elements. Used by passes (is a copy needed?) and by the schedule.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, cast

from rudagraph.ir.graph import Attribute, Op
from rudagraph.ir.types import row_major_strides


class Strided(NamedTuple):
    """Shape, strides and offset of a view over some root."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@functools.lru_cache(maxsize=4096)
def row_major(shape: tuple[int, ...]) -> Strided:
    return Strided(shape, row_major_strides(shape))


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements follow each other in row-major order without gaps."""
    wanted = row_major_strides(shape)
    return 0 in shape or all(
        extent == 1 or stride == want
        for extent, stride, want in zip(shape, strides, wanted, strict=True)
    )


def result_strides(op: Op) -> tuple[tuple[int, ...], ...]:
    """Strides of the memory that a non-view op's results own.

    Row-major, except attention: PyTorch's kernels keep heads inside the sequence, as the products
    before and after want them, so [B,H,S,D] lies as [B,S,H,D]. Its logsumexp is row-major.
    """
    shapes = [value.type.shape for value in op.results]
    heads = op.opcode in ("attention", "attention_backward")
    return tuple(
        _heads_inside(shape) if heads and len(shape) == 4 else row_major_strides(shape)
        for shape in shapes
    )


def _heads_inside(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, sequence, heads, size = row_major_strides((shape[0], shape[2], shape[1], shape[3]))
    return (batch, heads, sequence, size)


def view_strides(op: Op, base: Strided) -> Strided | None:
    """What a view op makes of its operand; None for a reshape that strides cannot express."""
    return _view_strides(op.opcode, op.attributes, op.result.type.shape, base)


@functools.lru_cache(maxsize=4096)
def _view_strides(
    opcode: str,
    attributes: tuple[tuple[str, Attribute], ...],
    shape: tuple[int, ...],
    base: Strided,
) -> Strided | None:
    given = dict(attributes)
    match opcode:
        case "permute":
            axes = cast(tuple[int, ...], given["axes"])
            return Strided(shape, tuple(base.strides[axis] for axis in axes), base.offset)
        case "expand":
            lead = len(shape) - len(base.shape)
            padded = zip((1,) * lead + base.shape, (0,) * lead + base.strides, shape, strict=True)
            strides = tuple(0 if old == 1 and new != 1 else stride for old, stride, new in padded)
            return Strided(shape, strides, base.offset)
        case "slice":
            axis, start, step = (cast(int, given[name]) for name in ("axis", "start", "step"))
            stride = base.strides[axis]
            strides = base.strides[:axis] + (stride * step,) + base.strides[axis + 1 :]
            return Strided(shape, strides, base.offset + start * stride)
        case "flip":
            axis = cast(int, given["axis"])
            stride, extent = base.strides[axis], max(shape[axis], 1)
            strides = base.strides[:axis] + (-stride,) + base.strides[axis + 1 :]
            return Strided(shape, strides, base.offset + (extent - 1) * stride)
        case "reshape":
            reshaped = reshape_strides(base.shape, base.strides, shape)
            return None if reshaped is None else Strided(shape, reshaped, base.offset)
    raise KeyError(f"{opcode} is no view op")


def reshape_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides that show the same elements, in row-major order, under a new shape.

    Axes of extent 1 are dropped, neighbours that lie densely are merged into runs, and the new
    shape must divide the runs; None where it does not.
    """
    if 0 in shape:
        return row_major_strides(new_shape)
    runs: list[tuple[int, int]] = []  # (extent, stride of its last axis)
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    result = [0] * len(new_shape)
    left, step = runs.pop() if runs else (1, 1)
    for axis in reversed(range(len(new_shape))):
        extent = new_shape[axis]
        if extent != 1 and left == 1 and runs:
            left, step = runs.pop()
        result[axis] = step
        if extent == 1:
            continue
        if left % extent:
            return None
        left //= extent
        step *= extent
    return tuple(result) if left == 1 and not runs else None
