"""GELU and its derivative, swept densely: in every region as exact as PyTorch's own."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

REGIONS = (-10, -6, -5, -4, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 5, 6, 10)


def points(kind: str) -> torch.Tensor:
    """Every 4096th of a unit and a million random numbers; in bf16 every number of the range."""
    if kind == "bf16":
        everything = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
        numbers = everything.view(torch.bfloat16)
        return numbers[numbers.abs() < 10]
    generator = torch.Generator().manual_seed(11)
    grid = torch.arange(-10 * 4096, 10 * 4096) / 4096
    return torch.cat([grid, 2 * torch.randn(1_000_000, generator=generator).clamp(-4.9, 4.9)])


def exact(x: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and slope in double precision, without cancellation in the left tail."""
    x = x.double()
    if form == "erf":
        below = 0.5 * torch.special.erfc(-x / math.sqrt(2))
        return x * below, below + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    beta = math.sqrt(2 / math.pi)
    below = torch.sigmoid(2 * beta * (x + 0.044715 * x**3))
    above = torch.sigmoid(-2 * beta * (x + 0.044715 * x**3))
    return x * below, below + x * below * above * 2 * beta * (1 + 3 * 0.044715 * x**2)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("form", ["erf", "tanh"])
def test_gelu_is_as_exact_as_pytorchs_in_every_region(evaluate_all, form: str, kind: str) -> None:
    x = points(kind).requires_grad_()
    eager = torch.nn.functional.gelu(x, approximate={"erf": "none", "tanh": "tanh"}[form])
    eager.backward(torch.ones_like(eager))
    x, slope = x.detach(), x.grad
    stored = x.view(torch.int16).numpy().view(np.uint16) if kind == "bf16" else x.numpy()
    results = [(f"gelu_{form}(x)", kind), (f"gelu_{form}_backward(float32(1.0), x)", kind)]
    ours = [
        torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
        if kind == "bf16"
        else torch.from_numpy(result)
        for result in evaluate_all(results, x=(kind, stored))
    ]
    ulp = 2.0**-7 if kind == "bf16" else 2.0**-23
    for what, true, theirs, result in zip(
        ("gelu", "its slope"), exact(x, form), (eager.detach(), slope), ours, strict=True
    ):
        for low, high in itertools.pairwise(REGIONS):
            inside = (x >= low) & (x < high)
            size = true[inside].abs().clamp_min(1e-30)
            off, allowed = ((values[inside] - true[inside]).abs() for values in (result, theirs))
            where = f"{what} between {low} and {high}"
            assert off.max() <= 1.1 * allowed.max() + ulp * size.max(), where
            if what == "its slope" and (low, high) == (-1, -0.5):
                continue  # around its own zero a relative error says nothing
            assert (off / size).max() <= 1.1 * (allowed / size).max() + ulp, where
