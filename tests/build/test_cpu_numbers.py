"""Arithmetic, casts, division and bits: PyTorch's results, and a result where it has none."""

import math

import numpy as np
import pytest
import torch

TORCH = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "b8": torch.bool,
}
INTEGERS = ["i64", "i32", "i16", "i8", "u8"]
FLOATS = ["f32", "f64"]
CASTS = {
    "f32": "float32",
    "f64": "float64",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "b8": "boolean",
}


def numbers(kind: str) -> torch.Tensor:
    """Small numbers of both signs and the extremes of the kind."""
    small = torch.tensor([0, 1, 2, 3, 5, 7, 100, -1, -2, -3, -7, -100])
    if kind == "b8":
        return small > 2
    if kind in FLOATS:
        special = [0.5, -0.5, 2.5, -2.75, 1e-3, 1e30, -1e30, math.inf, -math.inf, math.nan, -0.0]
        return torch.cat([small.to(TORCH[kind]), torch.tensor(special, dtype=TORCH[kind])])
    limits = torch.iinfo(TORCH[kind])
    extremes = torch.tensor([limits.min, limits.max, limits.min + 1])
    return torch.cat([small, extremes]).to(TORCH[kind])


def pairs(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    values = numbers(kind)
    grid = torch.cartesian_prod(values, values)
    return grid[:, 0].contiguous(), grid[:, 1].contiguous()


def check(evaluate_all, names, kind, functions, *operands, result=None):
    """Every name(x, y) against the function of PyTorch, all in one kernel."""
    letters = "xy"[: len(operands)]
    arguments = {
        letter: (kind, operand.numpy()) for letter, operand in zip(letters, operands, strict=True)
    }
    calls = [(f"{name}({', '.join(letters)})", result or kind) for name in names]
    for name, got in zip(names, evaluate_all(calls, **arguments), strict=True):
        expected = functions[name](*operands).numpy()
        np.testing.assert_array_equal(got, expected, name)


def of_torch(*names: str) -> dict:
    return {name: getattr(torch, name) for name in names}


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS, "b8"])
def test_arithmetic_wraps_and_propagates_nan(evaluate_all, kind):
    functions = of_torch("add", "mul", "maximum", "minimum")
    if kind != "b8":
        functions |= of_torch("sub")
    check(evaluate_all, list(functions), kind, functions, *pairs(kind))


def division(mode: str):
    return lambda x, y: torch.div(x, y, rounding_mode=mode)


DIVISIONS = {
    "floor_divide": division("floor"),
    "truncate_divide": division("trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("kind", FLOATS)
def test_float_division(evaluate_all, kind):
    functions = DIVISIONS | {"div": torch.div}
    check(evaluate_all, list(functions), kind, functions, *pairs(kind))


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_division_never_traps(evaluate_all, kind):
    x, y = pairs(kind)
    smallest = torch.iinfo(TORCH[kind]).min
    by_zero = (y == 0).numpy()
    # PyTorch itself traps on the smallest number divided by -1.
    overflow = ((x == smallest) & (y == -1)).numpy() & (smallest < 0)
    usable = torch.from_numpy(~by_zero & ~overflow)
    calls = [(f"{name}(x, y)", kind) for name in DIVISIONS]
    results = evaluate_all(calls, x=(kind, x.numpy()), y=(kind, y.numpy()))
    for (name, function), got in zip(DIVISIONS.items(), results, strict=True):
        expected = function(x[usable], y[usable]).numpy()
        np.testing.assert_array_equal(got[usable.numpy()], expected, name)
        is_quotient = name.endswith("divide")
        rest = np.zeros_like(got) if is_quotient else x.numpy()
        np.testing.assert_array_equal(got[by_zero], rest[by_zero], name)
        assert (got[overflow] == (smallest if is_quotient else 0)).all()


@pytest.mark.parametrize("kind", FLOATS)
def test_float_powers(evaluate, kind):
    x, y = pairs(kind)
    got = evaluate("pow(x, y)", kind, x=(kind, x.numpy()), y=(kind, y.numpy()))
    np.testing.assert_allclose(got, torch.pow(x, y).numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integer_powers_wrap(evaluate, kind):
    x, y = pairs(kind)
    got = evaluate("pow(x, y)", kind, x=(kind, x.numpy()), y=(kind, y.numpy()))
    bits = torch.iinfo(TORCH[kind]).bits
    offset = 0 if kind == "u8" else 1 << (bits - 1)
    for base, exponent, result in zip(x.tolist(), y.tolist(), got.tolist(), strict=True):
        if exponent >= 0:
            expected = (pow(base, exponent, 1 << bits) + offset) % (1 << bits) - offset
        elif abs(base) == 1:
            expected = base if exponent % 2 else 1
        else:
            expected = 0
        assert result == expected, (base, exponent)


@pytest.mark.parametrize("source", CASTS)
def test_casts_are_pytorchs(evaluate_all, source):
    x = numbers(source)
    if source in FLOATS:
        x = x[(x >= 0) & (x < 120) | (x == 0)]  # beyond some integer's range C++ defines nothing
    results = evaluate_all(
        [(f"{CASTS[target]}(x)", target) for target in CASTS], x=(source, x.numpy())
    )
    for target, got in zip(CASTS, results, strict=True):
        np.testing.assert_array_equal(got, x.to(TORCH[target]).numpy(), target)


@pytest.mark.parametrize("source", FLOATS)
def test_casts_of_signs_and_special_floats(evaluate_all, source):
    x = numbers(source)
    small = x[x.abs() < 120]
    targets = ["i64", "i32", "i16", "i8"]
    results = evaluate_all(
        [(f"{CASTS[target]}(x)", target) for target in targets], x=(source, small.numpy())
    )
    for target, got in zip(targets, results, strict=True):
        np.testing.assert_array_equal(got, small.to(TORCH[target]).numpy(), target)
    casts = [("float32(x)", "f32"), ("float64(x)", "f64"), ("boolean(x)", "b8")]
    for (_, target), got in zip(casts, evaluate_all(casts, x=(source, x.numpy())), strict=True):
        np.testing.assert_array_equal(got, x.to(TORCH[target]).numpy(), target)


def test_float_to_integer_beyond_range_is_defined(evaluate):
    x = np.array([math.nan, math.inf, -math.inf, 1e20, -1e20], np.float32)
    limits = np.iinfo(np.int32)
    expected = [0, limits.max, limits.min, limits.max, limits.min]
    assert evaluate("int32(x)", "i32", x=("f32", x)).tolist() == expected


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS])
def test_unary_arithmetic(evaluate_all, kind):
    functions = of_torch("neg", "abs", "sign", "relu")
    x = numbers(kind)
    check(evaluate_all, list(functions), kind, functions, x)
    if kind in FLOATS:
        finite = x[~x.isnan()]
        negative, size = evaluate_all([("neg(x)", kind), ("abs(x)", kind)], x=(kind, finite))
        assert (np.signbit(negative) == ~np.signbit(finite.numpy())).all()
        assert not np.signbit(size).any()


@pytest.mark.parametrize("kind", [*FLOATS, *INTEGERS, "b8"])
def test_comparisons(evaluate_all, kind):
    functions = of_torch("eq", "ne", "lt", "le", "gt", "ge")
    check(evaluate_all, list(functions), kind, functions, *pairs(kind), result="b8")


@pytest.mark.parametrize("kind", ["f32", "i32", "b8"])
def test_logic(evaluate_all, kind):
    functions = of_torch("logical_and", "logical_or", "logical_xor")
    check(evaluate_all, list(functions), kind, functions, *pairs(kind), result="b8")
    functions = of_torch("logical_not")
    check(evaluate_all, list(functions), kind, functions, numbers(kind), result="b8")


@pytest.mark.parametrize("kind", [*INTEGERS, "b8"])
def test_bits(evaluate_all, kind):
    functions = of_torch("bitwise_and", "bitwise_or", "bitwise_xor")
    if kind != "b8":
        functions["shift_left"] = torch.bitwise_left_shift
        functions["shift_right"] = torch.bitwise_right_shift
    check(evaluate_all, list(functions), kind, functions, *pairs(kind))
    functions = of_torch("bitwise_not")
    check(evaluate_all, list(functions), kind, functions, numbers(kind))


def test_where_and_select_choose_without_mixing(evaluate):
    x = np.array([1.0, math.nan, -2.0], np.float32)
    assert evaluate("where(x > float32(0), x, float32(7))", x=("f32", x)).tolist() == [1, 7, 7]
    assert evaluate("select(isnan(x), float32(0), x)", x=("f32", x)).tolist() == [1, 0, -2]


def test_constants(evaluate_all):
    results = evaluate_all(
        [
            ("float32(infinity) + x", "f32"),
            ("float32(nan)", "f32"),
            ("int64(-9223372036854775808)", "i64"),
            ("float32(0.1)", "f32"),
        ],
        x=("f32", [0.0]),
    )
    largest, not_a_number, smallest, tenth = (result[0] for result in results)
    assert largest == math.inf and np.isnan(not_a_number)
    assert smallest == np.iinfo(np.int64).min
    assert tenth == np.float32(0.1)
