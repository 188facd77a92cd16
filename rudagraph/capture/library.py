"""Rows of the lowering table for everything without an IR op: PyTorch runs it.

Input: a functional ATen op with static shapes. Output: a `library` op that holds the call as a
template with holes for operands. Devices and layouts are dropped: the step runs on one device.
"""

from __future__ import annotations

from typing import Any

import torch

from rudagraph.capture.lowering import Lowering, Result
from rudagraph.capture.nodes import Node
from rudagraph.capture.table import arguments
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Attribute, Hole, Value
from rudagraph.ir.torch_types import from_torch_dtype, type_of
from rudagraph.ir.types import DType


def lower_library(low: Lowering, node: Node, wide: DType | None = None) -> Result:
    """A library op; several results come as a tuple in the places the trace has them.

    With `wide` every floating operand is cast to it, and floating results are of that type.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        raise UnsupportedError(
            f"{target} has control flow or a kernel of its own, which a step cannot hold",
            hint="write it with ordinary tensor functions, or leave it out of the step",
        )
    if target._schema.is_mutable:
        raise UnsupportedError(
            f"{target} changes a tensor in place and has no functional form",
            hint="use the form of the operation that returns a new tensor",
        )
    operands: list[Value] = []
    positional = tuple(_template(low, argument, operands) for argument in node.args)
    keywords = tuple(
        (name, _template(low, argument, operands)) for name, argument in sorted(node.kwargs.items())
    )
    keywords = tuple((name, value) for name, value in keywords if value is not None)
    flat = _results(node)
    types = tuple(type_of(tensor) for tensor in flat if tensor is not None)
    if wide is not None:
        operands = [_widened(low, operand, wide) for operand in operands]
        types = tuple(t.with_dtype(wide) if t.dtype.is_floating else t for t in types)
    if not types:
        raise UnsupportedError(f"{target} returns no tensor, so a step cannot hold it")
    results = iter(
        low.builder.emit(
            "library",
            *operands,
            types=types,
            name=[name for name, tensor in zip(low.names, flat, strict=True) if tensor is not None],
            target=f"{target.namespace}.{target._opname}.{target._overloadname}",
            arguments=positional,
            keywords=keywords or None,
        )
    )
    if not isinstance(node.traced, (tuple, list)):
        return next(results)
    return tuple(None if tensor is None else next(results) for tensor in flat)  # type: ignore[misc]


def _results(node: Node) -> list[Any]:
    """The traced results in order, None for those that the op leaves out."""
    outputs = node.traced
    flat = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    wanted = arguments(node).get("output_mask")
    if wanted is not None:  # what is not asked for is left out when the op really runs
        flat = [tensor if asked else None for tensor, asked in zip(flat, wanted, strict=True)]
    if any(tensor is not None and tensor.layout is not torch.strided for tensor in flat):
        raise UnsupportedError(
            f"{node.target} gives a sparse tensor, which a step cannot hold",
            hint="use dense tensors, or leave this part out of the step",
        )
    return flat


def _widened(low: Lowering, operand: Value, wide: DType) -> Value:
    return low.cast(operand, wide) if operand.type.dtype.is_floating else operand


def _template(low: Lowering, argument: Any, operands: list[Value]) -> Attribute:
    if isinstance(argument, Node):
        operands.append(low.value(argument))
        return Hole(len(operands) - 1)
    if isinstance(argument, (list, tuple)):
        return tuple(_template(low, item, operands) for item in argument)
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    if isinstance(argument, torch.dtype):
        return from_torch_dtype(argument)
    if isinstance(argument, torch.memory_format):
        return str(argument)
    if isinstance(argument, (torch.device, torch.layout)):
        return None
    raise UnsupportedError(f"an argument {argument!r} cannot be part of a step")
