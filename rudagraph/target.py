"""Targets: where a step runs, and with that the code generator and the builder it takes.

Input: the devices of the model's tensors and of the batch. Output: one Target. A step runs on one
device; tensors on several are an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from rudagraph.build.pool import KernelBuild, Progress
from rudagraph.capture import Capture
from rudagraph.codegen import cpu, cuda
from rudagraph.errors import UnsupportedError
from rudagraph.passes.accumulate import accumulate
from rudagraph.passes.linear_cross_entropy import GPU_CHUNKING
from rudagraph.passes.pipeline import JOINT_PASSES, Pass, joint_passes
from rudagraph.passes.wide_products import wide_products
from rudagraph.runtime.choices import ACCUMULATE
from rudagraph.schedule.lowered import Generate
from rudagraph.schedule.plan import Launch
from rudagraph.scratch import cpu_scratch


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of device with its kernel generator and its builder."""

    name: str
    generate: Generate
    joint_passes: tuple[Pass, ...]
    build: Callable[[Progress], KernelBuild]
    # Buffers from this size on may be allocated for their lifetime alone. Never on a CPU: the
    # system hands fresh memory out page by page, as slowly as a kernel writes it.
    apart_bytes: int | None = None
    # What a library op takes for itself; on a GPU these are the pool's and the workspaces'.
    scratch: Callable[[Launch], int] = lambda _: 0


CPU = Target("cpu", cpu.generate, JOINT_PASSES, KernelBuild, scratch=cpu_scratch)


# The caching allocator takes 2 us for a block, and a replayed graph nothing; smaller ones add up to
# little.
_GPU_APART = 32 << 20


def cuda_target(major: int, minor: int) -> Target:
    """NVIDIA GPUs of that compute capability."""
    passes = (*joint_passes(GPU_CHUNKING), wide_products)
    if not ACCUMULATE:
        passes = tuple(run for run in passes if run is not accumulate)
    generate = cuda.generator(f"sm_{major}{minor}")
    return Target("cuda", generate, passes, KernelBuild, apart_bytes=_GPU_APART)


def target_of(model: nn.Module, captured: Capture) -> Target:
    """The target of the one device that model and batch lie on."""
    places: dict[torch.device, str] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        places.setdefault(tensor.device, name)
    for path, leaf in zip(captured.call.paths, captured.call.leaves, strict=True):
        places.setdefault(leaf.device, path)
    if len(places) > 1:
        listing = ", ".join(f"{name} on {device}" for device, name in places.items())
        raise UnsupportedError(
            "the step's tensors lie on several devices",
            where=listing,
            hint="move the model and the batch to one device before compile()",
        )
    device = next(iter(places), torch.device("cpu"))
    if device.type == "cuda":
        return cuda_target(*torch.cuda.get_device_capability(device))
    if device.type != "cpu":
        raise UnsupportedError(
            f"there is no target for device {device}",
            where=places[device],
            hint="targets are: cpu, cuda",
        )
    return CPU
