"""A memory budget: met or refused, monotone, and without any effect on the bits of a step."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import rudagraph as rg
import rudagraph.budget
from rudagraph.errors import MemoryBudgetError
from rudagraph.runtime.step import Step
from tests.models import Sample, build_model

FRACTIONS = (1.0, 0.9, 0.8, 0.7, 0.6)


class Tower(nn.Module):
    """Layers of norm, two products, activation and dropout: much to save, all of it repeatable."""

    def __init__(self, layers: int = 6, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Dropout(0.2),
                nn.Linear(4 * width, width),
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


class Residuals(nn.Module):
    """Convolutions beside residuals: what blocks hand on is the least that crosses anywhere."""

    def __init__(self, blocks: int = 6, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.GroupNorm(2, width),
                nn.GELU(),
                nn.Dropout(0.1),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
            )
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.nn.functional.gelu(x + block(x))
        return x.square().mean()


@functools.cache
def tower() -> tuple[Tower, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(4)
    return Tower().train(), torch.randn(256, 32, generator=generator)


@functools.cache
def budgeted(fraction: float) -> Step:
    model, x = tower()
    if fraction == 1.0:
        return rg.StaticGraph(model).compile(x)
    budget = int(fraction * budgeted(1.0).plan.peak_bytes)
    return rg.StaticGraph(model, memory_budget=budget).compile(x)


def outcome(model: nn.Module, run: object) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(11)
    loss = run()  # type: ignore[operator]
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


def test_budgets_are_met_and_monotone() -> None:
    peaks = [budgeted(fraction).plan.peak_bytes for fraction in FRACTIONS]
    for fraction, peak in zip(FRACTIONS, peaks, strict=True):
        assert peak <= fraction * peaks[0]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.parametrize("fraction", FRACTIONS[1:])
def test_bits_do_not_change_with_the_budget(fraction: float) -> None:
    model, x = tower()
    want = outcome(model, lambda: budgeted(1.0)(x))
    got = outcome(model, lambda: budgeted(fraction)(x))
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs)


def test_less_memory_means_more_work_in_backward() -> None:
    loose, tight = budgeted(1.0).plan.backward, budgeted(0.6).plan.backward
    assert loose is not None
    assert tight is not None
    products = [
        sum(launch.opcode in ("matmul", "addmm") for launch in entry.launches)
        for entry in (loose, tight)
    ]
    assert products[1] > products[0]


def test_a_budget_that_cannot_be_met_names_the_smallest_that_can() -> None:
    model, x = tower()
    with pytest.raises(MemoryBudgetError, match="needs at least") as refusal:
        rg.StaticGraph(model, memory_budget=1024).compile(x)
    smallest = int(str(refusal.value).split("at least ")[1].split()[0])
    step = rg.StaticGraph(model, memory_budget=smallest).compile(x)
    assert step.plan.peak_bytes <= smallest
    with pytest.raises(MemoryBudgetError):
        rg.StaticGraph(model, memory_budget=smallest - 1).compile(x)


def test_a_transformer_with_dropout_keeps_its_bits() -> None:
    sample: Sample = build_model("llama", torch.float32, 0.1)
    free = rg.StaticGraph(sample.model, outputs="loss").compile(**sample.batch)
    budget = int(0.9 * free.plan.peak_bytes)
    tight = rg.StaticGraph(sample.model, outputs="loss", memory_budget=budget).compile(
        **sample.batch
    )
    assert tight.plan.peak_bytes <= budget
    want = outcome(sample.model, lambda: free(**sample.batch).loss)
    got = outcome(sample.model, lambda: tight(**sample.batch).loss)
    for mine, theirs in zip(got, want, strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs)


def smallest_budget(model: nn.Module, x: torch.Tensor) -> int:
    with pytest.raises(MemoryBudgetError) as refusal:
        rg.StaticGraph(model, memory_budget=1).compile(x)
    return int(str(refusal.value).split("at least ")[1].split()[0])


def test_segments_meet_what_single_values_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """What blocks hand on, and one block at work: below anything that single evictions reach."""
    torch.manual_seed(5)
    model, x = Residuals().train(), torch.randn(4, 8, 32, 32)
    free = rg.StaticGraph(model).compile(x)
    smallest = smallest_budget(model, x)
    with monkeypatch.context() as without_segments:
        without_segments.setattr(rudagraph.budget, "checkpoints", lambda view, saved: [])
        alone = smallest_budget(model, x)
    tight = rg.StaticGraph(model, memory_budget=smallest).compile(x)
    assert smallest < 0.97 * alone < alone < free.plan.peak_bytes
    for mine, theirs in zip(
        outcome(model, lambda: tight(x)), outcome(model, lambda: free(x)), strict=True
    ):
        assert torch.equal(mine, theirs)
