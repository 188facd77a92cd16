"""Random bits: known answers of Philox4x32-10, an independent reference, frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rudagraph.ir import random

# The published known-answer vectors of Philox4x32-10: counter, key, words.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def numbers(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter: str, key: str, answer: str) -> None:
    lanes = tuple(np.array([n, n], np.uint64) for n in numbers(counter))
    first, second = numbers(key)
    got = random.philox(lanes, (first, second))  # type: ignore[arg-type]
    assert [int(word[0]) for word in got] == [int(word[1]) for word in got] == numbers(answer)


def philox_by_integers(counter: list[int], key: list[int]) -> list[int]:
    """The definition, one word at a time, in Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF])
@pytest.mark.parametrize("bits", [16, 32])
def test_words_follow_the_index(key: int, bits: int) -> None:
    lanes = 128 // bits
    for count in (0, 1, lanes - 1, lanes, lanes + 3):
        got = random.words(key, 7, count, bits)
        assert got.shape == (count,)
        for element in range(count):
            unsigned = key % 2**64
            four = philox_by_integers(
                [element // lanes, 0, 7, 0], [unsigned % 2**32, unsigned // 2**32]
            )
            packed = sum(word << 32 * i for i, word in enumerate(four))
            assert int(got[element]) == packed >> bits * (element % lanes) & (2**bits - 1)


def test_a_longer_run_starts_the_same() -> None:
    short, long = (random.words(5, 1, count, 16) for count in (9, 1000))
    assert (long[:9] == short).all()


def test_streams_and_keys_differ() -> None:
    drawn = [random.words(key, stream, 64, 32) for key in (0, 1) for stream in (0, 1)]
    assert len({words.tobytes() for words in drawn}) == 4


@pytest.mark.parametrize(("probability", "bits"), [(0.1, 16), (0.5, 16), (0.9, 16), (0.001, 32)])
def test_masks_have_the_probability(probability: float, bits: int) -> None:
    assert random.bits_for(probability) == bits
    count = 400_000
    kept = random.bernoulli(99, 3, (400, 1000), probability, bits)
    assert kept.shape == (400, 1000)
    deviation = math.sqrt(count * probability * (1 - probability))
    assert abs(kept.sum() - count * (1 - probability)) < 5 * deviation


@pytest.mark.parametrize("bits", [16, 32])
def test_certain_masks_are_certain(bits: int) -> None:
    assert random.bernoulli(1, 0, (1000,), 0.0, bits).all()
    assert not random.bernoulli(1, 0, (1000,), 1.0, bits).any()


def test_words_are_wide_enough_for_the_probability() -> None:
    for probability in (0.0, 1e-7, 1e-4, 0.003, 0.1, 0.25, 1 / 3, 0.5, 0.75, 0.999, 1 - 1e-7, 1.0):
        bits = random.bits_for(probability)
        made = random.threshold(probability, bits) / 2**bits
        assert abs(made - probability) <= 0.002 * min(probability, 1 - probability)
    assert random.bits_for(1e-4) == random.bits_for(1 - 1e-4) == 32


def test_dropout_scale() -> None:
    assert random.dropout_scale(0.0) == 1.0
    assert random.dropout_scale(0.75) == 4.0
    assert random.dropout_scale(1.0) == 0.0
