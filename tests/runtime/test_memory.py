"""Planned memory against the events of PyTorch's allocator, from the call to backward's end."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from rudagraph.measure import peak_bytes
from rudagraph.runtime.step import Step
from rudagraph.schedule.plan import BufferKind
from rudagraph.static_graph import StaticGraph


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16)), torch.randn(64, 32)


def attention() -> tuple[nn.Module, torch.Tensor]:
    return nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), torch.randn(4, 24, 32)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        return nn.functional.scaled_dot_product_attention(x, x * 2, x, is_causal=True)


def lookup() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 8)), torch.randint(0, 50, (8, 20))


def long_attention() -> tuple[nn.Module, torch.Tensor]:
    return Attention(), torch.randn(1, 8, 256, 32)


def images() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Conv2d(32, 40, 3)), torch.randn(16, 1, 8, 8)


def strided() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(3, 16, 5, stride=2), nn.GELU(), nn.Conv2d(16, 20, 3, groups=2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1)), torch.randn(8, 3, 32, 32)


def sound() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv1d(8, 16, 3), nn.ReLU(), nn.ConvTranspose1d(16, 4, 4, stride=2)]
    return nn.Sequential(*layers), torch.randn(8, 8, 64)


MODELS = [mlp, attention, long_attention, lookup, images, strided, sound]


@pytest.mark.parametrize("make", MODELS)
def test_planned_is_at_least_measured_and_hardly_more(make: object) -> None:
    assert callable(make)
    torch.manual_seed(0)
    model, x = make()
    step = StaticGraph(model).compile(x)
    # Row-major, as the results are: eager's may lie otherwise, and would be copied first.
    tangent = torch.ones(model(x).shape)
    gc.collect()

    def work() -> None:
        step(x).backward(tangent)

    measured = peak_bytes(work)
    planned = step.memory.peak_bytes
    # Older than the measurement; where a library op of forward takes most, none is there yet.
    tangents = tangent.numel() * tangent.element_size()
    assert planned >= measured and measured + tangents >= 0.95 * planned
    model.zero_grad(set_to_none=True)
    # Later the arena is there already; results and gradients are made anew.
    assert peak_bytes(work) == pytest.approx(measured - step.memory.arena_bytes, abs=1024)


def test_a_library_ops_own_memory_is_a_row_of_the_plan() -> None:
    model, x = images()
    plan = StaticGraph(model).compile(x).plan
    rows = {buffer.name: buffer for buffer in plan.buffers if buffer.name.endswith(".scratch")}
    assert "0.scratch" in rows and "grad.3.scratch" in rows
    for buffer in rows.values():
        assert buffer.kind is BufferKind.LIBRARY and buffer.first == buffer.last
        assert buffer.bytes > 0


def test_a_plan_made_inside_a_profile_is_no_smaller() -> None:
    """Profilers do not nest: what a library op takes is guessed there, and not remembered."""
    model, x = nn.Conv2d(3, 7, 3, padding=1), torch.randn(2, 3, 9, 9)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        inside = StaticGraph(model).compile(x).memory.peak_bytes
    assert inside >= StaticGraph(model).compile(x).memory.peak_bytes


def test_no_grad_keeps_nothing_but_the_result() -> None:
    model, x = mlp()
    step = StaticGraph(model).compile(x)
    with torch.no_grad():
        step(x)
        out: list[torch.Tensor] = []
        measured = peak_bytes(lambda: out.append(step(x)))
    assert measured == out[0].numel() * 4


def test_memory_of_an_evaluation_beside_a_waiting_forward_is_given_back() -> None:
    model, x = mlp()
    step = StaticGraph(model).compile(x)
    out = step(x)
    with torch.no_grad():
        step(x)
    slots = step._slots
    assert slots.spare_uses == 1 and slots.spare.arena.numel() == 0
    storages = {tensor.untyped_storage().data_ptr() for tensor in _arena_views(step)}
    assert storages == {slots.slots[0].arena.data_ptr()}
    out.sum().backward()


def test_an_arena_that_was_too_small_is_freed() -> None:
    model, x = mlp()
    step = StaticGraph(model).compile(x).add(torch.randn(256, 32))
    step(x).sum().backward()
    step(torch.randn(256, 32)).sum().backward()
    storages = {tensor.untyped_storage().data_ptr() for tensor in _arena_views(step)}
    assert storages == {step._slots.slots[0].arena.data_ptr()}
    step(x).sum().backward()


def _arena_views(step: Step) -> list[torch.Tensor]:
    """Tensors that the frames of all signatures hold over some arena."""
    return [
        frame.tensors[slot]
        for frame in step._slots.frames
        for index, buffer in enumerate(frame.table.plan.buffers)
        if buffer.kind is BufferKind.ARENA
        for slot in frame.table.slots_of([index])
        if frame.tensors[slot] is not None
    ]
