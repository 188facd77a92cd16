"""Composites and attention: forward against PyTorch's functions, backward against autograd, in f64.

Then the roundings that each composite promises for 16-bit storage.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rudagraph.errors import ContractError
from rudagraph.ir.types import DType
from tests.ir.single import apply

F64 = torch.float64


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12, equal_nan=True)


def same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


# -- softmax


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(name: str, axis: int) -> None:
    x = numbers(3, 4, 5).requires_grad_()
    y = getattr(torch, name)(x, axis)
    gradient = numbers(3, 4, 5, seed=1)
    (wanted,) = torch.autograd.grad(y, x, gradient)
    (got,) = apply(name, x.detach(), axis=axis)
    close(got, y.detach())
    close(apply(f"{name}_backward", gradient, got, axis=axis)[0], wanted)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_16_bits(name: str) -> None:
    x = numbers(4, 50, dtype=torch.bfloat16)
    function = getattr(torch, name)
    same(apply(name, x, axis=1)[0], function(x.float(), 1).bfloat16())
    same(apply(name, x, axis=1, dtype=DType.F32)[0], function(x, 1, dtype=torch.float32))
    y, gradient = function(x, 1, dtype=torch.float32), numbers(4, 50, seed=1, dtype=torch.float32)
    (got,) = apply(f"{name}_backward", gradient, y, axis=1, dtype=DType.BF16)
    opcode = getattr(torch.ops.aten, f"_{name}_backward_data")
    same(got, opcode(gradient, y, 1, torch.float32).bfloat16())


def test_softmax_of_one_number_and_of_infinities() -> None:
    same(apply("softmax", torch.tensor(3.0), axis=0)[0], torch.tensor(1.0))
    x = torch.tensor([[-math.inf, 0.0], [-math.inf, -math.inf], [math.nan, 0.0]])
    same(apply("softmax", x, axis=1)[0], torch.softmax(x, 1))


# -- norms


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("affine", [(True, True), (True, False), (False, True), (False, False)])
def test_layer_norm(axes: int, affine: tuple[bool, bool]) -> None:
    x = (3 * numbers(2, 3, 4, 5) + 100).requires_grad_()
    shape = x.shape[-axes:]
    weight, bias = (
        numbers(*shape, seed=seed).requires_grad_() if wanted else None
        for seed, wanted in enumerate(affine, 1)
    )
    y = F.layer_norm(x, shape, weight, bias, 1e-3)
    gradient = numbers(*x.shape, seed=3)
    got, mean, rstd = apply(
        "layer_norm", *map(detached, (x, weight, bias)), axes=axes, epsilon=1e-3
    )
    close(got, y.detach())
    close(mean, x.detach().mean(tuple(range(-axes, 0)), keepdim=True))
    needs = (True, *affine)
    wanted = torch.autograd.grad(y, [t for t in (x, weight, bias) if t is not None], gradient)
    results = apply(
        "layer_norm_backward", gradient, x.detach(), mean, rstd, detached(weight),
        axes=axes, needs=needs,
    )  # fmt: skip
    for result, expected in zip(results, wanted, strict=True):
        close(result, expected)


def detached(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.detach()


def test_layer_norm_keeps_statistics_in_f32() -> None:
    x = (numbers(8, 300) + 1000).bfloat16()
    weight, bias = numbers(300, seed=1).bfloat16(), numbers(300, seed=2).bfloat16()
    y, mean, rstd = apply("layer_norm", x, weight, bias, axes=1, epsilon=1e-5)
    assert mean.dtype == rstd.dtype == torch.float32
    exact = F.layer_norm(x.double(), (300,), weight.double(), bias.double(), 1e-5)
    torch.testing.assert_close(y, exact.bfloat16(), rtol=2**-7, atol=1e-3)
    torch.testing.assert_close(mean, x.double().mean(1, keepdim=True).float())


RMS = {
    "torch": lambda x, w, eps: F.rms_norm(x, w.shape, w, eps),
    "llama": lambda x, w, eps: (
        w * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    ),
    "gemma": lambda x, w, eps: (
        x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps) * (1.0 + w.float())
    ).to(x.dtype),
}


@pytest.mark.parametrize("style", RMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_rms_norm_rounds_as_its_style(style: str, dtype: torch.dtype) -> None:
    x, weight = numbers(64, 96, dtype=dtype), numbers(96, seed=1, dtype=dtype)
    y, rstd = apply("rms_norm", x, weight, axes=1, epsilon=1e-6, style=style)
    assert rstd.dtype == torch.float32
    same(y, RMS[style](x, weight, 1e-6))


def test_rms_styles_differ_in_16_bits_only() -> None:
    for dtype, differ in ((torch.bfloat16, True), (F64, False)):
        x, weight = numbers(64, 96, dtype=dtype), numbers(96, seed=1, dtype=dtype)
        first, second = (
            apply("rms_norm", x, weight, axes=1, epsilon=1e-6, style=style)[0]
            for style in ("torch", "llama")
        )
        assert (not torch.equal(first, second)) == differ


@pytest.mark.parametrize("style", RMS)
@pytest.mark.parametrize("axes", [1, 2])
def test_rms_norm_backward(style: str, axes: int) -> None:
    x, gradient = numbers(2, 3, 4, 5).requires_grad_(), numbers(2, 3, 4, 5, seed=2)
    weight = numbers(*x.shape[-axes:], seed=1).requires_grad_()
    scale = 1 + weight if style == "gemma" else weight
    y = F.rms_norm(x, weight.shape, None, 1e-3) * scale
    wanted = torch.autograd.grad(y, (x, weight), gradient)
    got, rstd = apply("rms_norm", x.detach(), weight.detach(), axes=axes, epsilon=1e-3, style=style)
    close(got, y.detach())
    results = apply(
        "rms_norm_backward", gradient, x.detach(), rstd, weight.detach(),
        axes=axes, needs=(True, True), style=style,
    )  # fmt: skip
    for result, expected in zip(results, wanted, strict=True):
        close(result, expected)
    (only,) = apply(
        "rms_norm_backward", gradient, x.detach(), rstd, weight.detach(),
        axes=axes, needs=(False, True), style=style,
    )  # fmt: skip
    close(only, wanted[1])


def test_rms_norm_without_weight() -> None:
    x, gradient = numbers(4, 5).requires_grad_(), numbers(4, 5, seed=1)
    y = F.rms_norm(x, (5,), None, 1e-3)
    (wanted,) = torch.autograd.grad(y, x, gradient)
    got, rstd = apply("rms_norm", x.detach(), None, axes=1, epsilon=1e-3, style="torch")
    close(got, y.detach())
    (dx,) = apply(
        "rms_norm_backward", gradient, x.detach(), rstd, None,
        axes=1, needs=(True, False), style="torch",
    )  # fmt: skip
    close(dx, wanted)


# -- cross-entropy

ROWS, CLASSES, IGNORED = 9, 7, 3


def cross_entropy_case(
    reduction: str, smoothing: float, weighted: bool, target: torch.Tensor, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Eager's loss and gradient, and the interpreter's [loss, logsumexp, divisor, gradient]."""
    logits = numbers(ROWS, CLASSES).requires_grad_()
    weight = numbers(CLASSES, seed=1).abs() if weighted else None
    settings: dict[str, Any] = {
        "ignore_index": ignore_index,
        "label_smoothing": smoothing,
        "reduction": reduction,
    }
    loss = F.cross_entropy(logits, target, weight, **settings)
    upstream = numbers(*loss.shape, seed=2)
    (wanted,) = torch.autograd.grad(loss, logits, upstream)
    results = apply("cross_entropy", logits.detach(), target, weight, **settings)
    results += apply(
        "cross_entropy_backward",
        upstream,
        logits.detach(),
        target,
        weight,
        *results[1:],
        **settings,
    )
    return loss.detach(), wanted, results


@pytest.mark.parametrize(
    ("reduction", "smoothing", "weighted"),
    list(itertools.product(["none", "sum", "mean"], [0.0, 0.15, 1.0], [False, True])),
)
@pytest.mark.parametrize("ignore_index", [-100, IGNORED])
def test_cross_entropy(reduction: str, smoothing: float, weighted: bool, ignore_index: int) -> None:
    target = torch.arange(ROWS) % CLASSES
    if ignore_index < 0:
        target[2] = ignore_index
    loss, gradient, got = cross_entropy_case(reduction, smoothing, weighted, target, ignore_index)
    close(got[0], loss)
    close(got[1], torch.logsumexp(numbers(ROWS, CLASSES), 1))
    close(got[3], gradient)


@pytest.mark.parametrize(
    ("reduction", "smoothing", "weighted"),
    list(itertools.product(["none", "sum", "mean"], [0.0, 0.15], [False, True])),
)
def test_cross_entropy_with_all_rows_ignored(
    reduction: str, smoothing: float, weighted: bool
) -> None:
    target = torch.full((ROWS,), -100)
    loss, gradient, got = cross_entropy_case(reduction, smoothing, weighted, target, -100)
    close(got[0], loss)
    assert bool(got[0].isnan().all()) == (reduction == "mean")
    close(got[3], gradient)
    assert (got[3] == 0).all()


def test_cross_entropy_of_16_bits_rounds_the_loss_once() -> None:
    logits = numbers(ROWS, CLASSES, dtype=torch.bfloat16)
    target = torch.arange(ROWS, dtype=torch.int32) % CLASSES
    loss, logsumexp, divisor = apply(
        "cross_entropy", logits, target, None,
        ignore_index=-100, label_smoothing=0.0, reduction="mean",
    )  # fmt: skip
    same(loss, F.cross_entropy(logits.float(), target.long()).bfloat16())
    assert logsumexp.dtype == divisor.dtype == torch.float32
    assert divisor == ROWS


def test_targets_out_of_range_are_errors() -> None:
    with pytest.raises(ContractError) as caught:
        cross_entropy = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}
        apply("cross_entropy", numbers(2, 5), torch.tensor([1, 5]), None, **cross_entropy)
    assert str(caught.value) == (
        "target 5 is out of range for 5 classes\n  where: cross_entropy %r"
    )


# -- attention


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("masking", ["none", "causal", "boolean", "added", "broadcast"])
def test_attention(masking: str, scale: float | None, groups: int) -> None:
    batch, heads, rows, keys, width = 2, 4, 5, 6, 8
    q, k, v = (
        numbers(*shape, seed=seed).requires_grad_()
        for seed, shape in enumerate(
            [(batch, heads, rows, width), (batch, groups, keys, width), (batch, groups, keys, 3)]
        )
    )
    mask: torch.Tensor | None = None
    if masking == "boolean":
        mask = numbers(batch, 1, rows, keys, seed=5) > -0.5
        mask[0, 0, 2] = False
    elif masking == "added":
        mask = numbers(batch, heads, rows, keys, seed=5)
        mask[1, 2, 3, 1:] = -math.inf
    elif masking == "broadcast":
        mask = numbers(1, keys, seed=5)
    causal = masking == "causal"
    out = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=True
    )
    gradient = numbers(*out.shape, seed=6)
    wanted = torch.autograd.grad(out, (q, k, v), gradient)
    attributes: dict[str, Any] = {"causal": causal, "scale": scale}
    tensors = [t.detach() for t in (q, k, v)]
    got, logsumexp = apply("attention", *tensors, mask, **attributes)
    close(got, out.detach())
    assert tuple(logsumexp.shape) == (batch, heads, rows)
    results = apply("attention_backward", gradient, *tensors, mask, got, logsumexp, **attributes)
    for result, expected in zip(results, wanted, strict=True):
        close(result, expected)


def test_logsumexp_of_attention() -> None:
    q, k, v = (numbers(1, 1, 3, 4, seed=seed) for seed in range(3))
    _, logsumexp = apply("attention", q, k, v, None, causal=True, scale=1.0)
    scores = (q @ k.transpose(2, 3)).masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf)
    close(logsumexp, scores.logsumexp(3))


def test_rows_that_see_nothing_give_zero() -> None:
    q, k, v = (numbers(1, 1, 3, 4, seed=seed) for seed in range(3))
    mask = torch.zeros(3, 3, dtype=torch.bool)
    out, logsumexp = apply("attention", q, k, v, mask)
    assert (out == 0).all() and (logsumexp == -math.inf).all()
    for gradient in apply("attention_backward", out + 1, q, k, v, mask, out, logsumexp):
        assert (gradient == 0).all()


def test_attention_of_16_bits_computes_in_f32() -> None:
    q, k, v = (numbers(1, 2, 9, 8, seed=seed, dtype=torch.bfloat16) for seed in range(3))
    out, logsumexp = apply("attention", q, k, v, None, causal=True)
    assert logsumexp.dtype == torch.float32
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(out, exact.bfloat16(), rtol=2**-8, atol=0)
