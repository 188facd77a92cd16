"""Philox rows against a NumPy reference, at every alignment."""

import numpy as np
import pytest

from rudagraph.schedule.kernel import KernelSource
from tests.build.support import run

KEY = 0x0123456789ABCDEF
# (first element, count): whole chunks, single elements, odd starts and ends, beyond 2**32 counters
ROWS = [(0, 1024), (0, 1), (3, 1), (5, 1000), (7, 2), (127, 129), (2**35 - 3, 777)]
ROWS += [(2**36 + 5, 128), (11, 384), (4, 124), (1, 127), (0, 0)]


def philox(key: int, stream: int, counters: np.ndarray) -> np.ndarray:
    """Philox4x32-10 of Salmon et al., one row of four words a counter."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b = counters & mask, counters >> shift
    c, d = np.full_like(counters, stream), np.zeros_like(counters)
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (second >> shift) ^ b ^ np.uint64(low),
            second & mask,
            (first >> shift) ^ d ^ np.uint64(high),
            first & mask,
        )
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([a, b, c, d], axis=1).astype(np.uint32)


def expected_words(first: int, count: int, bits: int, stream: int) -> np.ndarray:
    lanes = 128 // bits
    start, end = first // lanes, (first + count) // lanes + 1
    words = philox(KEY, stream, np.arange(start, end, dtype=np.uint64)).ravel()
    return words.view(f"u{bits // 8}")[first - start * lanes :][:count]


def test_reference_gives_the_published_answers():
    def words(key: int, counter: int, stream: int) -> list[str]:
        return [f"{word:08x}" for word in philox(key, stream, np.array([counter], np.uint64))[0]]

    assert words(0, 0, 0) == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


@pytest.mark.parametrize("bits", [16, 32])
def test_rows_and_single_words_are_philox(bits):
    text = f"""
from rudagraph.build.cpu_language import *

def kernel(begin, end, block, row, arguments, singles):
    first = load_i64(arguments, 0)
    count = load_i64(arguments, 1)
    key = load_i64(arguments, 2)
    low = int32(key)
    high = int32(shift_right(key, int64(32)))
    stream = int32(load_i64(arguments, 3))
    philox_row{"" if bits == 16 else "_32"}(row, first, count, low, high, stream)
    for index in range(count):
        store_i32(singles, index, int32(random_u{bits}(low, high, stream, first + index)))
"""
    source = KernelSource("random", text, ("row", "arguments", "singles"), 1, 1)
    for first, count in ROWS:
        guarded = np.full(count + 64, 7, f"u{bits // 8}")
        singles = np.zeros(max(count, 1), np.int32)
        run(source, guarded[32:], np.array([first, count, KEY, 42]), singles)
        expected = expected_words(first, count, bits, 42)
        np.testing.assert_array_equal(guarded[32 : 32 + count], expected)
        assert (guarded[:32] == 7).all() and (guarded[32 + count :] == 7).all()
        np.testing.assert_array_equal(singles[:count].view(np.uint32), expected)


def test_streams_and_keys_differ(evaluate):
    element = np.arange(64)
    first = evaluate("random_u16(int32(1), int32(2), int32(0), e)", "i32", e=("i64", element))
    for call in ("int32(1), int32(2), int32(1)", "int32(1), int32(3), int32(0)"):
        other = evaluate(f"random_u16({call}, e)", "i32", e=("i64", element))
        assert (first != other).sum() > 50
