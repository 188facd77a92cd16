"""What a step says when a library fails in its midst, or memory runs out.

Input: PyTorch's error. Output: one that names the place in the user's program, or the planned peak,
what the device has left and the way out. Running out of memory stays a `torch.OutOfMemoryError`,
for code that catches that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rudagraph.errors import ContractError, OutOfMemoryError
from rudagraph.runtime.devices import Device
from rudagraph.runtime.entries import BoundEntry
from rudagraph.runtime.explain import size
from rudagraph.schedule.plan import Plan

_ON_A_CPU = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")


class StepOutOfMemoryError(OutOfMemoryError, torch.OutOfMemoryError):
    """Ours and PyTorch's."""


def ran_out(error: Exception) -> bool:
    """Whether an allocator raised it."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _ON_A_CPU)


def raise_if_out_of_memory(error: Exception, plan: Plan, device: Device, entry: str) -> None:
    """Raise the step's own error where that is what happened."""
    if not ran_out(error) or isinstance(error, OutOfMemoryError):
        return
    raise StepOutOfMemoryError(
        f"out of memory on {device.device}: the step needs {size(plan.peak_bytes)} beyond the "
        f"weights ({size(plan.arena_bytes)} of it for as long as the step exists)"
        f"{device.free_text()}",
        f"{entry} of a step",
        f"compile with a memory_budget below {size(plan.peak_bytes)}, use a smaller batch, keep "
        f"fewer outputs (outputs=...), or free what else lies on {device.device}",
    ) from error


def located(entry: BoundEntry, step: Callable[[], object] | None, error: Exception) -> Exception:
    """The library's error with the place in the user's program that it comes from."""
    launch = entry.launch_of(step)
    if launch is None or ran_out(error):
        return error
    where = " ".join(part for part in (launch.location.module, launch.location.line) if part)
    return ContractError(
        f"{launch.opcode} {launch.label} failed: {error}",
        where,
        "check the values of this batch against what the model takes",
    )
