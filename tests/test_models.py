"""The twelve models themselves: they train in eager, and dropout and dtype are what was asked."""

from __future__ import annotations

import pytest
import torch

from tests.models import MODELS, build_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_finite_gradient(name: str, dtype: torch.dtype) -> None:
    model, batch = build_model(name, dtype)
    assert model.training
    assert {p.dtype for p in model.parameters()} == {dtype}
    loss = model(**batch).loss
    loss.backward()
    assert torch.isfinite(loss)
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name


@pytest.mark.parametrize("name", MODELS)
def test_dropout_follows_the_argument(name: str) -> None:
    def losses(dropout: float) -> set[float]:
        model, batch = build_model(name, dropout=dropout)
        torch.manual_seed(3)
        return {model(**batch).loss.item() for _ in range(3)}

    assert len(losses(0.0)) == 1
    assert len(losses(0.4)) == 3


def test_the_same_seed_gives_the_same_model_and_batch() -> None:
    first, batch = build_model("t5", seed=5)
    second, again = build_model("t5", seed=5)
    other, _ = build_model("t5", seed=6)
    assert all(torch.equal(batch[key], again[key]) for key in batch)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
    pairs = zip(first.parameters(), other.parameters(), strict=True)
    assert not all(torch.equal(left, right) for left, right in pairs)
