"""Reference semantics of pointwise ops.

Tensor operands arrive in their compute type and Python numbers become scalars of that type, so no
row rounds; the interpreter rounds the result once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from rudagraph.errors import ContractError, VerifyError
from rudagraph.ir.graph import Op
from rudagraph.ir.semantics import Context, Loaded, Results, int_of, wide
from rudagraph.ir.types import DType, broadcast_shapes

aten = torch.ops.aten


_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "neg abs sqrt rsqrt reciprocal floor ceil trunc round sign relu exp exp2 expm1 log log2"
        " log10 log1p sin cos tan asin acos atan sinh cosh tanh sigmoid erf isnan isinf"
        " logical_not bitwise_not"
    ).split()
} | {"silu": F.silu, "copy": lambda x: x.contiguous()}

_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "add sub mul maximum minimum floor_divide remainder fmod atan2 eq ne lt le gt ge"
        " logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"
    ).split()
} | {
    "div": torch.div,
    "truncate_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "silu_backward": aten.silu_backward,
    "sigmoid_backward": aten.sigmoid_backward,
    "tanh_backward": aten.tanh_backward,
}


def _load(operand: Loaded, dtype: torch.dtype, context: Context) -> torch.Tensor:
    """The operand as a tensor, a number as a scalar of the given type."""
    if isinstance(operand, torch.Tensor):
        return operand
    if operand is None:
        raise VerifyError("a pointwise op cannot leave an operand out")
    return torch.tensor(operand, dtype=dtype, device=context.device)


def _compute_type(op: Op, context: Context) -> torch.dtype:
    """The type the arithmetic is done in: that of the (equal) dtypes of the tensor operands."""
    return context.compute(op.inputs[0].type.dtype)


def _loaded(op: Op, operands: tuple[Loaded, ...], context: Context) -> list[torch.Tensor]:
    """Operands in the compute type, of one shape.

    Shapes are made equal here because a backward formula of ATen does not broadcast.
    """
    dtype = _compute_type(op, context)
    tensors = [wide(_load(operand, dtype, context)) for operand in operands]
    shape = broadcast_shapes(*(tuple(tensor.shape) for tensor in tensors))
    return [tensor.expand(shape) for tensor in tensors]


def _unary_row(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[Op, tuple[Loaded, ...], Context], Results]:
    def row(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
        return function(*_loaded(op, operands, context))

    return row


def _binary_row(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[Op, tuple[Loaded, ...], Context], Results]:
    def row(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
        first, second = _loaded(op, operands, context)
        return function(first, second)

    return row


def _power(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    """A number as exponent goes to PyTorch as one: it squares, cubes and takes roots exactly."""
    base, exponent = operands
    if isinstance(base, torch.Tensor) and isinstance(exponent, (int, float)):
        return torch.pow(wide(base), exponent)
    first, second = _loaded(op, operands, context)
    return torch.pow(first, second)


def _gelu(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    (x,) = _loaded(op, operands, context)
    return F.gelu(x, approximate=str(op.get("approximate", "none")))


def _gelu_backward(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    gradient, x = _loaded(op, operands, context)
    approximate = str(op.get("approximate", "none"))
    result: torch.Tensor = aten.gelu_backward(gradient, x, approximate=approximate)
    return result


def _cast(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    """No widening first: the interpreter's rounding is the conversion itself."""
    operand: Any = operands[0]
    result: torch.Tensor = operand
    return result


def _multiply_add(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    """A product of f32 is exact in f64, so only the sum rounds; f64 rounds the product as well."""
    first, second, third = (tensor.double() for tensor in _loaded(op, operands, context))
    return (first * second + third).to(_compute_type(op, context))


def _where(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    """A choice, not arithmetic: tensors stay as they are, numbers take the result's type."""
    dtype: DType = op.result.type.dtype
    held = context.compute(dtype)
    condition, first, second = (_load(operand, held, context) for operand in operands)
    return torch.where(condition, first, second)


def _check_index(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    (index,) = _loaded(op, operands, context)
    extent, ignore = int_of(op, "extent"), op.get("ignore")
    wrong = (index < 0) | (index >= extent)
    if isinstance(ignore, int):
        wrong &= index != ignore
    if wrong.any():
        raise ContractError(
            f"index {int(index[wrong][0])} is out of range for {extent} classes",
            where=f"{op.opcode} {op.results[0]} {op.location.line}".rstrip(),
        )
    return index


POINTWISE: dict[str, Callable[[Op, tuple[Loaded, ...], Context], Results]] = {
    **{name: _unary_row(function) for name, function in _UNARY.items()},
    **{name: _binary_row(function) for name, function in _BINARY.items()},
    "pow": _power,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "cast": _cast,
    "multiply_add": _multiply_add,
    "where": _where,
    "check_index": _check_index,
}
