"""Rows of the lowering table: other shapes of the same elements.

Everything is a reshape, permute, expand or slice; how elements lie in memory is not recorded.
"""

from __future__ import annotations

from typing import Any

import torch

from rudagraph.capture.lowering import Lowering
from rudagraph.capture.nodes import Node
from rudagraph.capture.table import arguments, axis_of, row
from rudagraph.ir.graph import Value

aten = torch.ops.aten


def _first(low: Lowering, node: Node) -> Value:
    value: Value = low.value(node.args[0])
    return value


@row(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
def _reshape(low: Lowering, node: Node) -> Value:
    return low.reshape(_first(low, node), node.traced.shape)


@row(aten.permute.default)
def _permute(low: Lowering, node: Node) -> Value:
    value = _first(low, node)
    return low.permute(value, [axis_of(axis, value.type.rank) for axis in node.args[1]])


@row(aten.transpose.int)
def _transpose(low: Lowering, node: Node) -> Value:
    value = _first(low, node)
    if value.type.rank == 0:
        return value
    a, b = (axis_of(axis, value.type.rank) for axis in node.args[1:3])
    axes = list(range(value.type.rank))
    axes[a], axes[b] = axes[b], axes[a]
    return low.permute(value, axes)


@row(aten.t.default)
def _t(low: Lowering, node: Node) -> Value:
    value = _first(low, node)
    return value if value.type.rank < 2 else low.permute(value, (1, 0))


@row(aten.expand.default)
def _expand(low: Lowering, node: Node) -> Value:
    return low.expand(_first(low, node), node.traced.shape)


@row(aten.slice.Tensor)
def _slice(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    value = _first(low, node)
    axis = axis_of(given["dim"], value.type.rank)
    start, stop = bounds(value.type.shape[axis], given["start"], given["end"])
    return low.slice(value, axis, start, stop, given["step"])


def bounds(extent: int, start: int | None, stop: int | None) -> tuple[int, int]:
    """Start and stop as Python's slices normalise them, stop not before start."""
    first, last, _ = slice(start, stop).indices(extent)
    return first, max(first, last)


@row(aten.select.int)
def _select(low: Lowering, node: Node) -> Value:
    value = _first(low, node)
    axis = axis_of(node.args[1], value.type.rank)
    index = axis_of(node.args[2], value.type.shape[axis])
    return low.reshape(low.slice(value, axis, index, index + 1), node.traced.shape)


@row(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.unbind.int,
)
def _split(low: Lowering, node: Node) -> tuple[Value, ...]:
    value = _first(low, node)
    axis = axis_of(arguments(node)["dim"], value.type.rank)
    parts: list[Value] = []
    start = 0
    for part in node.traced:
        size = 1 if node.target is aten.unbind.int else part.shape[axis]
        piece = low.slice(value, axis, start, start + size)
        parts.append(low.reshape(piece, part.shape))
        start += size
    return tuple(parts)


@row(aten.repeat.default)
def _repeat(low: Lowering, node: Node) -> Value:
    value = _first(low, node)
    times: Any = node.args[1]
    shape = (1,) * (len(times) - value.type.rank) + value.type.shape
    single = [n for extent in shape for n in (1, extent)]
    repeated = [n for pair in zip(times, shape, strict=True) for n in pair]
    spread = low.expand(low.reshape(value, single), repeated)
    return low.reshape(spread, node.traced.shape)


# -- their gradients, and writes into parts


@row(aten.slice_backward.default)
def _slice_backward(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    gradient = low.value(given["grad_output"])
    axis = axis_of(given["dim"], gradient.type.rank)
    extent = given["input_sizes"][axis]
    start, stop = bounds(extent, given["start"], given["end"])
    step = given["step"]
    if step != 1:
        gradient = _spread(low, gradient, axis, step)
        stop = min(stop, start + gradient.type.shape[axis])
        gradient = low.slice(gradient, axis, 0, stop - start)
    return _padded(low, gradient, axis, start, extent)


def _spread(low: Lowering, value: Value, axis: int, step: int) -> Value:
    """Elements along an axis with step - 1 zeros after each."""
    shape = value.type.shape
    apart = low.reshape(value, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    high = tuple(step - 1 if i == axis + 1 else 0 for i in range(len(shape) + 1))
    wide = low.one("pad", apart, low=(0,) * len(high), high=high, value=0)
    return low.reshape(wide, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))


@row(aten.select_backward.default)
def _select_backward(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    sizes = list(given["input_sizes"])
    axis = axis_of(given["dim"], len(sizes))
    index = axis_of(given["index"], sizes[axis])
    shape = [*sizes[:axis], 1, *sizes[axis + 1 :]]
    gradient = low.reshape(low.value(given["grad_output"]), shape)
    return _padded(low, gradient, axis, index, sizes[axis])


def _padded(low: Lowering, value: Value, axis: int, start: int, extent: int) -> Value:
    """The value at `start` along an axis of the given extent, zeros elsewhere."""
    before = tuple(start if i == axis else 0 for i in range(value.type.rank))
    after = tuple(extent - start - n if i == axis else 0 for i, n in enumerate(value.type.shape))
    if not any(before) and not any(after):
        return value
    return low.one("pad", value, low=before, high=after, value=0)


@row(aten.constant_pad_nd.default)
def _constant_pad(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    value = low.value(given["self"])
    rank = value.type.rank
    pairs = [tuple(given["pad"][i : i + 2]) for i in range(0, len(given["pad"]), 2)]
    pairs += [(0, 0)] * (rank - len(pairs))
    before, after = zip(*reversed(pairs), strict=True) if pairs else ((), ())
    return low.one("pad", value, low=tuple(before), high=tuple(after), value=given["value"])


@row(aten.slice_scatter.default)
def _slice_scatter(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    value = low.value(given["self"])
    axis = axis_of(given["dim"], value.type.rank)
    extent = value.type.shape[axis]
    start, stop = bounds(extent, given["start"], given["end"])
    source = low.cast(low.value(given["src"]), value.type.dtype)
    if given["step"] != 1:
        return _scatter_apart(low, value, source, axis, start, stop, given["step"])
    if low.number(given["self"], value.type.dtype) == 0:
        return _padded(low, source, axis, start, extent)
    parts = [
        low.slice(value, axis, 0, start) if start > 0 else None,
        source,
        low.slice(value, axis, stop, extent) if stop < extent else None,
    ]
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else low.one("concatenate", *present, axis=axis)


def _scatter_apart(
    low: Lowering, value: Value, source: Value, axis: int, start: int, stop: int, step: int
) -> Value:
    """Every step-th element from `source`: chosen by a constant mask along the axis."""
    extent = value.type.shape[axis]
    mask = torch.zeros(extent, dtype=torch.bool)
    mask[start:stop:step] = True
    shape = [extent if i == axis else 1 for i in range(value.type.rank)]
    chosen = low.constant(mask.reshape(shape), "mask")
    wide = _spread(low, source, axis, step)
    wide = low.slice(wide, axis, 0, min(wide.type.shape[axis], extent - start))
    return low.one("where", chosen, _padded(low, wide, axis, start, extent), value)


@row(aten.cat.default)
def _cat(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    type = low.type(node)
    parts = [low.cast(low.value(part), type.dtype) for part in given["tensors"]]
    # PyTorch skips empty vectors whatever the rank of the others.
    parts = [part for part in parts if part.type.rank == type.rank and part.type.numel > 0]
    if not parts:
        return low.full(type, 0)
    axis = axis_of(given["dim"], type.rank)
    return parts[0] if len(parts) == 1 else low.one("concatenate", *parts, axis=axis)
