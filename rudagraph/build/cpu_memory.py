"""Loads, stores and storage rounding of the kernel language.

A pointer counts in elements of the type that the function names. f16 and bf16 exist in memory
only: loads widen them to f32, stores round to nearest even and keep NaN a NaN. Invariant: a load
or store is one memory access of that type, at any alignment the element itself allows.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from rudagraph.build.cpu_emit import (
    B8,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    U8,
    U32,
    U64,
    VOID,
    Kind,
    Operation,
    Scalar,
    exactly,
    operation,
    same,
    select,
)

_HALF = Kind("f16", None, ir.HalfType(), 16, is_floating=True)
_U16 = Kind("u16", None, ir.IntType(16), 16, is_signed=False)
_INDEX = (I64, I32, I16, I8, U8, U32, U64)


def _address(pointer: Scalar, index: Scalar, memory: Any) -> Any:
    builder = pointer.builder
    if index.kind.bits < 64:
        index = index.instruction("sext" if index.kind.is_signed else "zext", I64)
    typed = builder.bitcast(pointer.value, memory.as_pointer())
    return builder.gep(typed, [index.value], inbounds=True)


def _load(pointer: Scalar, index: Scalar, memory: Kind) -> Scalar:
    builder = pointer.builder
    value = builder.load(_address(pointer, index, memory.llvm), align=memory.bits // 8)
    return Scalar(builder, value, memory)


def _store(pointer: Scalar, index: Scalar, value: Scalar) -> None:
    address = _address(pointer, index, value.kind.llvm)
    pointer.builder.store(value.value, address, align=value.kind.bits // 8)


def _plain(kind: Kind) -> tuple[Operation, Operation]:
    def load(pointer: Scalar, index: Scalar) -> Scalar:
        return _load(pointer, index, kind)

    def store(pointer: Scalar, index: Scalar, value: Scalar) -> None:
        _store(pointer, index, value)

    load.__name__, store.__name__ = f"load_{kind}", f"store_{kind}"
    load.__doc__ = f"Element `index` of memory of {kind}."
    store.__doc__ = f"Writes element `index` of memory of {kind}."
    return (
        operation(exactly(kind, POINTER, _INDEX), small=True)(load),
        operation(exactly(VOID, POINTER, _INDEX, kind), small=True)(store),
    )


load_f32, store_f32 = _plain(F32)
load_f64, store_f64 = _plain(F64)
load_i64, store_i64 = _plain(I64)
load_i32, store_i32 = _plain(I32)
load_i16, store_i16 = _plain(I16)
load_i8, store_i8 = _plain(I8)
load_u8, store_u8 = _plain(U8)
load_u32, store_u32 = _plain(U32)


@operation(exactly(B8, POINTER, _INDEX), small=True)
def load_b8(pointer: Scalar, index: Scalar) -> Scalar:
    """A boolean stored as one byte; any byte but zero is true."""
    return _load(pointer, index, U8).differs(0)


@operation(exactly(VOID, POINTER, _INDEX, B8), small=True)
def store_b8(pointer: Scalar, index: Scalar, value: Scalar) -> None:
    """A boolean as the byte 0 or 1."""
    _store(pointer, index, value.instruction("zext", U8))


@operation(exactly(I32, POINTER, _INDEX), small=True)
def load_u16(pointer: Scalar, index: Scalar) -> Scalar:
    """An unsigned 16-bit word, as the random rows hold them, as an i32 in 0…65535."""
    return _load(pointer, index, _U16).instruction("zext", I32)


@operation(exactly(F32, POINTER, _INDEX), small=True)
def load_bf16(pointer: Scalar, index: Scalar) -> Scalar:
    """A bf16 widened to f32, exactly."""
    return (_load(pointer, index, _U16).instruction("zext", I32) << 16).bits(F32)


@operation(exactly(VOID, POINTER, _INDEX, F32), small=True)
def store_bf16(pointer: Scalar, index: Scalar, value: Scalar) -> None:
    """An f32 rounded to bf16; NaN stays a NaN."""
    bits = _bf16_bits(value) >> 16
    _store(pointer, index, bits.instruction("trunc", _U16))


@operation(exactly(VOID, POINTER, _INDEX, F32), small=True)
def store_bf16_rounded(pointer: Scalar, index: Scalar, value: Scalar) -> None:
    """Stores what `round_bf16` returned, without rounding it a second time."""
    _store(pointer, index, (value.bits(U32) >> 16).instruction("trunc", _U16))


@operation(exactly(F32, F32), small=True)
def round_bf16(value: Scalar) -> Scalar:
    """An f32 rounded to what bf16 can hold, nearest even; NaN stays a NaN."""
    return (_bf16_bits(value) & 0xFFFF0000).bits(F32)


@operation(exactly(F32, F32), small=True)
def nearest_bf16(value: Scalar) -> Scalar:
    """`round_bf16` in five instructions instead of eight, for registers whose NaNs are settled."""
    return (_nearest_bits(value) & 0xFFFF0000).bits(F32)


@operation(exactly(VOID, POINTER, _INDEX, F32), small=True)
def store_bf16_nearest(pointer: Scalar, index: Scalar, value: Scalar) -> None:
    """`store_bf16` for registers whose NaNs are settled."""
    _store(pointer, index, (_nearest_bits(value) >> 16).instruction("trunc", _U16))


@operation(same(F32, F64), small=True)
def settled(value: Scalar) -> Scalar:
    """Any NaN as the one whose lower half is zero, which adding a half ulp cannot carry away.

    Loads of bf16 are settled as they are, and so is what arithmetic makes of settled numbers.
    """
    return select(value.differs(value), value.constant(math.nan), value)


@operation(exactly(F32, POINTER, _INDEX), small=True)
def load_f16(pointer: Scalar, index: Scalar) -> Scalar:
    """An f16 widened to f32, exactly."""
    return _load(pointer, index, _HALF).instruction("fpext", F32)


@operation(exactly(VOID, POINTER, _INDEX, F32), small=True)
def store_f16(pointer: Scalar, index: Scalar, value: Scalar) -> None:
    """An f32 rounded to f16; beyond 65504 infinity."""
    _store(pointer, index, value.instruction("fptrunc", _HALF))


@operation(exactly(VOID, POINTER, _INDEX, F32), small=True)
def store_f16_rounded(pointer: Scalar, index: Scalar, value: Scalar) -> None:
    """Stores what `round_f16` returned: one conversion, which then changes nothing."""
    _store(pointer, index, value.instruction("fptrunc", _HALF))


@operation(exactly(F32, F32), small=True)
def round_f16(value: Scalar) -> Scalar:
    """An f32 rounded to what f16 can hold, nearest even."""
    return value.instruction("fptrunc", _HALF).instruction("fpext", F32)


@operation(exactly(POINTER, POINTER, _INDEX), small=True)
def advance(pointer: Scalar, count: Scalar) -> Scalar:
    """The pointer moved by a number of bytes, within its buffer."""
    return Scalar(pointer.builder, _address(pointer, count, U8.llvm), POINTER)


def _bf16_bits(value: Scalar) -> Scalar:
    """Bits whose upper half is the value rounded to bf16; a NaN is made quiet."""
    return select(value.differs(value), value.bits(U32) | 0x400000, _nearest_bits(value))


def _nearest_bits(value: Scalar) -> Scalar:
    """The same where no NaN has a set bit in its lower half.

    By integers: LLVM does not vectorise AVX512-BF16's conversion, which also flushes subnormals.
    """
    bits = value.bits(U32)
    return bits + (((bits >> 16) & 1) + 0x7FFF)
