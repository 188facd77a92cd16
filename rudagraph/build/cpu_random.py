"""Random bits of the kernel language: Philox4x32-10, addressed by element.

The bits of element e of stream s under a 64-bit key do not depend on who computes them: the
counter is (low 32 bits of e // n, high 32 bits of e // n, s, 0), its four outputs are read in
order as n little-endian words, and element e takes word e % n. n is 8 for 16-bit words and 4 for
32-bit ones. A row is made 16 counters at a time, whatever its first element and length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rudagraph.build.cpu_emit import (
    I8,
    I16,
    I32,
    I64,
    POINTER,
    U8,
    U32,
    U64,
    VOID,
    Scalar,
    exactly,
    operation,
    select,
)
from rudagraph.build.cpu_numbers import convert

_INTEGERS = (I64, I32, I16, I8, U8, U32, U64)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LANES = 16
_CHUNK = 16 * _LANES  # bytes: each counter gives 16
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_GROUP = 8  # counters in flight: their four words fill eight AVX2 registers
_WIDE = ir.VectorType(_I64, _GROUP)
_HALVES = ir.VectorType(_I32, 2 * _GROUP)

Product = Callable[[Any, int], tuple[Any, Any]]


@operation(exactly(VOID, POINTER, _INTEGERS, _INTEGERS, _INTEGERS, _INTEGERS, _INTEGERS))
def philox_row(
    scratch: Scalar,
    first_element: Scalar,
    count: Scalar,
    key_low: Scalar,
    key_high: Scalar,
    stream: Scalar,
) -> None:
    """The 16-bit words of elements [first, first + count), to read with `load_u16`."""
    _fill(scratch, first_element, count, 2, (key_low, key_high), stream)


@operation(exactly(VOID, POINTER, _INTEGERS, _INTEGERS, _INTEGERS, _INTEGERS, _INTEGERS))
def philox_row_32(
    scratch: Scalar,
    first_element: Scalar,
    count: Scalar,
    key_low: Scalar,
    key_high: Scalar,
    stream: Scalar,
) -> None:
    """The 32-bit words of elements [first, first + count), to read with `load_u32`."""
    _fill(scratch, first_element, count, 4, (key_low, key_high), stream)


@operation(exactly(I32, _INTEGERS, _INTEGERS, _INTEGERS, _INTEGERS))
def random_u16(key_low: Scalar, key_high: Scalar, stream: Scalar, element: Scalar) -> Scalar:
    """The 16-bit word of one element, as an i32 in 0…65535."""
    element = convert(element, U64)
    word = _word(element >> 3, (element >> 1) & 3, (key_low, key_high), stream)
    shift = convert((element & 1) << 4, U32)
    return convert((word >> shift) & 0xFFFF, I32)


@operation(exactly(U32, _INTEGERS, _INTEGERS, _INTEGERS, _INTEGERS))
def random_u32(key_low: Scalar, key_high: Scalar, stream: Scalar, element: Scalar) -> Scalar:
    """The 32-bit word of one element."""
    element = convert(element, U64)
    return _word(element >> 2, element & 3, (key_low, key_high), stream)


def _word(counter: Scalar, lane: Scalar, key: tuple[Scalar, Scalar], stream: Scalar) -> Scalar:
    builder = counter.builder

    def product(value: Any, factor: int) -> tuple[Any, Any]:
        wide = builder.mul(builder.zext(value, _I64), ir.Constant(_I64, factor))
        return (
            builder.trunc(builder.lshr(wide, ir.Constant(_I64, 32)), _I32),
            builder.trunc(wide, _I32),
        )

    start = [convert(counter, U32), convert(counter >> 32, U32), convert(stream, U32)]
    words = _philox(
        builder,
        [*(value.value for value in start), ir.Constant(_I32, 0)],
        [convert(part, U32).value for part in key],
        product,
        lambda value: value,
    )
    result = Scalar(builder, words[0], U32)
    for position in (1, 2, 3):
        result = select(lane.equals(position), Scalar(builder, words[position], U32), result)
    return result


def _philox(
    builder: ir.IRBuilder,
    counter: list[Any],
    key: list[Any],
    product: Product,
    spread: Callable[[Any], Any],
) -> list[Any]:
    """Ten rounds over scalars or vectors; `spread` makes a counter-shaped value of a key word."""
    a, b, c, d = counter
    low, high = key
    for index in range(_ROUNDS):
        if index:
            low = builder.add(low, ir.Constant(_I32, _KEY_STEPS[0]))
            high = builder.add(high, ir.Constant(_I32, _KEY_STEPS[1]))
        high_a, low_a = product(a, _MULTIPLIERS[0])
        high_c, low_c = product(c, _MULTIPLIERS[1])
        a, b, c, d = (
            builder.xor(builder.xor(high_c, b), spread(low)),
            low_c,
            builder.xor(builder.xor(high_a, d), spread(high)),
            low_a,
        )
    return [a, b, c, d]


def _fill(
    scratch: Scalar,
    first: Scalar,
    count: Scalar,
    size: int,
    key: tuple[Scalar, Scalar],
    stream: Scalar,
) -> None:
    """Chunks of 16 counters; the first and last go through a buffer where they do not fit."""
    builder = scratch.builder
    first_byte = convert(first, I64) * size
    total = convert(count, I64) * size
    first_counter, skipped = convert(first_byte, U64) >> 4, first_byte & 15
    chunks = (skipped + total + (_CHUNK - 1)) >> 8
    words_key = [convert(part, U32).value for part in key]
    words_stream = convert(stream, U32).value
    block = ir.VectorType(_I32, 4 * _LANES)
    with builder.goto_entry_block():
        buffer = builder.alloca(block)
        buffer.align = 64

    function = builder.function
    before = builder.block
    test, body, whole, part, after = (
        function.append_basic_block(name) for name in ("test", "chunk", "whole", "part", "done")
    )
    builder.branch(test)
    builder.position_at_end(test)
    index_value = builder.phi(_I64)
    index_value.add_incoming(ir.Constant(_I64, 0), before)
    index = Scalar(builder, index_value, I64)
    builder.cbranch((index < chunks).value, body, after)

    builder.position_at_end(body)
    base = first_counter + convert(index << 4, U64)
    words = _chunk(builder, base.value, words_key, words_stream)
    following = index + 1
    offset = (index << 8) - skipped
    fits = (offset >= 0) & (offset + _CHUNK <= total)
    builder.cbranch(fits.value, whole, part)

    builder.position_at_end(whole)
    target = builder.gep(scratch.value, [offset.value], inbounds=True)
    builder.store(words, builder.bitcast(target, block.as_pointer()), align=size)
    builder.branch(test)

    builder.position_at_end(part)
    builder.store(words, buffer, align=64)
    start = select(offset < 0, -offset, offset.constant(0))
    rest = total - offset
    end = select(rest < _CHUNK, rest, rest.constant(_CHUNK))
    _copy(
        builder,
        builder.gep(scratch.value, [(offset + start).value]),
        builder.gep(builder.bitcast(buffer, I8.llvm.as_pointer()), [start.value]),
        (end - start).value,
    )
    builder.branch(test)
    index_value.add_incoming(following.value, whole)
    index_value.add_incoming(following.value, part)
    builder.position_at_end(after)


def _chunk(builder: ir.IRBuilder, base: Any, key: list[Any], stream: Any) -> Any:
    """The 64 words of 16 counters from `base` on, in order.

    A word stands in the lower half of 64 bits, whatever the upper half holds: that is how pmuludq
    takes its factors and leaves its product, so nothing moves between the ten rounds.
    """
    parts = [_group(builder, base, first, key, stream) for first in range(0, _LANES, _GROUP)]
    whole = parts[0]
    for part in parts[1:]:
        whole = _joined(builder, whole, part)
    return whole


def _group(builder: ir.IRBuilder, base: Any, first: int, key: list[Any], stream: Any) -> Any:
    """The words of `_GROUP` counters from base + first on."""
    counters = builder.add(
        _splat(builder, base, _WIDE),
        ir.Constant(_WIDE, [ir.Constant(_I64, first + lane) for lane in range(_GROUP)]),
    )
    lower, shift = _wide(0xFFFFFFFF), _wide(32)

    def product(value: Any, factor: int) -> tuple[Any, Any]:
        whole = builder.mul(builder.and_(value, lower), _wide(factor))
        return builder.lshr(whole, shift), whole

    def spread(word: Any) -> Any:
        return _splat(builder, builder.zext(word, _I64), _WIDE)

    start = [counters, builder.lshr(counters, shift), spread(stream), _wide(0)]
    a, b, c, d = (
        builder.bitcast(word, _HALVES) for word in _philox(builder, start, key, product, spread)
    )
    # Of counter k: a, b, c, d in order, from the lower halves.
    pairs = [_lower_halves(builder, *two) for two in ((a, b), (c, d))]
    order = [
        2 * lane + side * 2 * _GROUP + k
        for lane in range(_GROUP)
        for side in (0, 1)
        for k in (0, 1)
    ]
    return builder.shuffle_vector(*pairs, _mask(order))


def _lower_halves(builder: ir.IRBuilder, first: Any, second: Any) -> Any:
    """(first[0], second[0], first[2], second[2], …)."""
    order = [lane + side * 2 * _GROUP for lane in range(0, 2 * _GROUP, 2) for side in (0, 1)]
    return builder.shuffle_vector(first, second, _mask(order))


def _joined(builder: ir.IRBuilder, first: Any, second: Any) -> Any:
    return builder.shuffle_vector(
        first, second, _mask(list(range(first.type.count + second.type.count)))
    )


def _mask(order: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_I32, len(order)), [ir.Constant(_I32, k) for k in order])


def _wide(number: int) -> Any:
    return ir.Constant(_WIDE, [ir.Constant(_I64, number)] * _GROUP)


def _splat(builder: ir.IRBuilder, value: Any, vector: ir.VectorType) -> Any:
    """The value in all lanes of a vector."""
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    mask = ir.Constant(ir.VectorType(_I32, vector.count), [ir.Constant(_I32, 0)] * vector.count)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), mask)


def _copy(builder: ir.IRBuilder, target: Any, source: Any, size: Any) -> None:
    copy = builder.module.declare_intrinsic("llvm.memcpy", [target.type, source.type, _I64])
    builder.call(copy, [target, source, size, ir.Constant(ir.IntType(1), 0)])
