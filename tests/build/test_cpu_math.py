"""Elementary functions and activations: accuracy against float64, edges against PyTorch."""

import math

import numpy as np
import pytest
import torch

COUNT = 1 << 17


def sample(low: float, high: float, count: int = COUNT) -> np.ndarray:
    """Evenly in value, or in exponent where the range spans many orders of magnitude."""
    rng = np.random.default_rng(5)
    if low > 0 and high / low > 1000:
        return np.exp(rng.uniform(math.log(low), math.log(high), count)).astype(np.float32)
    return rng.uniform(low, high, count).astype(np.float32)


def reference(name: str, x: np.ndarray) -> np.ndarray:
    function = {
        "exp_nonpositive": torch.exp,
        "silu": torch.nn.functional.silu,
        "gelu_erf": torch.nn.functional.gelu,
        "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    }.get(name) or getattr(torch, name)
    return function(torch.from_numpy(x)).numpy()


def largest_error(result: np.ndarray, exact: np.ndarray) -> float:
    """In units of the last place of f32, subnormals counting as the smallest normal's."""
    unit = np.spacing(np.maximum(np.abs(exact), 2.0**-126).astype(np.float32))
    return float(np.max(np.abs(result.astype(np.float64) - exact) / unit))


ACCURACY = [
    ("exp", -104, 88.7, 1.0),
    ("exp_nonpositive", -87.6, 0, 1.0),
    ("expm1", -20, 88.7, 1.5),
    ("expm1", -0.5, 0.5, 1.5),
    ("expm1", -1e-4, 1e-4, 1.0),
    ("exp2", -148, 127.9, 1.0),
    ("log", 1e-38, 1e38, 1.0),
    ("log", 0.5, 2, 1.0),
    ("log", 1e-45, 1e-38, 1.0),
    ("log2", 1e-38, 1e38, 1.0),
    ("log2", 0.5, 2, 1.1),
    ("log10", 0.5, 2, 2.0),
    ("log10", 1e-38, 1e38, 2.0),
    ("log1p", -0.999, 10, 1.7),
    ("log1p", -1e-4, 1e-4, 1.0),
    ("log1p", 1e-30, 1e30, 1.7),
    ("sigmoid", -87, 100, 2.5),
    ("silu", -80, 80, 3.3),
    ("tanh", -10, 10, 1.6),
    ("tanh", -0.7, 0.7, 1.6),
    ("erf", -5, 5, 1.1),
    ("erf", -1, 1, 1.1),
    ("sqrt", 1e-38, 1e38, 0.5),
    ("rsqrt", 1e-38, 1e38, 1.5),
    ("reciprocal", 1e-30, 1e30, 0.5),
    ("sin", -100, 100, 0.51),
    ("cos", -100, 100, 0.51),
    ("tan", -100, 100, 0.51),
    ("asin", -1, 1, 0.51),
    ("acos", -1, 1, 0.51),
    ("atan", -50, 50, 0.51),
    ("sinh", -80, 80, 0.51),
    ("cosh", -80, 80, 0.51),
]


@pytest.mark.parametrize(("name", "low", "high", "bound"), ACCURACY)
def test_f32_error_stays_within_the_stated_bound(evaluate, name, low, high, bound):
    x = sample(low, high)
    result = evaluate(f"{name}(x)", x=("f32", x))
    assert largest_error(result, reference(name, x.astype(np.float64))) <= bound


EDGES = np.array(
    [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 1e-42, -1e-42, 200, -200, 88.75, -88]
    + [3e38, -3e38, 0.5, 2.0**-126, 1e-20, -1e-20, 1000.5],
    np.float32,
)
UNARY = sorted({name for name, *_ in ACCURACY} - {"exp_nonpositive", "silu"})


@pytest.mark.parametrize("name", [*UNARY, "silu", "gelu_erf", "gelu_tanh"])
def test_f32_edges_are_pytorchs(evaluate, name):
    result = evaluate(f"{name}(x)", x=("f32", EDGES))
    with np.errstate(over="ignore"):
        expected = reference(name, EDGES.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-36)
    is_zero = (expected == 0) & (EDGES == 0)
    assert (np.signbit(result) == np.signbit(expected))[is_zero].all()


def test_exp_nonpositive_flushes_what_is_subnormal(evaluate):
    x = np.array([0.0, -0.0, -87.2, -87.7, -1e4, -3e38, -math.inf, math.nan], np.float32)
    result = evaluate("exp_nonpositive(x)", x=("f32", x))
    np.testing.assert_allclose(result, [1, 1, np.exp(-87.2), 0, 0, 0, 0, math.nan], rtol=1e-5)


@pytest.mark.parametrize("approximate", ["erf", "tanh"])
def test_gelu_is_as_exact_as_pytorchs(evaluate, approximate):
    x = sample(-12, 12)
    option = {"erf": "none", "tanh": "tanh"}[approximate]
    gelu = lambda v: torch.nn.functional.gelu(v, approximate=option)
    exact = gelu(torch.from_numpy(x.astype(np.float64))).numpy()
    eager = gelu(torch.from_numpy(x)).numpy()
    result = evaluate(f"gelu_{approximate}(x)", x=("f32", x))
    scale = np.abs(x) + 1e-3
    bound = 1.1 * np.max(np.abs(eager - exact) / scale) + 2.0**-24
    assert np.max(np.abs(result - exact) / scale) <= bound


def test_gelu_vanishes_far_left(evaluate):
    x = np.array([-1e4, -3e38, -20.0], np.float32)
    for name in ("gelu_erf", "gelu_tanh"):
        assert np.abs(evaluate(f"{name}(x)", x=("f32", x))).max() < 1e-30


DERIVATIVES = {
    "silu_backward": torch.nn.functional.silu,
    "gelu_erf_backward": torch.nn.functional.gelu,
    "gelu_tanh_backward": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_x_are_as_exact_as_pytorchs(evaluate, name):
    def gradient(values: np.ndarray) -> np.ndarray:
        leaf = torch.from_numpy(values).requires_grad_()
        DERIVATIVES[name](leaf).backward(torch.full_like(leaf, 1.5))
        return leaf.grad.numpy()

    x = sample(-12, 12)
    exact, eager = gradient(x.astype(np.float64)), gradient(x)
    result = evaluate(f"{name}(g, x)", g=("f32", np.full_like(x, 1.5)), x=("f32", x))
    assert np.max(np.abs(result - exact)) <= 1.1 * np.max(np.abs(eager - exact)) + 2.0**-23


def test_derivatives_of_results_are_pytorchs_formulas(evaluate):
    g, y = sample(-3, 3), sample(0.01, 0.99)
    operands = {"g": ("f32", g), "y": ("f32", y)}
    one = np.float32(1)
    np.testing.assert_array_equal(evaluate("sigmoid_backward(g, y)", **operands), g * (one - y) * y)
    np.testing.assert_array_equal(evaluate("tanh_backward(g, y)", **operands), g * (one - y * y))


F64 = [*UNARY, "silu", "gelu_erf", "gelu_tanh", "exp_nonpositive"]


@pytest.mark.parametrize("name", F64)
def test_f64_goes_through_libm(evaluate, name):
    x = sample(0.01, 0.99, 4096).astype(np.float64)
    result = evaluate(f"{name}(x)", "f64", x=("f64", x))
    np.testing.assert_allclose(result, reference(name, x), rtol=1e-13)


def test_atan2_knows_all_quadrants(evaluate):
    y = np.array([1, -1, 1, -1, 0.0, -0.0, 0.0, -0.0, 2, math.inf], np.float32)
    x = np.array([1, 1, -1, -1, 1, 1, -1, -1, 0, -math.inf], np.float32)
    result = evaluate("atan2(y, x)", y=("f32", y), x=("f32", x))
    np.testing.assert_allclose(result, np.arctan2(y, x), rtol=1e-7)


def test_fma_rounds_once_and_operators_do_not_fuse(evaluate):
    x = sample(-2, 2)
    y, z = sample(-3, 3)[::-1].copy(), -(x * sample(-3, 3)[::-1])
    operands = {"x": ("f32", x), "y": ("f32", y), "z": ("f32", z)}
    wide = (x.astype(np.float64) * y + z).astype(np.float32)
    np.testing.assert_array_equal(evaluate("fma(x, y, z)", **operands), wide)
    np.testing.assert_array_equal(evaluate("x * y + z", **operands), x * y + z)
    assert (wide != x * y + z).any()


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_rounding_to_whole_numbers(evaluate, name, kind):
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 2**23 + 1, -0.0, math.inf], np.float32)
    result = evaluate(f"{name}(x)", kind, x=(kind, x))
    expected = getattr(torch, name)(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(result, expected)
    assert (np.signbit(result) == np.signbit(expected)).all()


def test_isnan_and_isinf(evaluate):
    x = np.array([math.nan, math.inf, -math.inf, 0, 3e38], np.float32)
    assert evaluate("isnan(x)", "b8", x=("f32", x)).tolist() == [True, *[False] * 4]
    assert evaluate("isinf(x)", "b8", x=("f32", x)).tolist() == [False, True, True, False, False]
    assert not evaluate("isnan(x)", "b8", x=("i32", [1, 2])).any()


def test_operators_of_python_keep_signs_of_zero(evaluate_all):
    x = np.array([0.0, -0.0, 1.0, math.nan, math.inf], np.float32)
    calls = [("-x", "f32"), ("x - x", "f32"), ("x * float32(-1)", "f32"), ("float32(1) / x", "f32")]
    with np.errstate(all="ignore"):
        expected = [-x, x - x, x * np.float32(-1), np.float32(1) / x]
    for got, wanted in zip(evaluate_all(calls, x=("f32", x)), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
        numbers = ~np.isnan(wanted)
        assert (np.signbit(got) == np.signbit(wanted))[numbers].all()
