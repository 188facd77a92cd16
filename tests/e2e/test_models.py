"""Twelve real architectures through the whole path: machine code against eager PyTorch.

float64 throughout, so that what remains of the difference is float32 arithmetic inside the models
themselves (rotary angles, norms and losses that Hugging Face computes in float32).
"""

from __future__ import annotations

import copy
import functools
import io

import pytest
import torch

import rudagraph as rg
from rudagraph.runtime.step import Step
from tests.capture.masks import our_masks
from tests.models import MODELS, Sample, build_model

DROPPED = [
    pytest.param(name, marks=[] if name in ("llama", "bert", "t5") else pytest.mark.full)
    for name in MODELS
]
TRAINED = [
    pytest.param(name, marks=[] if name in ("llama", "gpt2", "vit") else pytest.mark.full)
    for name in MODELS
]


@functools.cache
def compiled(name: str, dropout: float = 0.0) -> tuple[Sample, Step]:
    sample = build_model(name, torch.float64, dropout)
    return sample, rg.StaticGraph(sample.model, outputs="loss").compile(**sample.batch)


def backward(model: torch.nn.Module, call: object, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    loss = call(**batch).loss  # type: ignore[operator]
    loss.backward()
    return loss.detach()


def assert_same_gradients(model: torch.nn.Module, reference: torch.nn.Module) -> None:
    for (name, got), want in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (got.grad is None) == (want.grad is None), name
        if want.grad is not None:
            error = (got.grad - want.grad).norm() / want.grad.norm().clamp_min(1e-12)
            assert error < 2e-6, f"{name}: relative difference {error:.1e}"


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient(name: str) -> None:
    sample, step = compiled(name)
    reference = copy.deepcopy(sample.model)
    want = backward(reference, reference, sample.batch)
    got = backward(sample.model, step, sample.batch)
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)
    assert_same_gradients(sample.model, reference)


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_against_eager_with_our_masks(name: str) -> None:
    sample, step = compiled(name, 0.25)
    reference = copy.deepcopy(sample.model)
    torch.manual_seed(7)
    key = int(torch.empty((), dtype=torch.int64).random_())
    with our_masks(key):
        want = backward(reference, reference, sample.batch)
    torch.manual_seed(7)
    got = backward(sample.model, step, sample.batch)
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)
    assert_same_gradients(sample.model, reference)


@pytest.mark.parametrize("name", TRAINED)
def test_twenty_optimizer_steps_stay_with_eager(name: str) -> None:
    sample, step = compiled(name)
    start = copy.deepcopy(sample.model.state_dict())
    reference = copy.deepcopy(sample.model)
    ours = torch.optim.AdamW(sample.model.parameters(), lr=1e-3)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-3)
    first = backward(reference, reference, sample.batch)
    try:
        for _ in range(20):
            got = backward(sample.model, step, sample.batch)
            want = backward(reference, reference, sample.batch)
            ours.step()
            theirs.step()
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
        for (parameter_name, got_value), want_value in zip(
            sample.model.named_parameters(), reference.parameters(), strict=True
        ):
            # Adam divides by the gradient's size: where that is nothing but rounding, so is this.
            difference = (got_value - want_value).abs().max()
            assert difference < 2e-4, f"{parameter_name}: {difference:.1e}"
        assert got < first, "twenty steps on one batch must lower its loss"
    finally:
        sample.model.load_state_dict(start)


def test_state_dict_round_trip() -> None:
    sample, step = compiled("llama")
    keys = list(build_model("llama", torch.float64).model.state_dict())
    assert list(sample.model.state_dict()) == keys
    file = io.BytesIO()
    torch.save(sample.model.state_dict(), file)
    want = backward(sample.model, step, sample.batch)
    with torch.no_grad():
        for parameter in sample.model.parameters():
            parameter.add_(0.05)
    assert backward(sample.model, step, sample.batch) != want
    file.seek(0)
    sample.model.load_state_dict(torch.load(file))
    assert backward(sample.model, step, sample.batch) == want
