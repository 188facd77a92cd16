"""Philox on CUDA: the words of neighbouring elements, as ir/random.py defines them.

Input: key, stream, and the index of the first of `count` neighbours, a multiple of count.
Output: one word an element. Invariant: a word depends on key, stream and index alone.
"""

from __future__ import annotations

from llvmlite import ir

from rudagraph.build.cpu_emit import I32, I64, U32, U64, Scalar, exactly, select
from rudagraph.build.cuda_emit import cuda_operation

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def words(key: Scalar, stream: Scalar, first: Scalar, count: int, bits: int) -> list[Scalar]:
    """i32 in 0…65535 for 16 bits, u32 for 32."""
    per_counter = 128 // bits
    result: list[Scalar] = []
    for start in range(0, count, per_counter):
        index = first + start if start else first
        shift = per_counter.bit_length() - 1
        result += _choose(philox(key, stream, index >> shift), index, min(count, per_counter), bits)
    return result


def philox(key: Scalar, stream: Scalar, block: Scalar) -> list[Scalar]:
    """The four words of one counter."""
    c0, c1 = _halves(block)
    c2, c3 = _halves(stream)[0], c0.constant(0)
    k0, k1 = _halves(key)
    for turn in range(_ROUNDS):
        if turn:
            k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high1, low1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return [c0, c1, c2, c3]


def _choose(outputs: list[Scalar], index: Scalar, count: int, bits: int) -> list[Scalar]:
    """The words of `count` elements from `index`, which is a multiple of count."""
    if bits == 32:
        return _window(outputs, index, count)
    if count == 1:
        (word,) = _window(outputs, index >> 1, 1)
        is_odd = (index & 1).differs(0)
        return [select(is_odd, word >> 16, word & 0xFFFF).instruction("bitcast", I32)]
    halves = []
    for word in _window(outputs, index >> 1, count // 2):
        halves += [(word & 0xFFFF).instruction("bitcast", I32)]
        halves += [(word >> 16).instruction("bitcast", I32)]
    return halves


def _window(outputs: list[Scalar], index: Scalar, count: int) -> list[Scalar]:
    """outputs[index % 4 : index % 4 + count] for an index that only runs know."""
    while len(outputs) > count:
        half = len(outputs) // 2
        is_high = (index & half).differs(0)
        outputs = [select(is_high, outputs[i + half], outputs[i]) for i in range(half)]
    return outputs


def _halves(value: Scalar) -> tuple[Scalar, Scalar]:
    low = value.instruction("trunc", U32)
    high = Scalar(value.builder, value.builder.lshr(value.value, ir.IntType(64)(32)), I64)
    return low, high.instruction("trunc", U32)


def _product(value: Scalar, factor: int) -> tuple[Scalar, Scalar]:
    """The high and low words of a 32-bit product."""
    wide = value.instruction("zext", U64)
    product = wide * factor
    return (product >> 32).instruction("trunc", U32), product.instruction("trunc", U32)


@cuda_operation(exactly(I32, I64, I64, I64, I64))
def random_u16(key_low: Scalar, key_high: Scalar, stream: Scalar, element: Scalar) -> Scalar:
    """The 16-bit word of one element, as an i32 in 0…65535."""
    return words(_key(key_low, key_high), stream, element, 1, 16)[0]


@cuda_operation(exactly(U32, I64, I64, I64, I64))
def random_u32(key_low: Scalar, key_high: Scalar, stream: Scalar, element: Scalar) -> Scalar:
    """The 32-bit word of one element."""
    return words(_key(key_low, key_high), stream, element, 1, 32)[0]


def _key(low: Scalar, high: Scalar) -> Scalar:
    return (low & _MASK) | (high << 32)
