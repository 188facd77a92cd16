"""Modules and functions of PyTorch in training: every one against eager in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

from rudagraph.capture import capture
from rudagraph.ir.types import DType
from tests.capture.masks import our_masks
from tests.capture.support import KEY, assert_same, check, eager, run


@pytest.fixture(autouse=True)
def _doubles() -> Any:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.inner(*args)[0]


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(8, 2, 1, 1, 16, 0.0)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = self.inner.generate_square_subsequent_mask(len(target))
        output: torch.Tensor = self.inner(source, target, tgt_mask=mask)
        return output


def self_attention() -> nn.Module:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, h: torch.Tensor) -> Any:
            return self.inner(h, h, h)

    return Attention()


ACTIVATIONS = (
    nn.GELU("tanh"),
    nn.Mish(),
    nn.ELU(),
    nn.SELU(),
    nn.CELU(),
    nn.Hardswish(),
    nn.Softplus(),
    nn.Softsign(),
    nn.PReLU(),
    nn.LeakyReLU(),
    nn.Hardtanh(),
    nn.GLU(),
    nn.LogSigmoid(),
    nn.Tanhshrink(),
    nn.Threshold(0.1, 0.2),
)
LOSSES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy kl_div poisson_nll_loss "
    "binary_cross_entropy_with_logits cosine_similarity pairwise_distance"
).split()

CASES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "weight_norm": lambda: (parametrizations.weight_norm(nn.Linear(8, 4)), (x(2, 8),)),
    "spectral_norm": lambda: (parametrizations.spectral_norm(nn.Linear(8, 4)), (x(2, 8),)),
    "lstm": lambda: (First(nn.LSTM(4, 3, 2)), (x(3, 2, 4),)),
    "gru": lambda: (First(nn.GRU(4, 3, bidirectional=True)), (x(3, 2, 4),)),
    "multi-head attention": lambda: (self_attention(), (x(2, 5, 8),)),
    "encoder layer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, 0.0), (x(5, 2, 8),)),
    "encoder in eval": lambda: (nn.TransformerEncoderLayer(8, 2, 16).eval(), (x(5, 2, 8),)),
    "encoder with a mask": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0), 1, None, False),
        (x(5, 2, 8), nn.Transformer.generate_square_subsequent_mask(5)),
    ),
    "encoder and decoder": lambda: (Translator(), (x(5, 2, 8), x(3, 2, 8))),
    "group norm": lambda: (nn.GroupNorm(2, 8), (x(3, 8, 4),)),
    "instance norm": lambda: (nn.InstanceNorm1d(4, affine=True), (x(3, 4, 5),)),
    "tracking instance norm": lambda: (
        nn.InstanceNorm1d(4, track_running_stats=True),
        (torch.randn(3, 4, 5),),
    ),
    "bilinear": lambda: (nn.Bilinear(4, 5, 3), (x(2, 4), x(2, 5))),
    "embedding bag": lambda: (nn.EmbeddingBag(6, 4), (torch.tensor([[1, 2], [2, 4]]),)),
    "images": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
            nn.PixelShuffle(2),
            nn.AdaptiveMaxPool2d(3),
            nn.Flatten(),
            nn.LogSoftmax(-1),
        ),
        (x(2, 3, 6, 6),),
    ),
    "activations": lambda: (nn.Sequential(nn.Linear(8, 8), *ACTIVATIONS).double(), (x(2, 8),)),
    "losses": lambda: (
        Function(lambda a, b: {n: getattr(F, n)(a.sigmoid(), b.sigmoid()) for n in LOSSES}),
        (x(3, 4), torch.randn(3, 4)),
    ),
    "cross entropy": lambda: (
        Function(
            lambda a, t, w, p: [
                *(
                    F.cross_entropy(a, t, w, ignore_index=1, label_smoothing=0.1, reduction=r)
                    for r in ("none", "sum", "mean")
                ),
                F.cross_entropy(a, p.softmax(1)),
                F.cross_entropy(a[0, :, 0, 0], t[0, 0, 0]),
                F.nll_loss(a.log_softmax(1), t),
            ]
        ),
        (x(2, 4, 3, 3), torch.randint(0, 4, (2, 3, 3)), torch.rand(4), torch.randn(2, 4, 3, 3)),
    ),
    "strided": lambda: (
        Function(
            lambda a: [
                a.unfold(1, 3, 2),
                a.t().contiguous().as_strided((3, 2), (2, 1), 1),
                a.as_strided((3, 3), (1, 2)),
                a[:, ::2],
                a.diagonal(),
                a.flip(0),
                a.roll(1, 1),
            ]
        ),
        (x(4, 6),),
    ),
    "writes into parts": lambda: (Function(written), (x(4, 6), x(4))),
    "variances": lambda: (
        Function(lambda a: [a.var(), a.std(0), *torch.var_mean(a, 1, correction=0), a.norm()]),
        (x(4, 6),),
    ),
}


def written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a = a * 1.0
    a[:, 0] = b
    a[1:3, ::2] *= 2
    a[0] += b.sum()
    a[:, 4:] = 0.5
    return a.relu_()


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    model, args = CASES[name]()
    check(model, args)


def test_weights_that_a_hook_computes_anew() -> None:
    layer = nn.Linear(4, 3)
    prune.l1_unstructured(layer, "weight", 0.5)
    h = torch.randn(2, 4)
    captured = capture(layer, (h,))
    before = layer.weight
    got = run(captured, layer, (h,))
    layer(h).sum().backward()
    torch.testing.assert_close(got.gradients["weight_orig"], layer.weight_orig.grad)
    assert layer.weight is not before  # the hook ran in eager, not while capturing


DROPOUTS = {
    "dropout": (nn.Dropout(0.3), (4, 6)),
    "inplace": (nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3, inplace=True)), (4, 6)),
    "everything": (nn.Dropout(1.0), (4, 6)),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True), (2, 5, 8)),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_against_eager_with_our_masks(name: str) -> None:
    model, shape = DROPOUTS[name]
    model = model.double()
    h = torch.randn(*shape, requires_grad=True)
    got = run(capture(model, (h,)), model, (h,))
    with our_masks(KEY):
        want = eager(model, (h,))
    assert_same(got, want)


@pytest.mark.parametrize(
    ("kind", "shape", "mask"),
    [
        (nn.Dropout1d, (3, 4, 5), (3, 4, 1)),
        (nn.Dropout1d, (4, 5), (4, 1)),
        (nn.Dropout2d, (3, 4, 5, 2), (3, 4, 1, 1)),
        (nn.Dropout3d, (3, 4, 2, 2, 2), (3, 4, 1, 1, 1)),
        (nn.AlphaDropout, (30, 40), (30, 40)),
        (nn.FeatureAlphaDropout, (30, 40, 2), (30, 40, 1)),
    ],
)
def test_other_dropouts(kind: Any, shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    """Every element is one of two affine images of the input, chosen a mask element at a time."""
    p = 0.25
    model = kind(p)
    h = torch.randn(*shape).abs() + 1
    h.requires_grad_()
    captured = capture(model, (h,))
    (op,) = [op for op in captured.graph.ops if op.opcode == "bernoulli"]
    assert op.result.type.numel == torch.Size(mask).numel()
    got = run(captured, model, (h,))
    slope = got.gradients["argument:input"]
    kept = slope != 0
    assert torch.equal(kept, kept.reshape(shape)[tuple(slice(0, n) for n in mask)].expand(shape))
    if kind in (nn.AlphaDropout, nn.FeatureAlphaDropout):
        dropped = got.results[""][~kept]
        assert dropped.unique().numel() == 1 and slope[kept].unique().numel() == 1
        shift = (got.results[""] - slope * h)[kept]
        torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    else:
        torch.testing.assert_close(slope[kept], torch.full_like(slope[kept], 1 / (1 - p)))
        torch.testing.assert_close(got.results[""], slope * h)
    assert not [op for op in capture(model.eval(), (h,)).graph.ops if op.opcode == "bernoulli"]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("parameters", "data"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.bfloat16),
        (torch.float16, torch.float16),
    ],
    ids=str,
)
def test_batch_norm_in_half_precision(
    train: bool, parameters: torch.dtype, data: torch.dtype
) -> None:
    model = nn.BatchNorm1d(5).to(parameters).train(train)
    h = torch.randn(4, 5, 3).to(data).requires_grad_()
    captured = capture(model, (h,))
    got = run(captured, model, (h,))
    want = eager(model, (h,))
    # Upstream ones make the exact gradient of a normalised value 0: only its size is compared.
    for name, gradient in want.gradients.items():
        assert got.gradients[name].dtype == gradient.dtype
        torch.testing.assert_close(got.gradients[name], gradient, rtol=0.02, atol=0.1)
    want.gradients.clear()
    got.gradients.clear()
    assert_same(got, want, 1e-2, 1e-2)
    dtypes = {op.results[1].type.dtype for op in captured.graph.ops if op.opcode == "library"}
    assert DType.BF16 not in dtypes and DType.F16 not in dtypes
