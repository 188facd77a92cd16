"""The interpreter's plain ops against PyTorch's functions: values, roundings, numbers, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given

from rudagraph.errors import ContractError, UsageError, VerifyError
from rudagraph.ir import random
from rudagraph.ir.graph import Graph, Hole
from rudagraph.ir.interpret import SEMANTICS, interpret
from rudagraph.ir.ops import OPS
from rudagraph.ir.text import parse_graph
from rudagraph.ir.types import DType
from rudagraph.ir.verify import verify
from tests.ir.graphs import random_graphs, random_inputs
from tests.ir.single import apply

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WHOLE = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


def test_every_op_has_a_meaning() -> None:
    assert set(SEMANTICS) == set(OPS)


# -- pointwise

SPECIAL = torch.tensor([0.0, -0.0, 0.5, 1.5, -2.5, 1.0, -1.0, 3.0, math.inf, -math.inf, math.nan])

UNARY: dict[str, Any] = {
    name: getattr(torch, name)
    for name in (
        "neg abs sqrt rsqrt reciprocal floor ceil trunc round sign relu exp exp2 expm1 log log2"
        " log10 log1p sin cos tan asin acos atan sinh cosh tanh sigmoid erf isnan isinf logical_not"
    ).split()
} | {"silu": F.silu, "gelu": F.gelu, "copy": torch.clone}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_ops_round_once(name: str, dtype: torch.dtype) -> None:
    x = torch.cat([SPECIAL.to(dtype), numbers(dtype, 100)])
    (got,) = apply(name, x)
    wanted = UNARY[name](wide(x))
    same(got, wanted if wanted.dtype == torch.bool else wanted.to(dtype))


BINARY: dict[str, Any] = {
    name: getattr(torch, name)
    for name in (
        "add sub mul div maximum minimum floor_divide remainder fmod pow atan2 eq ne lt le gt ge"
        " logical_and logical_or logical_xor"
    ).split()
} | {
    "truncate_divide": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "sigmoid_backward": lambda g, y: g * (1 - y) * y,
    "tanh_backward": lambda g, y: g * (1 - y * y),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_ops_broadcast_and_round_once(name: str, dtype: torch.dtype) -> None:
    x = torch.cat([SPECIAL.to(dtype), numbers(dtype, 20)]).reshape(-1, 1)
    y = torch.cat([SPECIAL.to(dtype), numbers(dtype, 20, seed=1)])
    (got,) = apply(name, x, y)
    wanted = BINARY[name](*torch.broadcast_tensors(wide(x), wide(y)))
    wanted = wanted if wanted.dtype == torch.bool else wanted.to(dtype)
    exact = not name.endswith("_backward")
    torch.testing.assert_close(
        got, wanted, equal_nan=True, rtol=0 if exact else None, atol=0 if exact else None
    )


def test_multiply_add_rounds_once() -> None:
    """What a product of its own would round away is there; 16-bit operands widen exactly."""
    x = torch.tensor([1 + 2.0**-12])
    same(apply("multiply_add", x, x, -x)[0], x.double().mul(x.double()).sub(x.double()).float())
    assert apply("multiply_add", x, x, -(x * x))[0].item() == 2.0**-24
    first, second, third = (numbers(torch.bfloat16, 200, seed=seed) for seed in range(3))
    wanted = wide(first).double() * wide(second).double() + wide(third).double()
    same(apply("multiply_add", first, second, third)[0], wanted.float().bfloat16())


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_derivatives_of_gates(name: str) -> None:
    x = numbers(torch.float64, 50).requires_grad_()
    gradient = numbers(torch.float64, 3, 50, seed=1)
    function = {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    }[name]
    (wanted,) = torch.autograd.grad(function(x.expand(3, 50)), x, gradient)
    attributes = {"approximate": "tanh"} if name == "gelu_tanh" else {}
    (got,) = apply(f"{name.removesuffix('_tanh')}_backward", gradient, x.detach(), **attributes)
    torch.testing.assert_close(got.sum(0), wanted)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum"])
@pytest.mark.parametrize("number", [0.1, -3, 7.25, True])
def test_numbers_are_used_in_the_compute_type(name: str, number: float, dtype: torch.dtype) -> None:
    """As eager does in products; its sums on a CPU round the number to 16 bits first."""
    x = numbers(dtype, 200)
    (got,) = apply(name, x, number)
    same(got, getattr(torch, name)(wide(x), wide(x).new_tensor(number)).to(dtype))
    if name in ("mul", "div"):
        same(got, getattr(torch, name)(x, number))
    if name in ("maximum", "minimum"):
        same(got, torch.clamp(x, **{"min" if name == "maximum" else "max": number}))


def test_a_number_may_come_first() -> None:
    x = numbers(torch.bfloat16, 200)
    same(apply("sub", 0.1, x)[0], (0.1 - wide(x)).to(x.dtype))
    same(apply("pow", 2.0, x)[0], torch.pow(2.0, wide(x)).to(x.dtype))


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, -0.5, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_by_a_number_are_eager_to_the_bit(exponent: float, dtype: torch.dtype) -> None:
    x = numbers(dtype, 1000).abs()
    same(apply("pow", x, exponent)[0], x**exponent)


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_integers_keep_their_type(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 5, 100, -7, -100]).to(dtype)
    y = torch.tensor([3, 2, 2, 7, 4, -3]).to(dtype)
    for name in "add sub mul maximum minimum floor_divide remainder fmod pow eq lt".split():
        if name == "pow":
            same(apply(name, x, 2)[0], x**2)
        else:
            same(apply(name, x, y)[0], getattr(torch, name)(x, y))
    same(apply("truncate_divide", x, y)[0], torch.div(x, y, rounding_mode="trunc"))
    same(apply("bitwise_and", x, y)[0], x & y)
    same(apply("bitwise_or", x, 3)[0], x | 3)
    same(apply("bitwise_xor", x, y)[0], x ^ y)
    same(apply("bitwise_not", x)[0], ~x)
    same(apply("shift_left", x, 2)[0], x << 2)
    same(apply("shift_right", x, 1)[0], x >> 1)
    same(apply("neg", x)[0], -x)
    same(apply("abs", x)[0], x.abs())
    same(apply("sign", x)[0], x.sign())


def test_booleans() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    same(apply("bitwise_and", x, y)[0], x & y)
    same(apply("bitwise_not", x)[0], ~x)
    same(apply("logical_xor", x, True)[0], ~x)
    same(apply("add", x, y)[0], x | y)
    same(apply("eq", x, y)[0], x == y)
    same(apply("sum", x, axes=(0,), dtype=DType.I64)[0], torch.tensor(2))
    same(apply("sum", x, axes=(0,), dtype=DType.F32)[0], torch.tensor(2.0))


def test_casts_convert_as_torch() -> None:
    x = torch.tensor([0.0, 1.7, -1.7, 3.0, 200.5])
    for dtype in [DType.I32, DType.I64, DType.B8, DType.F16, DType.BF16, DType.F64]:
        (got,) = apply("cast", x, dtype=dtype)
        same(got, x.to(got.dtype))
    same(apply("cast", torch.tensor([300, -1]), dtype=DType.U8)[0], torch.tensor([44, 255]).byte())


def test_where_chooses() -> None:
    condition = torch.tensor([[True], [False]])
    x = numbers(torch.bfloat16, 3)
    same(apply("where", condition, x, -math.inf)[0], torch.where(condition, x, -math.inf))
    (zero,) = apply("where", condition, -0.0, 1.0, dtype=DType.F32)
    assert math.copysign(1, zero[0].item()) == -1
    (got,) = apply("where", condition, 0.1, 1, dtype=DType.BF16)
    same(got, torch.tensor([[0.1], [1.0]], dtype=torch.bfloat16))


# -- reductions


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_reductions(axes: tuple[int, ...], keepdim: bool) -> None:
    x = numbers(torch.float64, 3, 4, 5)
    keep = {"keepdim": keepdim}
    for name in ("sum", "mean", "amax", "amin"):
        (got,) = apply(name, x, axes=axes, **keep)
        wanted = getattr(torch, name)(x, axes, **keep) if axes else x
        torch.testing.assert_close(got, wanted)


def test_sums_of_16_bits_round_once() -> None:
    x = torch.full((4096,), 1.0, dtype=torch.bfloat16) + 2**-7
    (got,) = apply("sum", x, axes=(0,))
    same(got, x.float().sum().bfloat16())
    (wide_sum,) = apply("sum", x, axes=(0,), dtype=DType.F32)
    same(wide_sum, torch.tensor(4096 + 32.0))
    (mean,) = apply("mean", x, axes=(0,))
    same(mean, x[0])


def test_sums_of_small_integers_do_not_wrap() -> None:
    x = torch.full((10,), 100, dtype=torch.int8)
    same(apply("sum", x, axes=(0,), dtype=DType.I64)[0], torch.tensor(1000))
    same(apply("sum", x, axes=(0,), dtype=DType.F64)[0], torch.tensor(1000.0, dtype=torch.float64))


def test_empty_reductions_and_nan() -> None:
    same(apply("sum", torch.zeros(0, 3), axes=(0,))[0], torch.zeros(3))
    assert apply("mean", torch.zeros(0, 3), axes=(0,))[0].isnan().all()
    assert apply("amax", torch.tensor([1.0, math.nan]), axes=(0,))[0].isnan()


# -- views, creation, joining


def test_views() -> None:
    x = numbers(torch.float32, 2, 3, 4)
    same(apply("reshape", x, shape=(6, 4))[0], x.reshape(6, 4))
    same(apply("permute", x, axes=(2, 0, 1))[0], x.permute(2, 0, 1))
    same(apply("expand", x, shape=(5, 2, 3, 4))[0], x.expand(5, 2, 3, 4))
    same(apply("slice", x, axis=1, start=1, stop=3, step=2)[0], x[:, 1:3:2])
    same(apply("flip", x, axis=1)[0], x.flip(1))


def test_creation() -> None:
    (got,) = apply("full", dtype=DType.BF16, shape=(2, 2), value=0.1)
    same(got, torch.full((2, 2), 0.1, dtype=torch.bfloat16))
    same(apply("full", dtype=DType.B8, shape=(), value=True)[0], torch.tensor(True))
    same(
        apply("iota", dtype=DType.I64, length=4, start=3, step=-2)[0], torch.tensor([3, 1, -1, -3])
    )
    same(apply("iota", dtype=DType.F32, length=3, start=0.5, step=0.25)[0], torch.arange(2, 5) / 4)


def test_joining() -> None:
    x, y = numbers(torch.float32, 2, 3), numbers(torch.float32, 2, 1, seed=1)
    same(apply("concatenate", x, y, x, axis=1)[0], torch.cat([x, y, x], 1))
    (got,) = apply("pad", x, low=(1, -1), high=(0, 2), value=7.0)
    same(got, F.pad(x, (-1, 2, 1, 0), value=7.0))


# -- products and indexing


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_products_round_once(dtype: torch.dtype) -> None:
    x, y, b = numbers(dtype, 2, 5, 7), numbers(dtype, 2, 7, 3, seed=1), numbers(dtype, 3, seed=2)
    same(apply("matmul", x, y)[0], (wide(x) @ wide(y)).to(dtype))
    torch.testing.assert_close(apply("matmul", x, y)[0], x @ y)
    (got,) = apply("addmm", b, x[0], y[0])
    torch.testing.assert_close(got, torch.addmm(b, x[0], y[0]))


def test_embedding_and_its_derivative() -> None:
    weight = numbers(torch.float64, 6, 4).requires_grad_()
    ids = torch.tensor([[1, 5, 1], [0, 2, 1]])
    rows = F.embedding(ids, weight)
    same(apply("embedding", weight.detach(), ids)[0], rows.detach())
    same(apply("embedding", weight.detach(), ids.int())[0], rows.detach())
    gradient = numbers(torch.float64, 2, 3, 4, seed=1)
    for padding in (-1, 1):
        for scaled in (False, True):
            (wanted,) = torch.autograd.grad(
                F.embedding(
                    ids, weight, padding if padding >= 0 else None, scale_grad_by_freq=scaled
                ),
                weight,
                gradient,
            )
            (got,) = apply(
                "embedding_backward",
                gradient,
                ids,
                rows=6,
                padding_index=padding,
                scale_by_frequency=scaled,
            )
            torch.testing.assert_close(got, wanted)


def test_embedding_gradient_of_16_bits_adds_in_f32() -> None:
    gradient = torch.full((1000, 1), 0.01, dtype=torch.bfloat16)
    (got,) = apply("embedding_backward", gradient, torch.zeros(1000, dtype=torch.long), rows=2)
    same(got, torch.stack([gradient.float().sum(0), torch.zeros(1)]).bfloat16())


def test_no_ids_give_no_gradient() -> None:
    (got,) = apply(
        "embedding_backward", torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), rows=3
    )
    same(got, torch.zeros(3, 4))


@pytest.mark.parametrize("wrong", [-1, 6])
def test_ids_out_of_range_are_errors(wrong: int) -> None:
    ids = torch.tensor([0, wrong])
    text = f"id {wrong} is out of range for a table of 6 rows\n  where: {{}} %r"
    with pytest.raises(ContractError) as caught:
        apply("embedding", torch.zeros(6, 2), ids)
    assert str(caught.value) == text.format("embedding")
    with pytest.raises(ContractError) as caught:
        apply("embedding_backward", torch.zeros(2, 2), ids, rows=6)
    assert str(caught.value) == text.format("embedding_backward")


# -- random


@pytest.mark.parametrize("bits", [16, 32])
def test_bernoulli_draws_the_reference_words(bits: int) -> None:
    key = torch.tensor(-(2**40) + 12345)
    (got,) = apply("bernoulli", key, bits=bits, probability=0.3, shape=(5, 9), stream=2)
    words = random.words(int(key), 2, 45, bits)
    kept = [int(word) >= round(0.3 * 2**bits) for word in words]
    same(got, torch.tensor(kept).reshape(5, 9))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_scales_what_it_keeps(dtype: torch.dtype) -> None:
    x, key = numbers(dtype, 30, 30), torch.tensor(77)
    (got,) = apply("dropout", x, key, probability=0.1, stream=1)
    kept = apply("bernoulli", key, bits=16, probability=0.1, shape=(30, 30), stream=1)[0]
    assert 0 < (~kept).sum() < 200
    same(got[kept], (wide(x) * (1 / 0.9)).to(dtype)[kept])
    assert (got[~kept] == 0).all()
    same(apply("dropout", x, key, probability=1.0, stream=1)[0], torch.zeros_like(x))
    same(apply("dropout", x, key, probability=0.0, stream=1)[0], x)


def test_dropped_infinities_are_zero() -> None:
    (got,) = apply(
        "dropout", torch.full((64,), math.inf), torch.tensor(1), probability=0.5, stream=0
    )
    assert set(got.tolist()) == {0.0, math.inf}


# -- library and fused


def test_library_ops_fill_their_template() -> None:
    x, w = numbers(torch.float32, 1, 2, 5, 5), numbers(torch.float32, 3, 2, 3, 3)
    arguments = (Hole(0), Hole(1), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    (got,) = apply(
        "library", x, w, target="aten.convolution.default", arguments=arguments,
        types=["f32[1,3,5,5]"],
    )  # fmt: skip
    same(got, F.conv2d(x, w, padding=1))
    (again,) = apply(
        "library", x, target="aten.sum.dim_IntList", arguments=(Hole(0), (1,)),
        keywords=(("dtype", DType.F64),), types=["f64[1,5,5]"],
    )  # fmt: skip
    same(again, x.sum(1, dtype=torch.float64))


def test_library_ops_may_have_several_results() -> None:
    x = numbers(torch.float32, 4, 6)
    values, indices = apply(
        "library", x, target="aten.topk.default", arguments=(Hole(0), 2),
        types=["f32[4,2]", "i64[4,2]"],
    )  # fmt: skip
    same(values, x.topk(2).values)
    same(indices, x.topk(2).indices)
    parts = apply(
        "library", x, target="aten.split.Tensor", arguments=(Hole(0), 3),
        types=["f32[3,6]", "f32[1,6]"],
    )  # fmt: skip
    same(torch.cat(parts), x)


def test_left_out_results_of_library_ops_do_not_count() -> None:
    x, w = numbers(torch.float32, 1, 1, 3, 3), numbers(torch.float32, 1, 1, 3, 3, seed=1)
    (got,) = apply(
        "library", torch.ones(1, 1, 1, 1), x, w, target="aten.convolution_backward.default",
        arguments=(Hole(0), Hole(1), Hole(2), None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1,
                   (False, True, False)),
        types=["f32[1,1,3,3]"],
    )  # fmt: skip
    same(got, x)


def test_results_that_were_not_asked_for_do_not_count() -> None:
    x, grid = numbers(torch.float32, 1, 1, 3, 3), numbers(torch.float32, 1, 2, 2, 2, seed=1)
    # PyTorch gives the gradient of the grid whether it is asked for or not.
    (got,) = apply(
        "library", torch.ones(1, 1, 2, 2), x, grid, target="aten.grid_sampler_2d_backward.default",
        arguments=(Hole(0), Hole(1), Hole(2), 0, 0, False, (True, False)),
        types=["f32[1,1,3,3]"],
    )  # fmt: skip
    x.requires_grad_()
    torch.nn.functional.grid_sample(x, grid, align_corners=False).sum().backward()
    assert x.grad is not None
    same(got, x.grad)


def test_wrong_declarations_of_library_ops_are_found() -> None:
    x = torch.zeros(2)
    for types, what in [
        (["f32[3]"], "library gives shape [2] for f32[3]"),
        (["f64[2]"], "library gives torch.float32 for f64[2]"),
        (["f32[2]", "f32[2]"], "library gives 1 results"),
    ]:
        with pytest.raises(VerifyError) as caught:
            apply("library", x, target="aten.neg.default", arguments=(Hole(0),), types=types)
        assert caught.value.what == what
    with pytest.raises(VerifyError, match=r"has no operator aten\.frobnicate\.default"):
        apply("library", x, target="aten.frobnicate.default", types=["f32[2]"])


FUSED = parse_graph("""\
graph g {
  %x: bf16[3,4] = input argument "x"
  %s: bf16[4] = input argument "s"
  %y: bf16[3,4], %t: bf16[3] = fused(%x, %s) [kind="rows"] {
    %a: bf16[3,4] = input operand
    %b: bf16[4] = input operand
    %c: bf16[3,4] = mul(%a, %b)
    %d: bf16[3,4] = add(%c, 0.1)
    %e: bf16[3] = sum(%d) [axes=[1]]
    output result = %d
    output result = %e
  }
  output result "t" = %t
  output result "y" = %y
}
""")


def test_a_fused_op_means_its_body() -> None:
    verify(FUSED)
    inputs = random_inputs(FUSED)
    got = interpret(FUSED, inputs)
    assert list(got) == ["t", "y"]
    y = ((inputs["x"] * inputs["s"]).float() + 0.1).bfloat16()
    same(got["y"], y)
    same(got["t"], y.sum(1))


# -- the run as a whole


def test_precision_never_rounds() -> None:
    inputs = random_inputs(FUSED)
    exact = {name: tensor.double() for name, tensor in inputs.items()}
    for given_inputs in (inputs, exact):
        got = interpret(FUSED, given_inputs, precision=torch.float64)
        y = exact["x"] * exact["s"] + 0.1
        same(got["y"], y)
        torch.testing.assert_close(got["t"], y.sum(1))


def test_casts_between_floats_do_nothing_in_precision() -> None:
    graph = parse_graph("""graph g {
      %x: f32[2] = input argument
      %low: bf16[2] = cast(%x) [dtype=bf16]
      %n: i32[2] = cast(%low) [dtype=i32]
      %back: f32[2] = cast(%n) [dtype=f32]
      output result = %low
      output result = %back
    }""")
    got = interpret(graph, {"x": torch.tensor([1.001, 7.9])}, precision=torch.float64)
    same(got["low"], torch.tensor([1.001, 7.9]).double())
    same(got["back"], torch.tensor([1.0, 7.0]).double())


def test_intermediates_are_there_when_asked_for() -> None:
    graph = parse_graph("""graph g {
      %x: f32[] = input argument
      %y: f32[] = add(%x, 1)
      %z: f32[] = mul(%y, 2)
      output result = %z
    }""")
    got = interpret(graph, {"x": torch.tensor(3.0)}, intermediates=True)
    assert {name: tensor.item() for name, tensor in got.items()} == {"x": 3, "y": 4, "z": 8}
    assert list(interpret(graph, {"x": torch.tensor(3.0)})) == ["z"]


def test_inputs_must_fit() -> None:
    x, s = torch.zeros(3, 4, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.bfloat16)
    for inputs, what in [
        ({"x": x}, "no tensor is given for input %s: bf16[4]"),
        ({"x": x[:2], "s": s}, "input %x: bf16[3,4] is given shape [2, 4]"),
        ({"x": x, "s": s.float()}, "input %s: bf16[4] is given dtype torch.float32"),
    ]:
        with pytest.raises(UsageError) as caught:
            interpret(FUSED, inputs)
        assert caught.value.what == what


@given(random_graphs())
def test_random_graphs_run_and_keep_their_inputs(graph: Graph) -> None:
    inputs = random_inputs(graph)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    for precision in (None, torch.float64):
        got = interpret(graph, inputs, precision=precision, intermediates=True)
        for value in graph.values():
            assert tuple(got[value.name].shape) == value.type.shape
    for name, tensor in inputs.items():
        same(tensor, before[name])
