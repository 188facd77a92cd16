"""Storage on CUDA: how elements lie in 32-bit words, and loads and stores of up to 16 bytes.

Input: an address in global memory and an element type. Output: Scalars in registers, f32 for f16
and bf16. Invariant: n elements side by side move in the fewest accesses that their alignment allows
(the caller promises alignment to n elements, or 16 bytes), and a store rounds to nearest even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    Scalar,
    exactly,
)
from rudagraph.build.cuda_emit import (
    GLOBAL_SPACE,
    TileOperation,
    assembly,
    cuda_operation,
    raw_assembly,
)

INDEX = (I64, I32, I16, I8, U8, U32, U64)
_WIDEST = 16

_i8, _i16, _i32, _i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_half = ir.HalfType()


@dataclass(frozen=True, slots=True)
class Storage:
    """An element type in memory: its bytes and the register it is computed in."""

    name: str
    size: int
    register: Kind


STORAGES = {
    storage.name: storage
    for storage in (
        Storage("bf16", 2, F32),
        Storage("f16", 2, F32),
        Storage("f32", 4, F32),
        Storage("f64", 8, F64),
        Storage("i8", 1, I8),
        Storage("i16", 2, I16),
        Storage("i32", 4, I32),
        Storage("i64", 8, I64),
        Storage("u8", 1, U8),
        Storage("u32", 4, U32),
        Storage("b8", 1, B8),
    )
}


def address(pointer: Scalar, index: Scalar, size: int) -> Any:
    """The byte address of an element, as a pointer into global memory."""
    builder = pointer.builder
    space = ir.PointerType(_i8, GLOBAL_SPACE)
    base = builder.addrspacecast(pointer.value, space)
    if index.kind.bits < 64:
        index = index.instruction("sext" if index.kind.is_signed else "zext", I64)
    # Scaled by the element type, so that LLVM folds constant parts into the access.
    typed = builder.bitcast(base, ir.PointerType(ir.IntType(8 * size), GLOBAL_SPACE))
    return builder.bitcast(builder.gep(typed, [index.value], inbounds=True), space)


def pieces(size: int) -> list[tuple[int, int]]:
    """(offset, bytes) of the accesses that move `size` bytes."""
    step = min(size, _WIDEST)
    return [(offset, step) for offset in range(0, size, step)]


def load_words(builder: Any, pointer: Any, size: int) -> list[Any]:
    """`size` bytes as 32-bit words; fewer than four bytes fill the low end of one word."""
    words: list[Any] = []
    for offset, step in pieces(size):
        kind = _access_type(step)
        value = builder.load(_at(builder, pointer, offset, kind), align=step)
        if step < 4:
            words.append(builder.zext(value, _i32))
        elif step == 4:
            words.append(value)
        else:
            words += [builder.extract_element(value, _i32(lane)) for lane in range(step // 4)]
    return words


def store_words(builder: Any, pointer: Any, words: Sequence[Any], size: int) -> None:
    """The reverse of `load_words`."""
    position = 0
    for offset, step in pieces(size):
        kind = _access_type(step)
        if step < 4:
            value = builder.trunc(words[position], kind)
        elif step == 4:
            value = words[position]
        else:
            value = ir.Constant(kind, ir.Undefined)
            for lane in range(step // 4):
                value = builder.insert_element(value, words[position + lane], _i32(lane))
        position += max(step // 4, 1)
        builder.store(value, _at(builder, pointer, offset, kind), align=step)


def load_kept_words(builder: Any, pointer: Any, size: int) -> list[Any]:
    """As `load_words`, of what L2 should keep before anything else, since others read it too."""
    if size < 4:
        return load_words(builder, pointer, size)
    text = "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;"
    policy = raw_assembly(builder, text, "=l", _i64, [], False)
    return _load_hinted(builder, pointer, size, "L2::cache_hint", [policy])


def load_streamed_words(builder: Any, pointer: Any, size: int) -> list[Any]:
    """As `load_words`, of what L2 may give up first."""
    if size < 4:
        return load_words(builder, pointer, size)
    return _load_hinted(builder, pointer, size, "cs", [])


def _load_hinted(
    builder: Any, pointer: Any, size: int, hint: str, policies: list[Any]
) -> list[Any]:
    words: list[Any] = []
    for offset, step in pieces(size):
        count = step // 4
        names = ", ".join(f"${index}" for index in range(count))
        held = f"{{{names}}}" if count > 1 else names
        behind = "".join(f", ${count + 1 + index}" for index in range(len(policies)))
        text = f"ld.global.{hint}{_lanes(count)}.u32 {held}, [${count}]{behind};"
        kind = ir.LiteralStructType([_i32] * count) if count > 1 else _i32
        constraints = "=r," * count + "l," * (1 + len(policies)) + "~{memory}"
        values = [_number(builder, pointer, offset), *policies]
        value = raw_assembly(builder, text, constraints, kind, values, True)
        words += [builder.extract_value(value, i) for i in range(count)] if count > 1 else [value]
    return words


def store_streamed_words(builder: Any, pointer: Any, words: Sequence[Any], size: int) -> None:
    """As `store_words`, of what L2 may give up first."""
    if size < 4:
        store_words(builder, pointer, words, size)
        return
    position = 0
    for offset, step in pieces(size):
        count = step // 4
        names = ", ".join(f"${index + 1}" for index in range(count))
        held = f"{{{names}}}" if count > 1 else names
        text = f"st.global.cs{_lanes(count)}.u32 [$0], {held};"
        part = list(words[position : position + count])
        values = [_number(builder, pointer, offset), *part]
        constraints = "l" + ",r" * count + ",~{memory}"
        raw_assembly(builder, text, constraints, ir.VoidType(), values, True)
        position += count


def _lanes(count: int) -> str:
    return f".v{count}" if count > 1 else ""


def _number(builder: Any, pointer: Any, offset: int) -> Any:
    """The address `offset` bytes behind a pointer, as an integer."""
    address = builder.ptrtoint(pointer, _i64)
    return builder.add(address, _i64(offset)) if offset else address


def word_count(storage: Storage, count: int) -> int:
    return max(storage.size * count // 4, 1)


def unpack_words(
    builder: Any, words: Sequence[Any], storage: Storage, count: int, *, again: bool = False
) -> list[Scalar]:
    """The `count` elements that lie in the words.

    `again` makes 16-bit ones anew: LLVM would otherwise keep those it made before, at twice the
    registers. No instruction it knows does so, hence a volatile permutation of bytes.
    """
    size = storage.size
    if size == 8:
        return [_wide(builder, words[2 * i], words[2 * i + 1], storage) for i in range(count)]
    if size == 4:
        return [Scalar(builder, word, U32).bits(storage.register) for word in words]
    result = []
    for index in range(count):
        word = words[index * size // 4]
        place = index * size % 4
        if storage.name == "bf16":
            result.append(_bf16(builder, word, place != 0, again))
        elif storage.name == "f16":
            half = builder.bitcast(_part(builder, word, place, 2, again), _half)
            result.append(Scalar(builder, builder.fpext(half, F32.llvm), F32))
        else:
            part = _part(builder, word, place, size, again)
            if storage.register is B8:
                part = builder.icmp_unsigned("!=", part, _i8(0))
            result.append(Scalar(builder, part, storage.register))
    return result


def pack_words(builder: Any, values: Sequence[Scalar], storage: Storage) -> list[Any]:
    """The words that hold the values, rounded to the storage type."""
    size = storage.size
    if size == 8:
        words = []
        for value in values:
            pair = builder.bitcast(value.value, ir.VectorType(_i32, 2))
            words += [builder.extract_element(pair, _i32(lane)) for lane in range(2)]
        return words
    if size == 4:
        return [value.bits(U32).value if value.kind is F32 else value.value for value in values]
    per_word = min(4 // size, len(values))
    groups = [values[first : first + per_word] for first in range(0, len(values), per_word)]
    if storage.name == "bf16":
        return [_pack_bf16(builder, group) for group in groups]
    words = []
    for group in groups:
        word = _i32(0)
        for place, value in enumerate(group):
            bits = builder.zext(_small(builder, value, storage), _i32)
            if place:
                bits = builder.shl(bits, _i32(8 * size * place))
            word = builder.or_(word, bits) if place else bits
        words.append(word)
    return words


def round_pair(builder: Any, low: Scalar, high: Scalar | None) -> list[Scalar]:
    """One or two f32 rounded to bf16, both in one instruction."""
    word = _pack_bf16(builder, [low] if high is None else [low, high])
    first = _bf16(builder, word, False, False)
    return [first] if high is None else [first, _bf16(builder, word, True, False)]


def _access_type(step: int) -> Any:
    if step <= 4:
        return ir.IntType(8 * step)
    return ir.VectorType(_i32, step // 4)


def _at(builder: Any, pointer: Any, offset: int, kind: Any) -> Any:
    if offset:
        pointer = builder.gep(pointer, [_i32(offset)], inbounds=True)
    return builder.bitcast(pointer, ir.PointerType(kind, GLOBAL_SPACE))


def _wide(builder: Any, low: Any, high: Any, storage: Storage) -> Scalar:
    pair = ir.Constant(ir.VectorType(_i32, 2), ir.Undefined)
    for lane, word in enumerate((low, high)):
        pair = builder.insert_element(pair, word, _i32(lane))
    return Scalar(builder, builder.bitcast(pair, storage.register.llvm), storage.register)


def _bf16(builder: Any, word: Any, is_high: bool, again: bool) -> Scalar:
    if again:
        selector = "0x3244" if is_high else "0x1044"
        scalar = Scalar(builder, word, U32)
        return assembly(f"prmt.b32 $0, $1, 0, {selector};", "=f,r", F32, scalar, volatile=True)
    bits = builder.and_(word, _i32(0xFFFF0000)) if is_high else builder.shl(word, _i32(16))
    return Scalar(builder, bits, U32).bits(F32)


def _part(builder: Any, word: Any, place: int, size: int, again: bool) -> Any:
    """Bytes place … place + size - 1 of a word."""
    if again:
        word = raw_assembly(builder, "mov.b32 $0, $1;", "=r,r", _i32, [word], True)
    shifted = builder.lshr(word, _i32(8 * place)) if place else word
    return builder.trunc(shifted, ir.IntType(8 * size))


def _pack_bf16(builder: Any, values: Sequence[Scalar]) -> Any:
    if len(values) == 1:
        bits = raw_assembly(
            builder, "cvt.rn.bf16.f32 $0, $1;", "=h,f", _i16, [values[0].value], False
        )
        return builder.zext(bits, _i32)
    low, high = (value.value for value in values)
    return raw_assembly(
        builder, "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", _i32, [low, high], False
    )


def _small(builder: Any, value: Scalar, storage: Storage) -> Any:
    """A value of at most two bytes as an integer of its size."""
    if storage.name == "f16":
        return builder.bitcast(builder.fptrunc(value.value, _half), _i16)
    if storage.register is B8:
        return builder.zext(value.value, _i8)
    return value.value


# ---- single elements


def _single(storage: Storage) -> tuple[TileOperation, TileOperation]:
    def load(pointer: Scalar, index: Scalar) -> Scalar:
        builder = pointer.builder
        words = load_words(builder, address(pointer, index, storage.size), storage.size)
        return unpack_words(builder, words, storage, 1)[0]

    def store(pointer: Scalar, index: Scalar, value: Scalar) -> None:
        builder = pointer.builder
        words = pack_words(builder, [value], storage)
        store_words(builder, address(pointer, index, storage.size), words, storage.size)

    load.__name__, store.__name__ = f"load_{storage.name}", f"store_{storage.name}"
    load.__doc__ = f"Element `index` of memory of {storage.name}."
    store.__doc__ = f"Writes element `index` of memory of {storage.name}."
    return (
        cuda_operation(exactly(storage.register, POINTER, INDEX))(load),
        cuda_operation(exactly(VOID, POINTER, INDEX, storage.register))(store),
    )


SINGLE = {name: _single(storage) for name, storage in STORAGES.items()}


@cuda_operation(exactly(I32, POINTER, INDEX))
def load_u16(pointer: Scalar, index: Scalar) -> Scalar:
    """An unsigned 16-bit word as an i32 in 0…65535."""
    builder = pointer.builder
    return Scalar(builder, load_words(builder, address(pointer, index, 2), 2)[0], I32)


@cuda_operation(exactly(POINTER, POINTER, INDEX))
def advance(pointer: Scalar, count: Scalar) -> Scalar:
    """The pointer moved by a number of bytes, within its buffer."""
    builder = pointer.builder
    moved = builder.gep(pointer.value, [count.value], inbounds=True)
    return Scalar(builder, moved, POINTER)


@cuda_operation(exactly(F32, F32))
def round_f16(value: Scalar) -> Scalar:
    """An f32 rounded to what f16 can hold, nearest even."""
    half = value.builder.fptrunc(value.value, _half)
    return Scalar(value.builder, value.builder.fpext(half, F32.llvm), F32)


@cuda_operation(exactly(VOID, POINTER, I64, I64, I64))
def report_index(flag: Scalar, index: Scalar, extent: Scalar, ignored: Scalar) -> None:
    """Where the index is outside 0 … extent - 1 and not the ignored one, say so in the flag."""
    builder = index.builder
    is_wrong = (index < 0) | (index >= extent)
    with builder.if_then((is_wrong & index.differs(ignored)).value):
        for position, value in ((1, index), (0, index.constant(1))):
            place = address(flag, index.constant(position), 8)
            store_words(builder, place, pack_words(builder, [value], STORAGES["i64"]), 8)
