"""Why values are saved or computed again, as explain() says it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

import rudagraph as rg
from rudagraph.runtime.step import Step


class Block(nn.Module):
    """A norm, a gated branch and dropout, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + torch.nn.functional.dropout(self.down(hidden), 0.1)


@functools.cache
def compiled(budget: int | None = None) -> Step:
    torch.manual_seed(0)
    return rg.StaticGraph(Block(), memory_budget=budget).compile(torch.ones(512, 64))


def tight() -> int:
    return int(0.8 * compiled().plan.peak_bytes)


def said(step: Step) -> str:
    """What explain() says of values that are saved or computed again."""
    lines = step.explain().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("saved for backward"))
    end = next(i for i, line in enumerate(lines) if line.startswith("memory beyond"))
    return "\n".join(lines[start:end]) + "\n"


def test_without_a_budget_prices_decide(golden: Callable[[str, str], None]) -> None:
    golden(said(compiled()), "decided_by_prices.txt")


def test_a_budget_says_what_it_has_no_room_for(golden: Callable[[str, str], None]) -> None:
    golden(said(compiled(tight())), "decided_by_a_budget.txt")


def test_places_are_the_users_lines() -> None:
    lines = [line for line in compiled().explain().splitlines() if "not computed twice" in line]
    assert lines
    for line in lines:
        assert "tests/passes/test_decisions.py:3" in line
        assert "# layers." in line


def test_every_residual_has_a_decision() -> None:
    for step in (compiled(), compiled(tight())):
        decisions = step.program.decisions
        residuals = {decision.name for decision in decisions if decision.is_saved}
        text = step.ir("backward", "partition")
        asked = {
            line.split(":")[0].strip().lstrip("%")
            for line in text.splitlines()
            if "input residual" in line
        }
        assert residuals == asked
        again = {decision.name for decision in decisions if not decision.is_saved}
        assert not again & residuals
