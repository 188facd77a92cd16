"""Machine code of a program to launchers, whatever it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rudagraph.runtime.cpu_kernels import load_all
from rudagraph.schedule.program import Program


def load_kernels(program: Program) -> Mapping[str, Any]:
    """The program's kernels, verified, loaded and ready to launch, by name."""
    launchers = load_all(program.kernels)
    return {code.name: launch for code, launch in zip(program.kernels, launchers, strict=True)}
