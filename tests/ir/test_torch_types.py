"""Element types of the IR and of torch, one to one; other dtypes are refused with a way out."""

from __future__ import annotations

import pytest
import torch

from rudagraph.errors import UnsupportedError
from rudagraph.ir.torch_types import from_torch_dtype, to_torch_dtype, type_of
from rudagraph.ir.types import DType, TensorType


def test_dtypes_correspond() -> None:
    for dtype in DType:
        assert from_torch_dtype(to_torch_dtype(dtype)) is dtype
        assert torch.empty((), dtype=to_torch_dtype(dtype)).element_size() == dtype.size


def test_types_of_tensors() -> None:
    assert type_of(torch.zeros(2, 0, dtype=torch.bool)) == TensorType(DType.B8, (2, 0))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        from_torch_dtype(torch.complex64)
    assert caught.value.what == "a tensor has dtype torch.complex64, which the IR does not hold"
    assert caught.value.hint.startswith("convert it outside the compiled step to one of torch.f")
