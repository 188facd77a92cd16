"""Random bits as a pure function: Philox4x32-10 of a 64-bit key, a stream and an element's index.

Input: the key of this forward, the stream (capture-order number of the op) and a row-major index.
Output: words of 16 or 32 bits. Invariant: a word depends on nothing else, so fusion, layout,
threads, vector width and target cannot change it; every code generator must match these lines.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_LOW = np.uint64(_MASK)
_SHIFT = np.uint64(32)

# How far the probability made of 16-bit words may be from the one asked for, as a share of the
# rarer outcome: dropout's expected value is then right to a thousandth.
_WORST_RELATIVE_ERROR = 0.001


def bits_for(probability: float) -> int:
    """Bits of the words that decide with this probability: 16 where they come close, else 32."""
    rarer = min(probability, 1 - probability)
    error = abs(threshold(probability, 16) / 2**16 - probability)
    return 32 if error > _WORST_RELATIVE_ERROR * rarer else 16


def threshold(probability: float, bits: int) -> int:
    """An element is true iff its word is at least this; one more than any word at probability 1."""
    return round(probability * (1 << bits))


def dropout_scale(probability: float) -> float:
    """The factor on kept elements; 0 where none is kept."""
    return 1 / (1 - probability) if probability < 1 else 0.0


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """Philox4x32-10: four 32-bit words per counter, held in unsigned 64-bit arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (second >> _SHIFT) ^ c1 ^ np.uint64(k0),
            second & _LOW,
            (first >> _SHIFT) ^ c3 ^ np.uint64(k1),
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def words(key: int, stream: int, count: int, bits: int) -> Words:
    """The words of elements 0 … count-1.

    One counter serves 8 elements of 16 bits or 4 of 32. The 16-bit words are the halves of the
    four outputs, low half first.
    """
    lanes = 128 // bits
    block = np.arange(-(-count // lanes), dtype=np.uint64)
    zero = np.zeros_like(block)
    counter = (block & _LOW, block >> _SHIFT, zero + np.uint64(stream), zero)
    outputs = np.stack(philox(counter, (key & _MASK, (key >> 32) & _MASK)), axis=1)
    if bits == 16:
        halves = np.stack((outputs & np.uint64(0xFFFF), outputs >> np.uint64(16)), axis=2)
        return halves.reshape(-1)[:count]
    return outputs.reshape(-1)[:count]


def bernoulli(
    key: int, stream: int, shape: tuple[int, ...], probability: float, bits: int
) -> npt.NDArray[np.bool_]:
    """The reference of op `bernoulli`: true with 1 - probability."""
    drawn = words(key, stream, math.prod(shape), bits)
    kept: npt.NDArray[np.bool_] = drawn >= np.uint64(threshold(probability, bits))
    return kept.reshape(shape)
