"""PyTorch's modules as steps on a GPU: outputs and gradients against eager there, in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import rudagraph as rg
from tests.capture.test_modules import CASES as MODULES

pytestmark = pytest.mark.cuda

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _doubles() -> Iterator[None]:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Convolutions(nn.Module):
    """Convolution, normalisation of a batch, pooling, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=2),
            nn.BatchNorm2d(8),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 5),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)


CASES = {**MODULES, "convolutions": lambda: (Convolutions(), (torch.randn(4, 3, 16, 16),))}


def moved(tensor: Tensor) -> Tensor:
    return tensor.detach().cuda().requires_grad_(tensor.requires_grad)


def run(model: nn.Module, call: Any, args: tuple[Tensor, ...]) -> list[Tensor]:
    """Outputs, gradients of parameters and arguments, and buffers afterwards."""
    model.zero_grad()
    outputs = [t for t in pytree.tree_leaves(call(*args)) if isinstance(t, Tensor)]
    loss = sum(t.sin().sum() for t in outputs if t.requires_grad)
    leaves = [t for t in (*model.parameters(), *args) if t.requires_grad]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True) if leaves else ()
    found = [*outputs, *(g for g in gradients if g is not None), *model.buffers()]
    return [tensor.detach().clone() for tensor in found]


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    model, args = CASES[name]()
    model = model.cuda()
    args = pytree.tree_map_only(Tensor, moved, args)
    other = copy.deepcopy(model)
    step = rg.StaticGraph(model).compile(*args)
    for _ in range(3):
        got, want = run(model, step, args), run(other, other, args)
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)
