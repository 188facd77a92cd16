"""Out of memory in any entry names the plan and the way out, and the step stays usable."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rudagraph.errors import OutOfMemoryError
from rudagraph.runtime.faults import ran_out
from rudagraph.runtime.step import Step
from tests.runtime.support import gradients, plain_step

ON_A_CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate")


def made() -> tuple[nn.Module, torch.Tensor, Step]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(3, 8)
    return model, x, plain_step(model, x)


def failing(error: Exception) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), ON_A_CPU])
def test_forward_without_room_for_its_arena(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, step = made()
    device = step._signatures[0].executor.device
    with monkeypatch.context() as patch:
        patch.setattr(device, "empty", failing(error))
        with pytest.raises(torch.OutOfMemoryError, match=r"out of memory on cpu") as caught:
            step(x)
    assert isinstance(caught.value, OutOfMemoryError)
    assert f"needs {step.memory.peak_bytes / 2**10:.1f} KiB beyond the weights" in str(caught.value)
    assert "forward of a step" in str(caught.value) and "memory_budget" in str(caught.value)
    assert caught.value.__cause__ is error
    torch.testing.assert_close(step(x), model(x))


def test_an_op_of_backward_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, step = made()
    step(x).sum().backward()
    (frame,) = step._signatures[0].executor._frames.values()
    loss = step(x).sum()
    steps = list(frame.backward.steps)
    frame.backward.steps[1] = failing(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(OutOfMemoryError, match="backward of a step"):
        loss.backward()
    frame.backward.steps[:] = steps
    want = gradients(model, lambda: model(x).sum())
    torch.testing.assert_close(gradients(model, lambda: step(x).sum()), want)


@pytest.mark.parametrize("entry", ["forward", "backward"])
def test_a_step_that_fails_midway_holds_nothing_of_the_call(entry: str) -> None:
    _, x, step = made()
    executor = step._signatures[0].executor
    step(x).sum().backward()
    (frame,) = executor._frames.values()
    getattr(frame, entry).steps[-1] = failing(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(OutOfMemoryError, match=f"{entry} of a step"):
        step(x).sum().backward()
    assert [slot for slot in executor.wiring.dynamic_slots if frame.tensors[slot] is not None] == []


def test_other_errors_are_not_about_memory() -> None:
    assert not ran_out(ValueError("DefaultCPUAllocator"))
    assert not ran_out(RuntimeError("shapes do not fit"))
