"""Rows of the lowering table: as_strided, which addresses memory rather than elements.

The IR does not record how elements lie in memory. The trace knows it, so an element of the result
is traced back to the element of the operand that lies there; what lies outside is refused.
"""

from __future__ import annotations

from typing import Any

import torch

from rudagraph.capture.lowering import Lowering
from rudagraph.capture.nodes import Node
from rudagraph.capture.table import arguments, row
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Hole, Value

aten = torch.ops.aten


def _sources(node: Node) -> torch.Tensor:
    """For each element of the strided view the row-major index of the operand's element there."""
    given = arguments(node)
    operand = given["self"].traced
    offset = given["storage_offset"]
    start = operand.storage_offset() if offset is None else offset
    wanted = _positions(given["size"], given["stride"], int(start))
    held = _positions(operand.shape, operand.stride(), int(operand.storage_offset()))
    reach = int(max(wanted.max(), held.max())) + 1 if wanted.numel() and held.numel() else 0
    table = torch.full((reach,), -1, dtype=torch.int64)
    table[held] = torch.arange(held.numel())
    found = table[wanted] if reach else wanted
    if bool((found < 0).any()):
        raise UnsupportedError(
            "as_strided reads memory outside the tensor it is called on",
            hint="call it on the whole tensor, or write it with slices, unfold or indexing",
        )
    return found


def _positions(shape: Any, strides: Any, offset: int) -> torch.Tensor:
    """The memory positions of a view's elements, in row-major order."""
    positions = torch.tensor([offset])
    for extent, stride in zip(shape, strides, strict=True):
        steps = torch.arange(int(extent)) * int(stride)
        positions = (positions[:, None] + steps).reshape(-1)
    return positions


@row(aten.as_strided.default)
def _as_strided(low: Lowering, node: Node) -> Value:
    found = _sources(node)
    type = low.type(node)
    value: Value = low.value(node.args[0])
    flat = low.reshape(value, (value.type.numel,))
    count = found.numel()
    first = int(found[0]) if count else 0
    if torch.equal(found, torch.arange(first, first + count)):
        return low.reshape(low.slice(flat, 0, first, first + count), type.shape)
    index = low.constant(found, f"{low.name}.index")
    (chosen,) = low.builder.emit(
        "library",
        flat,
        index,
        types=(flat.type.with_shape((count,)),),
        name=low.name,
        target="aten.index_select.default",
        arguments=(Hole(0), 0, Hole(1)),
    )
    return low.reshape(chosen, type.shape)


@row(aten.as_strided_scatter.default)
def _as_strided_scatter(low: Lowering, node: Node) -> Value:
    found = _sources(node)
    value: Value = low.value(node.args[0])
    flat = low.reshape(value, (value.type.numel,))
    source = low.cast(low.value(node.args[1]), value.type.dtype)
    index = low.constant(found, f"{low.name}.index")
    (written,) = low.builder.emit(
        "library",
        flat,
        index,
        low.reshape(source, (found.numel(),)),
        types=(flat.type,),
        name=low.name,
        target="aten.index_copy.default",
        arguments=(Hole(0), 0, Hole(1), Hole(2)),
    )
    return low.reshape(written, value.type.shape)
