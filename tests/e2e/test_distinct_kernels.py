"""Equal layers share their kernels, whatever each of them draws at random."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rudagraph.build.pool import KernelBuild
from rudagraph.capture import capture
from rudagraph.compiler import compile_capture
from rudagraph.options import CompileOptions
from rudagraph.schedule.kernel import KernelSource, MachineCode
from rudagraph.schedule.program import Program
from rudagraph.target import CPU, cuda_target

TARGETS = {"cpu": CPU, "cuda": cuda_target(9, 0)}


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.dropout(F.gelu(self.up(self.norm(x))), 0.1, self.training)
        return x + F.dropout(self.down(inner), 0.2, self.training)


class Unbuilt(KernelBuild):
    """Kernels stay text."""

    def add(self, sources: Iterable[KernelSource]) -> None:
        pass

    def finish(self, sources: Sequence[KernelSource]) -> list[MachineCode]:
        return []


@functools.cache
def program(layers: int, target: str) -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(16) for _ in range(layers)), nn.Linear(16, 1))
    captured = capture(model, (torch.randn(4, 16),), {})
    unbuilt = replace(TARGETS[target], build=Unbuilt)
    return compile_capture(captured, model, CompileOptions(), unbuilt)


@pytest.mark.parametrize("target", TARGETS)
def test_a_further_layer_adds_no_kernel(target: str) -> None:
    """From four on: the first layer's neighbours, and the last one's, differ from the others."""
    four, five = (program(layers, target) for layers in (4, 5))
    names = {source.name for source in four.sources}
    assert {source.name for source in five.sources} == names
    assert len(five.plan.forward.launches) > len(four.plan.forward.launches)


@pytest.mark.parametrize("target", TARGETS)
def test_each_layer_draws_from_streams_of_its_own(target: str) -> None:
    drawn = [
        argument
        for launch in program(4, target).plan.forward.launches
        if launch.kernel is not None
        for argument in launch.arguments
        if isinstance(argument, int)
    ]
    assert sorted(drawn) == list(range(8))
