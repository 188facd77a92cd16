"""Rules of simplify for constants: ops on `full` and `iota` are `full`, `iota` or plain numbers.

%two = full() [dtype=f32, shape=[4, 8], value=2.0]        %y = mul(%x, 2.0)
%y = mul(%x, %two)
"""

from __future__ import annotations

from typing import cast as typed

import torch

from rudagraph.ir.graph import Number, Op, Operand, Value
from rudagraph.ir.interpret import evaluate
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.rewrite import Replacement, Rewriter, Rule
from rudagraph.ir.semantics import Context
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import DType, TensorType, broadcast_shapes

# An index beyond is no longer exact in f64, in which iota computes floats.
_EXACT = 2**53
_CAN_FAIL = ("floor_divide", "truncate_divide", "remainder", "fmod", "check_index")


def _stored(full: Op) -> Number:
    """The number that a `full` holds, rounded to its type."""
    value = torch.tensor(full["value"], dtype=to_torch_dtype(full.result.type.dtype))
    return value.item()


def fold_constants(rewriter: Rewriter, op: Op) -> Replacement:
    """A pointwise op on constants alone is a constant: the interpreter says which.

    Transcendentals stay: the kernel's own rounding of them may differ from the interpreter's.
    So does what can fail on integers: the step fails, not its compilation.
    """
    if has(op, Tag.EXPENSIVE) or (op.opcode in _CAN_FAIL and op.result.type.dtype.is_integer):
        return None
    producers = [rewriter.producer(value, "full") for value in op.inputs]
    if not producers or None in producers:
        return None
    numbers = iter([_stored(full) for full in producers if full is not None])
    scalars = [
        _scalar(operand, next(numbers)) if isinstance(operand, Value) else operand
        for operand in op.operands
    ]
    operands = tuple(
        Value(operand.name, operand.type.with_shape(())) if isinstance(operand, Value) else operand
        for operand in op.operands
    )
    result = Value(op.result.name, op.result.type.with_shape(()))
    (folded,) = evaluate(
        Op(op.opcode, operands, (result,), op.attributes), tuple(scalars), Context()
    )
    return folded.item()


def _scalar(value: Value, number: Number) -> torch.Tensor:
    return torch.tensor(number, dtype=to_torch_dtype(value.type.dtype))


def absorb_constants(rewriter: Rewriter, op: Op) -> Replacement:
    """A constant operand becomes a number, unless it alone gives the result its shape.

    PyTorch raises to the power of a number in another way than to that of a tensor, so pow keeps
    its operands.
    """
    if op.opcode == "pow" or len(op.operands) < 2:
        return None
    operands: list[Operand] = list(op.operands)
    first = 1 if op.opcode == "where" else 0
    for index in range(first, len(operands)):
        constant = rewriter.producer(operands[index], "full")
        if constant is None:
            continue
        rest = [o for i, o in enumerate(operands) if i != index and isinstance(o, Value)]
        if rest and broadcast_shapes(*(o.type.shape for o in rest)) == op.result.type.shape:
            operands[index] = _stored(constant)
    if operands == list(op.operands):
        return None
    if op.opcode != "where" or any(isinstance(branch, Value) for branch in operands[1:]):
        return rewriter.like(op, *operands)
    return rewriter.one("where", *operands, dtype=op.result.type.dtype)


def _view_of_constant(rewriter: Rewriter, op: Op) -> Replacement:
    constant = rewriter.producer(op.operands[0], "full")
    return None if constant is None else typed(Number, constant["value"])


def _extreme_of_constant(rewriter: Rewriter, op: Op) -> Replacement:
    """The extreme of nothing is an error, and stays one."""
    return _view_of_constant(rewriter, op) if op.inputs[0].type.numel else None


# -- iota


def _affine(rewriter: Rewriter, op: Op) -> Replacement:
    """iota plus, minus or times an integer is an iota, as long as nothing overflows."""
    iota, number, turned = op.operands[0], op.operands[1], False
    if not isinstance(iota, Value):
        iota, number, turned = number, iota, True
    source = rewriter.producer(iota, "iota")
    if source is None or type(number) is not int or not op.result.type.dtype.is_integer:
        return None
    start, step = typed(int, source["start"]), typed(int, source["step"])
    match op.opcode:
        case "mul":
            start, step = start * number, step * number
        case "add":
            start += number
        case _ if turned:
            start, step = number - start, -step
        case _:
            start -= number
    return _iota(rewriter, op.result.type, start, step)


def _cast_of_iota(rewriter: Rewriter, op: Op) -> Replacement:
    source = rewriter.producer(op.operands[0], "iota")
    if source is None or not op.inputs[0].type.dtype.is_integer:
        return None
    if op.result.type.dtype is DType.B8:
        return None
    start, step = typed(int, source["start"]), typed(int, source["step"])
    return _iota(rewriter, op.result.type, start, step)


def _iota(rewriter: Rewriter, type: TensorType, start: int, step: int) -> Replacement:
    """The iota, if its type holds both ends."""
    limit = _EXACT if type.dtype.is_floating else 2 ** (8 * type.dtype.size - 1) - 1
    ends = (start, start + step * (type.numel - 1))
    lowest = 0 if type.dtype is DType.U8 else -limit
    if not all(lowest <= end <= limit for end in ends):
        return None
    shape = type.shape if type.rank != 1 else None
    return rewriter.one(
        "iota", dtype=type.dtype, length=type.numel, shape=shape, start=start, step=step
    )


CONSTANTS: dict[str, Rule] = {
    **dict.fromkeys(("reshape", "permute", "expand", "slice"), _view_of_constant),
    **dict.fromkeys(("amax", "amin"), _extreme_of_constant),
    **dict.fromkeys(("add", "sub", "mul"), _affine),
    "cast": _cast_of_iota,
}
