"""Sums of a few long rows are as exact as eager's, or nearly: a lane adds no more than a part's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import rudagraph as rg

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "variance": lambda x: x.var(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "amax": lambda x: x.amax(-1),
}


class Reduce(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_few_long_rows(name: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 1_200_001)
    with torch.no_grad():
        got = rg.StaticGraph(Reduce(FUNCTIONS[name])).compile(x)(x).double()
    exact = FUNCTIONS[name](x.double())
    error = ((got - exact).abs() / exact.abs()).max().item()
    assert error <= (0.0 if name == "amax" else 1.5e-7)  # 1e-6 and more where lanes add it all


def test_norms_of_long_rows_and_their_gradients() -> None:
    torch.manual_seed(0)
    model, x = nn.LayerNorm(300_007), torch.randn(3, 300_007, requires_grad=True)
    step = rg.StaticGraph(model).compile(x)
    tangent = torch.randn(3, 300_007)
    step(x).backward(tangent)
    wide, y = nn.LayerNorm(300_007).double(), x.detach().double().requires_grad_()
    wide(y).backward(tangent.double())
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-5, atol=1e-6)
