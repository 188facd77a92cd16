"""Rows of the lowering table: batch norm, run by PyTorch in the compute type.

What dtypes PyTorch's kernels give for statistics in half precision differs between devices, and
from what the trace says. In the compute type all agree, so halves are cast on the way in and out;
statistics saved for backward keep the compute type.
"""

from __future__ import annotations

import torch

from rudagraph.capture.library import lower_library
from rudagraph.capture.lowering import Lowering, Result
from rudagraph.capture.nodes import Node
from rudagraph.capture.table import WIDENED, arguments, row
from rudagraph.ir.graph import Value
from rudagraph.ir.torch_types import from_torch_dtype

aten = torch.ops.aten

_FORWARD = (
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_no_training.default,
    aten.native_batch_norm.default,
)
_BACKWARD = (aten.native_batch_norm_backward.default,)
WIDENED.update((*_FORWARD, *_BACKWARD))


@row(*_FORWARD)
def _batch_norm(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    x: Value = low.value(given["input"])
    results = lower_library(low, node, x.type.dtype.compute)
    assert isinstance(results, tuple)
    output, mean, rstd, *running = results
    sources = [low.value(given[name]) for name in ("running_mean", "running_var") if running]
    updated = [
        low.cast(value, source.type.dtype) for value, source in zip(running, sources, strict=True)
    ]
    if not _only_backward_reads(node):
        traced = [from_torch_dtype(fake.dtype) for fake in node.traced[1:3]]
        mean, rstd = low.cast(mean, traced[0]), low.cast(rstd, traced[1])
    return (low.cast(output, x.type.dtype), mean, rstd, *updated)


def _only_backward_reads(node: Node) -> bool:
    """Whether the saved statistics go nowhere but into the derivative."""
    saved = [item for item in node.users if item.args[1] in (1, 2)]
    return all(user.target in _BACKWARD for item in saved for user in item.users)


@row(*_BACKWARD)
def _batch_norm_backward(low: Lowering, node: Node) -> Result:
    x: Value = low.value(node.args[1])
    results = lower_library(low, node, x.type.dtype.compute)
    assert isinstance(results, tuple)
    return tuple(
        value if value is None else low.cast(value, from_torch_dtype(fake.dtype))
        for value, fake in zip(results, node.traced, strict=True)
    )
