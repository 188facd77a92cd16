"""Whole steps on a GPU: the twelve models against eager in double precision, and twenty steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import rudagraph as rg
from rudagraph.runtime.step import Step
from tests.models import MODELS, build_model

pytestmark = pytest.mark.cuda

Tensor = torch.Tensor
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def sample(
    name: str, dtype: torch.dtype = torch.float32, dropout: float = 0.0
) -> tuple[torch.nn.Module, dict[str, Tensor]]:
    model, batch = build_model(name, dtype, dropout)
    return model.cuda(), {key: value.cuda() for key, value in batch.items()}


def run(model: torch.nn.Module, call: Any, batch: dict[str, Tensor]) -> list[Tensor]:
    """Loss and gradients of one step, in double precision."""
    model.zero_grad(set_to_none=True)
    loss = call(**batch).loss
    loss.backward()
    found = [loss, *(p.grad for p in model.parameters() if p.grad is not None)]
    return [tensor.detach().double() for tensor in found]


def in_double(model: torch.nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    exact = copy.deepcopy(model).double()
    return run(
        exact, exact, {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    )


def distance(got: list[Tensor], want: list[Tensor]) -> float:
    """Relative difference of all numbers together."""
    assert len(got) == len(want)
    difference = sum(float((a - b).square().sum()) for a, b in zip(got, want, strict=True))
    return float(difference / sum(float(b.square().sum()) for b in want)) ** 0.5


def compiled(model: torch.nn.Module, batch: dict[str, Tensor], **options: Any) -> Step:
    return rg.StaticGraph(model, outputs="loss", **options).compile(**batch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_as_near_to_the_truth_as_eager(
    name: str, dtype: torch.dtype
) -> None:
    model, batch = sample(name, dtype)
    truth = in_double(model, batch)
    eager = distance(run(model, model, batch), truth)
    step = compiled(model, batch)
    for call in range(4):  # direct, captured, replayed twice
        error = distance(run(model, step, batch), truth)
        assert error <= 1.15 * eager + 1e-6, f"call {call}: {error:.2e}, eager {eager:.2e}"


@pytest.mark.parametrize("name", ["llama", "bert", "vit"])
def test_twenty_optimizer_steps_stay_with_eager(name: str) -> None:
    model, batch = sample(name)
    reference = copy.deepcopy(model)
    step = compiled(model, batch)
    ours = torch.optim.AdamW(model.parameters(), lr=1e-3)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-3)
    for _ in range(20):
        got, want = run(model, step, batch)[0], run(reference, reference, batch)[0]
        ours.step()
        theirs.step()
        torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_around_the_call(dtype: torch.dtype) -> None:
    model, batch = sample("llama")
    truth = in_double(model, batch)
    with torch.autocast("cuda", dtype):
        eager = distance(run(model, model, batch), truth)
        step = compiled(model, batch)
        for _ in range(3):
            assert distance(run(model, step, batch), truth) <= 1.15 * eager + 1e-6


def test_the_seed_decides_dropout_with_and_without_replay() -> None:
    model, batch = sample("gpt2", dropout=0.3)
    step = compiled(model, batch)

    def seeded(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return run(model, step, batch)

    first = seeded(1)
    for other in (seeded(1), seeded(1), seeded(1)):
        assert all(map(torch.equal, first, other))
    assert not torch.equal(first[0], seeded(2)[0])
    torch.manual_seed(1)
    drawn = [run(model, step, batch)[0] for _ in range(3)]
    assert len({float(loss) for loss in drawn}) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_deterministic_gives_the_same_bits(dtype: torch.dtype) -> None:
    model, batch = sample("llama", dtype)
    step = compiled(model, batch, deterministic=True)
    first = run(model, step, batch)
    for _ in range(4):
        assert all(map(torch.equal, first, run(model, step, batch)))


def test_a_wrong_index_is_reported_and_the_step_stays_usable() -> None:
    model, batch = sample("llama")
    step = compiled(model, batch)
    good = float(step(**batch).loss)
    ids = batch["input_ids"].clone()
    ids[0, 3] = 96
    wrong = dict(batch, input_ids=ids)
    with pytest.raises(rg.errors.ContractError, match="index 96 is out of range"):
        step(**wrong)
        step.synchronize()
    assert float(step(**batch).loss) == good
