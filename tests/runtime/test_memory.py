"""Planned memory against the events of PyTorch's allocator, from the call to backward's end."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from rudagraph.measure import peak_bytes
from rudagraph.static_graph import StaticGraph


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16)), torch.randn(64, 32)


def attention() -> tuple[nn.Module, torch.Tensor]:
    return nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), torch.randn(4, 24, 32)


def lookup() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 8)), torch.randint(0, 50, (8, 20))


@pytest.mark.parametrize("make", [mlp, attention, lookup])
def test_planned_is_at_least_measured_and_hardly_more(make: object) -> None:
    assert callable(make)
    torch.manual_seed(0)
    model, x = make()
    step = StaticGraph(model).compile(x)
    tangent = torch.ones_like(model(x))
    gc.collect()

    def work() -> None:
        step(x).backward(tangent)

    measured = peak_bytes(work)
    planned = step.memory.peak_bytes
    tangents = tangent.numel() * tangent.element_size()  # older than the measurement
    assert planned >= measured + tangents >= 0.95 * planned
    model.zero_grad(set_to_none=True)
    # Later the arena is there already; results and gradients are made anew.
    assert peak_bytes(work) == pytest.approx(measured - step.memory.arena_bytes, abs=1024)


def test_no_grad_keeps_nothing_but_the_result() -> None:
    model, x = mlp()
    step = StaticGraph(model).compile(x)
    with torch.no_grad():
        step(x)
        out: list[torch.Tensor] = []
        measured = peak_bytes(lambda: out.append(step(x)))
    assert measured == out[0].numel() * 4
