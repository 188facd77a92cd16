"""The correspondence of IR element types and torch dtypes, in one table."""

from __future__ import annotations

import torch

from rudagraph.errors import UnsupportedError
from rudagraph.ir.types import DType, TensorType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.U8: torch.uint8,
    DType.B8: torch.bool,
}
_IR_DTYPES = {torch_dtype: dtype for dtype, torch_dtype in TORCH_DTYPES.items()}


def to_torch_dtype(dtype: DType) -> torch.dtype:
    return TORCH_DTYPES[dtype]


def from_torch_dtype(dtype: torch.dtype) -> DType:
    """Raises UnsupportedError for a dtype the IR has not (complex, quantised, float8 …)."""
    if dtype not in _IR_DTYPES:
        known = ", ".join(str(torch_dtype) for torch_dtype in _IR_DTYPES)
        raise UnsupportedError(
            what=f"a tensor has dtype {dtype}, which the IR does not hold",
            hint=f"convert it outside the compiled step to one of {known}",
        )
    return _IR_DTYPES[dtype]


def type_of(tensor: torch.Tensor) -> TensorType:
    return TensorType(from_torch_dtype(tensor.dtype), tuple(int(n) for n in tensor.shape))
