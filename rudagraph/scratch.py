"""Memory that a library op takes for itself while it runs, found by running it once.

Input: a launch of the plan. Output: bytes beyond its operands and results. No formula would do:
oneDNN's blocked copies and its scratchpad depend on processor, threads and version. The operands
are zeros of the right layout, never a user's data; equal launches run once a process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.measure import peak_bytes
from rudagraph.runtime.devices import device_of
from rudagraph.runtime.library import maker
from rudagraph.schedule.plan import Launch, View

# Ops that only fill their results.
_NONE = frozenset(("embedding", "pad"))


def cpu_scratch(launch: Launch) -> int:
    """Bytes that an op which allocates its results takes besides them, on a CPU."""
    if launch.opcode in _NONE:
        return 0
    arguments = tuple(
        replace(item, buffer=0) if isinstance(item, View) else item for item in launch.arguments
    )
    results = tuple(replace(view, buffer=0) for view in launch.results)
    same = Launch(launch.opcode, None, arguments, results, launch.attributes)
    if torch._C._autograd._profiler_enabled():
        return _guessed(same)  # profilers do not nest
    return _measured(same, torch.get_num_threads())


@lru_cache(maxsize=4096)
def _measured(launch: Launch, threads: int) -> int:
    owned = sum(view.type.bytes for view in launch.results)
    operands = [_zeros(item) if isinstance(item, View) else item for item in launch.arguments]
    run = maker(launch, device_of("cpu", False))
    with torch.no_grad():
        try:
            peak = peak_bytes(lambda: run(*operands))
        except (RuntimeError, IndexError, ValueError):
            return 0  # zeros are nothing that this op takes
    return max(0, peak - owned)


def _guessed(launch: Launch) -> int:
    """Copies of what it reads and writes, with three channels padded to 16."""
    views = [*launch.results, *(v for v in launch.arguments if isinstance(v, View))]
    return 6 * sum(view.type.bytes for view in views)


def _zeros(view: View) -> Any:
    """Zeros laid out as the operand will be."""
    shape, strides = view.type.shape, view.strides
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    size = view.offset + reach + 1 if view.type.numel else 0
    whole = torch.zeros(size, dtype=to_torch_dtype(view.type.dtype))
    return whole.as_strided(shape, strides, view.offset)
