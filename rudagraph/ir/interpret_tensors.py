"""Reference semantics of ops that move, join, fold or multiply tensors, and of creation.

Reductions, products and scatters accumulate in the compute type; the interpreter rounds once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from rudagraph.errors import ContractError
from rudagraph.ir import random
from rudagraph.ir.graph import Op
from rudagraph.ir.semantics import (
    Context,
    Loaded,
    Results,
    axes_of,
    float_of,
    int_of,
    ints,
    tensor,
    wide,
)

Operands = tuple[Loaded, ...]


# -- reductions: torch folds all axes where it is given none, the IR folds none


def _sum(op: Op, operands: Operands, context: Context) -> Results:
    x = tensor(op, operands, 0)
    given, wanted = op.inputs[0].type.dtype, op.result.type.dtype
    # Rounding goes the way of the wider type: f32 elements summed into bf16 stay f32 until the end,
    # bf16 and integer elements summed into f64 are f64 from the start.
    both_floating = given.is_floating and wanted.is_floating
    widest = given if both_floating and given.compute.size > wanted.compute.size else wanted
    x = x.to(context.compute(widest))
    axes = axes_of(op)
    return torch.sum(x, axes, keepdim=bool(op.get("keepdim", False))) if axes else x


def _mean(op: Op, operands: Operands, context: Context) -> Results:
    x, axes = wide(tensor(op, operands, 0)), axes_of(op)
    return torch.mean(x, axes, keepdim=bool(op.get("keepdim", False))) if axes else x


def _extreme(
    function: Callable[..., torch.Tensor],
) -> Callable[[Op, Operands, Context], Results]:
    def row(op: Op, operands: Operands, context: Context) -> Results:
        x, axes = tensor(op, operands, 0), axes_of(op)
        return function(x, axes, keepdim=bool(op.get("keepdim", False))) if axes else x

    return row


# -- views


def _reshape(op: Op, operands: Operands, context: Context) -> Results:
    return tensor(op, operands, 0).reshape(ints(op, "shape"))


def _permute(op: Op, operands: Operands, context: Context) -> Results:
    return tensor(op, operands, 0).permute(axes_of(op))


def _expand(op: Op, operands: Operands, context: Context) -> Results:
    return tensor(op, operands, 0).expand(ints(op, "shape"))


def _slice(op: Op, operands: Operands, context: Context) -> Results:
    axis, start, stop, step = (int_of(op, name) for name in ("axis", "start", "stop", "step"))
    index = (slice(None),) * axis + (slice(start, stop, step),)
    return tensor(op, operands, 0)[index]


def _flip(op: Op, operands: Operands, context: Context) -> Results:
    return tensor(op, operands, 0).flip(int_of(op, "axis"))


# -- creation and random


def _full(op: Op, operands: Operands, context: Context) -> Results:
    value = op["value"]
    assert isinstance(value, (bool, int, float))
    dtype = context.storage(op.result.type.dtype)
    return torch.full(ints(op, "shape"), value, dtype=dtype, device=context.device)


def _iota(op: Op, operands: Operands, context: Context) -> Results:
    """Computed in i64 or f64 whatever the result's type: an index is exact before it rounds."""
    kind = torch.float64 if op.result.type.dtype.is_floating else torch.int64
    index = torch.arange(int_of(op, "length"), dtype=kind, device=context.device)
    start, step = op["start"], op["step"]
    assert isinstance(start, (int, float)) and isinstance(step, (int, float))
    return (index * step + start).reshape(op.result.type.shape)


def _bernoulli(op: Op, operands: Operands, context: Context) -> Results:
    drawn = random.bernoulli(
        int(tensor(op, operands, 0).item()),
        int_of(op, "stream"),
        ints(op, "shape"),
        float_of(op, "probability"),
        int_of(op, "bits"),
    )
    return torch.from_numpy(drawn).to(context.device)


# -- joining


def _concatenate(op: Op, operands: Operands, context: Context) -> Results:
    parts = [tensor(op, operands, index) for index in range(len(operands))]
    return torch.cat(parts, int_of(op, "axis"))


def _pad(op: Op, operands: Operands, context: Context) -> Results:
    """PyTorch lists (low, high) from the last axis to the first."""
    pairs = zip(reversed(ints(op, "low")), reversed(ints(op, "high")), strict=True)
    value = op.get("value", 0)
    assert isinstance(value, (bool, int, float))
    return F.pad(tensor(op, operands, 0), [n for pair in pairs for n in pair], value=value)


# -- products


def _matmul(op: Op, operands: Operands, context: Context) -> Results:
    return wide(tensor(op, operands, 0)) @ wide(tensor(op, operands, 1))


def _addmm(op: Op, operands: Operands, context: Context) -> Results:
    first, second, third = (wide(tensor(op, operands, index)) for index in range(3))
    return first + second @ third


# -- indexing


def _checked_ids(op: Op, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """The ids, flat and i64; an error where one is out of range."""
    flat = ids.reshape(-1).long()
    wrong = flat[(flat < 0) | (flat >= rows)]
    if wrong.numel():
        raise ContractError(
            f"id {int(wrong[0])} is out of range for a table of {rows} rows",
            where=f"{op.opcode} {op.result} {op.location.line}".rstrip(),
        )
    return flat


def _embedding(op: Op, operands: Operands, context: Context) -> Results:
    weight = tensor(op, operands, 0)
    flat = _checked_ids(op, tensor(op, operands, 1), weight.shape[0])
    return weight[flat].reshape(op.result.type.shape)


def _embedding_backward(op: Op, operands: Operands, context: Context) -> Results:
    rows, padding = int_of(op, "rows"), op.get("padding_index", -1)
    flat = _checked_ids(op, tensor(op, operands, 1), rows)
    width = op.result.type.shape[1]
    gradient = wide(tensor(op, operands, 0)).reshape(flat.numel(), width)
    if op.get("scale_by_frequency", False):
        counts = torch.bincount(flat, minlength=rows)
        gradient = gradient / counts[flat].to(gradient.dtype).unsqueeze(1)
    kept = flat != padding
    table = gradient.new_zeros(op.result.type.shape)
    # On a CPU index_add_ adds row after row, in order of index: the order the op promises.
    return table.index_add_(0, flat[kept], gradient[kept])


TENSORS: dict[str, Callable[[Op, Operands, Context], Results]] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _extreme(torch.amax),
    "amin": _extreme(torch.amin),
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "flip": _flip,
    "full": _full,
    "iota": _iota,
    "bernoulli": _bernoulli,
    "concatenate": _concatenate,
    "pad": _pad,
    "matmul": _matmul,
    "addmm": _addmm,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
}
