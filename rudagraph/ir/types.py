"""Element types and tensor types of the IR.

A type is what a value *means* (dtype and shape); how it lies in memory is the schedule's business.
Text form: ``bf16[8,512]``, ``f32[]``.
"""

from __future__ import annotations

import enum
import functools
import math
from typing import NamedTuple


class DType(enum.Enum):
    """An element type; the value is its name in IR text."""

    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    B8 = "b8"

    # Of each there is one object: Enum's own hash, of the name, is Python and asked for often.
    __hash__ = object.__hash__

    _value_: str
    size: int  # bytes of one element
    is_floating: bool
    is_integer: bool  # integers proper: booleans are neither floating nor integer

    def __init__(self, text: str) -> None:
        self.size = 2 if text == "bf16" else int(text[1:]) // 8
        self.is_floating = text.startswith(("f", "bf"))
        self.is_integer = text.startswith(("i", "u"))

    def __str__(self) -> str:
        return self._value_

    @property
    def compute(self) -> DType:
        """The type in which arithmetic on this storage type is done (PyTorch's opmath type)."""
        return DType.F32 if self in (DType.F16, DType.BF16) else self


class TensorType(NamedTuple):
    """A dtype and a static shape."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements, without alignment."""
        return self.numel * self.dtype.size

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(self.dtype, shape)


@functools.lru_cache(maxsize=4096)
def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor of this shape."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


@functools.lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape under NumPy's rule; raises ValueError where there is none."""
    return functools.reduce(_broadcast_pair, shapes, ())


def _broadcast_pair(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(left), len(right))
    padded_left = (1,) * (rank - len(left)) + left
    padded_right = (1,) * (rank - len(right)) + right
    for a, b in zip(padded_left, padded_right, strict=True):
        if a != b and 1 not in (a, b):
            raise ValueError(f"shapes {list(left)} and {list(right)} do not broadcast")
    return tuple(b if a == 1 else a for a, b in zip(padded_left, padded_right, strict=True))
