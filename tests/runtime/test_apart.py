"""Steps whose buffers lie outside the arena wherever that lowers the peak, run on a CPU."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rudagraph as rg
from rudagraph import target
from rudagraph.measure import peak_bytes
from rudagraph.schedule.plan import BufferKind

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    monkeypatch.setattr(target, "CPU", replace(target.CPU, apart_bytes=1 << 10))
    yield


class Classifier(nn.Module):
    """Logits that backward overwrites with their gradient, and weights that are larger."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, 500, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(x)), y)


def made() -> tuple[nn.Module, rg.runtime.step.Step, tuple[Tensor, Tensor]]:
    model = Classifier()
    batch = (torch.randn(48, 64), torch.randint(500, (48,)))
    step = rg.StaticGraph(model).compile(*batch)
    apart = [b for b in step.plan.buffers if b.kind is BufferKind.APART]
    assert apart, "the sizes of this model were chosen so that something moves out"
    return model, step, batch


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_values_are_eagers_and_memory_is_as_planned() -> None:
    model, step, batch = made()
    other = copy.deepcopy(model)
    gc.collect()
    measured = peak_bytes(lambda: step(*batch).backward())
    assert step.memory.peak_bytes >= measured >= 0.95 * step.memory.peak_bytes
    for _ in range(3):
        model.zero_grad()
        other.zero_grad()
        loss, want = step(*batch), other(*batch)
        loss.backward()
        want.backward()
        torch.testing.assert_close(loss, want)
        torch.testing.assert_close(gradients(model), gradients(other))


def test_a_retained_graph_finds_what_the_first_backward_has_overwritten() -> None:
    model, step, batch = made()
    assert step._signatures[0].executor.wiring.overwritten
    loss = step(*batch)
    loss.backward(retain_graph=True)
    once = gradients(model)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(gradients(model), [3 * gradient for gradient in once])


def test_nothing_stays_after_a_step_or_an_evaluation() -> None:
    model, step, batch = made()
    (signature,) = step._signatures

    def held() -> list[int]:
        (frame,) = signature.executor._frames.values()
        table = frame.table
        buffers = [i for i, b in enumerate(step.plan.buffers) if b.kind is BufferKind.APART]
        return [slot for slot in table.slots_of(buffers) if frame.tensors[slot] is not None]

    loss = step(*batch)
    assert held()
    loss.backward()
    assert not held()
    with torch.no_grad():
        step(*batch)
    assert not held()
    model.zero_grad()
