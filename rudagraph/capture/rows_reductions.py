"""Rows of the lowering table: sums, means, extremes, variances and softmax.

A reduction accumulates in the compute type of its operand; where PyTorch converts first (integers,
a dtype argument), the conversion is a cast of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rudagraph.capture.library import lower_library
from rudagraph.capture.lowering import Lowering, Result
from rudagraph.capture.nodes import Node
from rudagraph.capture.table import arguments, axis_of, row
from rudagraph.ir.graph import Value
from rudagraph.ir.torch_types import from_torch_dtype
from rudagraph.ir.types import DType

aten = torch.ops.aten


def _axes(dims: Any, rank: int) -> tuple[int, ...]:
    """Axes in order; none given means all."""
    if dims is None or dims == []:
        return tuple(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({axis_of(axis, rank) for axis in listed})) if rank else ()


def reduced(
    low: Lowering, opcode: str, value: Value, axes: Sequence[int], keepdim: bool, **attributes: Any
) -> Value:
    """A reduction; over no axes it is the value itself."""
    if not axes:
        return low.cast(value, attributes.get("dtype") or value.type.dtype)
    return low.one(opcode, value, axes=tuple(axes), keepdim=bool(keepdim), **attributes)


@row(aten.sum.default, aten.sum.dim_IntList)
def _sum(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    value = low.value(given["self"])
    dtype = low.dtype(node)
    half_to_single = value.type.dtype.compute is DType.F32 and dtype is DType.F32
    if not half_to_single:
        value = low.cast(value, dtype)
    axes = _axes(given.get("dim"), value.type.rank)
    keepdim = given.get("keepdim", False)
    changed = dtype if value.type.dtype is not dtype else None
    return reduced(low, "sum", value, axes, keepdim, dtype=changed)


@row(aten.mean.default, aten.mean.dim)
def _mean(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    value = low.cast(low.value(given["self"]), low.dtype(node))
    axes = _axes(given.get("dim"), value.type.rank)
    return reduced(low, "mean", value, axes, given.get("keepdim", False))


@row(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
def _extreme(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    value = low.value(given["self"])
    name = node.target._opname
    axes = _axes(given.get("dim"), value.type.rank)
    return reduced(low, f"a{name.removeprefix('a')}", value, axes, given.get("keepdim", False))


@row(aten.var.correction)
def _variance(low: Lowering, node: Node) -> Value:
    return low.cast(_moments(low, node, low.dtype(node))[0], low.dtype(node))


@row(aten.var_mean.correction)
def _variance_and_mean(low: Lowering, node: Node) -> tuple[Value, ...]:
    dtype = from_torch_dtype(node.traced[0].dtype)
    return tuple(low.cast(value, dtype) for value in _moments(low, node, dtype))


def _moments(low: Lowering, node: Node, dtype: DType) -> tuple[Value, Value]:
    """Variance and mean in the compute type, from the deviations: no difference of squares."""
    given = arguments(node)
    value = low.cast(low.value(given["self"]), dtype.compute)
    axes = _axes(given["dim"], value.type.rank)
    keepdim = given["keepdim"]
    correction = 1 if given["correction"] is None else given["correction"]
    count = 1
    for axis in axes:
        count *= value.type.shape[axis]
    mean = reduced(low, "mean", value, axes, True)
    deviation = low.one("sub", value, mean)
    total = reduced(low, "sum", low.one("mul", deviation, deviation), axes, True)
    variance = low.one("div", total, float(max(count - correction, 0)))
    if keepdim:
        return variance, mean
    shape = [n for axis, n in enumerate(value.type.shape) if axis not in axes]
    return low.reshape(variance, shape), low.reshape(mean, shape)


@row(aten._softmax.default, aten._log_softmax.default)
def _softmax(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    value = low.value(given["self"])
    dtype = low.dtype(node)
    name = node.target._opname.removeprefix("_")
    changed = dtype if dtype is not value.type.dtype else None
    return low.one(name, value, axis=axis_of(given["dim"], max(value.type.rank, 1)), dtype=changed)


@row(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    gradient, output = low.value(given["grad_output"]), low.value(given["output"])
    gradient = low.cast(gradient, output.type.dtype)
    dtype = low.dtype(node)
    name = node.target._opname.removeprefix("_").removesuffix("_data")
    changed = dtype if dtype is not output.type.dtype else None
    axis = axis_of(given["dim"], max(output.type.rank, 1))
    return low.one(name, gradient, output, axis=axis, dtype=changed)


@row(aten.linalg_vector_norm.default)
def _vector_norm(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    value = low.value(given["self"])
    dtype = low.dtype(node)
    if given["ord"] != 2 or value.type.rank == 0:
        return lower_library(low, node)
    wide = low.cast(low.cast(value, dtype), dtype.compute)
    axes = _axes(given["dim"], wide.type.rank)
    total = reduced(low, "sum", low.one("mul", wide, wide), axes, given["keepdim"])
    return low.cast(low.one("sqrt", total), dtype)
