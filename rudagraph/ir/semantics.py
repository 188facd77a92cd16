"""What rows of the reference semantics share: the context they compute in and operand access."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Number, Op
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import DType

Loaded = torch.Tensor | Number | None
Results = torch.Tensor | tuple[torch.Tensor, ...]


@dataclass
class Context:
    """How values are held: in their own dtypes, or all floating ones in `precision`."""

    precision: torch.dtype | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def storage(self, dtype: DType) -> torch.dtype:
        """The torch dtype in which a value of this element type is held."""
        if self.precision is not None and dtype.is_floating:
            return self.precision
        return to_torch_dtype(dtype)

    def compute(self, dtype: DType) -> torch.dtype:
        """The torch dtype in which arithmetic on it is done."""
        return self.storage(dtype.compute)


def tensor(op: Op, operands: tuple[Loaded, ...], index: int) -> torch.Tensor:
    """Operand `index`, which must be a tensor."""
    operand = operands[index]
    if not isinstance(operand, torch.Tensor):
        raise VerifyError(f"operand {index} of {op.opcode} must be a tensor, not {operand!r}")
    return operand


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in its compute type."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def optional(operands: tuple[Loaded, ...], index: int) -> torch.Tensor | None:
    """Operand `index` in its compute type, or None where it is left out."""
    operand = operands[index]
    return wide(operand) if isinstance(operand, torch.Tensor) else None


def axes_of(op: Op) -> tuple[int, ...]:
    """Attribute `axes` as a tuple of integers."""
    return ints(op, "axes")


def ints(op: Op, name: str) -> tuple[int, ...]:
    value = op[name]
    assert isinstance(value, tuple)
    return tuple(item for item in value if isinstance(item, int))


def int_of(op: Op, name: str) -> int:
    value = op[name]
    assert isinstance(value, int)
    return value


def float_of(op: Op, name: str) -> float:
    value = op[name]
    assert isinstance(value, (int, float))
    return float(value)
