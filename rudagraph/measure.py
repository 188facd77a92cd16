"""Peak memory of a piece of work, counted the way a plan counts it.

Input: a function without arguments. Output: the most bytes that were allocated at one moment
beyond what existed before it ran. On a CPU these are the events of torch's own allocator, on
CUDA the allocator's statistics; memory that libraries take from the system is in neither.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Most bytes alive at once while `work` runs, beyond those alive before.

    A step that keeps its buffers between calls has to be measured on its first call.
    """
    if torch.device(device).type == "cuda":
        return _cuda_peak(work, torch.device(device))
    with _quiet_stderr():
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            work()
        roots = profiler.profiler.kineto_results.experimental_event_tree()
    alive: dict[int, int] = {}  # bytes by address; what is not in it is from before
    total = peak = 0
    for event in sorted(_allocations(roots), key=lambda event: event.start_time_ns):
        address, size = event.extra_fields.ptr, event.extra_fields.alloc_size
        if size > 0:
            alive[address] = size
            total += size
            peak = max(peak, total)
        else:
            total -= alive.pop(address, 0)
    return peak


def _allocations(roots: list[Any]) -> Iterator[Any]:
    """What torch's allocator handed out, and took back with a negative size."""
    stack = list(roots)
    while stack:
        event = stack.pop()
        stack += event.children
        if event.tag.name == "Allocation":
            yield event


def _cuda_peak(work: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The profiler's native code writes notices to file descriptor 2; Python errors still raise."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
