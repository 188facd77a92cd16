"""Machine code of a program to launchers, whatever it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rudagraph.runtime import cpu_kernels, cuda_kernels
from rudagraph.schedule.program import Program


def load_kernels(program: Program) -> Mapping[str, Any]:
    """The program's kernels, verified, loaded and ready to launch, by name."""
    device = torch.device(program.contract.device)
    launchers: list[Any] = []
    if device.type == "cuda":
        launchers += cuda_kernels.load_all(program.kernels, device.index or 0)
    else:
        launchers += cpu_kernels.load_all(program.kernels)
    return {code.name: launch for code, launch in zip(program.kernels, launchers, strict=True)}
