"""Loads, stores and rounding to storage types, over every 16-bit pattern."""

import numpy as np
import pytest
import torch

from tests.build.support import elementwise_source, run

PATTERNS = np.arange(65536, dtype=np.uint16)
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def widened(kind: str, bits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(bits.view(np.int16)).view(TYPES[kind]).float().numpy()


def rounded(kind: str, values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).to(TYPES[kind]).float().numpy()


def near_ties() -> np.ndarray:
    """Every bf16 pattern with low halves around the tie, and f32 around every f16's ties."""
    high = np.arange(65536, dtype=np.uint32) << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    around_bf16 = (high[:, None] | low).view(np.float32).ravel()
    half = widened("f16", PATTERNS)
    finite = np.sort(half[np.isfinite(half)])
    middle = (finite[:-1] + finite[1:]) / 2
    sides = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([around_bf16, middle, *sides])


@pytest.mark.parametrize("kind", TYPES)
def test_every_pattern_widens_exactly(evaluate, kind):
    result = evaluate("x", x=(kind, PATTERNS))
    np.testing.assert_array_equal(result, widened(kind, PATTERNS))


@pytest.mark.parametrize("kind", TYPES)
def test_every_pattern_survives_load_and_store(evaluate, kind):
    result = evaluate("x", kind, x=(kind, PATTERNS))
    numbers = ~np.isnan(widened(kind, PATTERNS))
    np.testing.assert_array_equal(result[numbers], PATTERNS[numbers])
    assert np.isnan(widened(kind, result[~numbers])).all()


@pytest.mark.parametrize("kind", TYPES)
def test_stores_and_rounding_go_to_nearest_even(evaluate_all, kind):
    x = near_ties()
    expected = rounded(kind, x)
    rounding = f"round_{kind}(x)"
    results = [("x", kind), (rounding, "f32"), (rounding, f"{kind}_rounded")]
    stored, in_registers, stored_rounded = evaluate_all(results, x=("f32", x))
    np.testing.assert_array_equal(widened(kind, stored), expected)
    np.testing.assert_array_equal(in_registers, expected)
    np.testing.assert_array_equal(widened(kind, stored_rounded), expected)


def test_every_nan_stays_one_in_bf16(evaluate):
    # Rounded like numbers, these would become infinity, -0 and 0.
    x = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFC00000], np.uint32).view(np.float32)
    assert np.isnan(widened("bf16", evaluate("x", "bf16", x=("f32", x)))).all()
    assert np.isnan(evaluate("round_bf16(x)", x=("f32", x))).all()
    assert np.isnan(evaluate("nearest_bf16(settled(x))", x=("f32", x))).all()


def test_the_short_rounding_to_bf16_is_the_long_one(evaluate):
    x = near_ties()
    x = x[~np.isnan(x)]
    result = evaluate("nearest_bf16(settled(x))", x=("f32", x))
    np.testing.assert_array_equal(result, rounded("bf16", x))


@pytest.mark.parametrize("kind", ["i64", "i32", "i16", "i8", "u8", "u32"])
def test_integers_are_copied(evaluate, kind):
    values = np.array([0, 1, 100, 127, 5], np.int64)
    if kind.startswith("i"):
        values = np.concatenate([values, -values])
    assert evaluate("x", kind, x=(kind, values)).tolist() == values.tolist()


def test_any_byte_but_zero_is_true(evaluate):
    source = elementwise_source([("x", "b8")], {"x": "b8"}, 4)
    x, out = np.array([0, 1, 2, 255], np.uint8), np.full(4, 9, np.uint8)
    run(source, x, out)
    assert out.tolist() == [0, 1, 1, 1]


def test_u16_words_load_as_i32(evaluate):
    assert evaluate("load_u16(x_, index)", "i32", x=("f16", PATTERNS)).tolist() == list(
        range(65536)
    )


def test_advance_counts_bytes(evaluate):
    x = np.arange(8, dtype=np.float32)
    result = evaluate("load_f32(advance(x_, -4 * index), index)", x=("f32", x))
    assert result.tolist() == [0.0] * 8
