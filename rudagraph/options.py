"""What a caller can choose, and the one table of RUDAGRAPH_* environment variables.

Input: keywords of `StaticGraph(model, **options)`. Output: a frozen, checked `CompileOptions`.
Invariant: options decide results, environment variables only diagnostics and places on disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from rudagraph.errors import UsageError, suggest

Outputs = str | tuple[str, ...] | Callable[[Any], Any] | None

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)}


@dataclass(frozen=True)
class CompileOptions:
    """How a step is compiled; every field is an option of `StaticGraph`."""

    # What is kept of the model's output: a path ("loss"), several, a function of the output,
    # or None for all of it. What is dropped need not exist in memory.
    outputs: Outputs = None
    # Captured on top of the model as `loss(output, *targets)`; the step then returns its value.
    loss: Callable[..., Any] | None = None
    # Planned peak beyond the weights, gradients included: bytes or a text such as "600MiB".
    memory_budget: int | str | None = None
    # "exact" rounds at every captured op as eager does; "relaxed" may keep FP32 and contract.
    numerics: Literal["exact", "relaxed"] = "exact"
    # How many forwards may wait for their backward at the same time.
    in_flight: int = 1
    # Choose library variants that give the same bits on every run.
    deterministic: bool = False
    # "autograd" lets autograd add into .grad, so hooks see gradients; "kernel" adds in kernels.
    accumulate: Literal["autograd", "kernel"] = "autograd"

    def __post_init__(self) -> None:
        if isinstance(self.outputs, list):
            object.__setattr__(self, "outputs", tuple(self.outputs))
        self._check_outputs()
        if self.loss is not None and not callable(self.loss):
            raise UsageError(f"option loss must be a function, got {self.loss!r}")
        _check_choice("numerics", self.numerics, ("exact", "relaxed"))
        _check_choice("accumulate", self.accumulate, ("autograd", "kernel"))
        if type(self.deterministic) is not bool:
            raise UsageError(f"option deterministic must be a bool, got {self.deterministic!r}")
        if type(self.in_flight) is not int or self.in_flight < 1:
            raise UsageError(
                f"option in_flight must be a whole number of at least 1, got {self.in_flight!r}"
            )
        if self.memory_budget is not None:
            object.__setattr__(self, "memory_budget", parse_bytes(self.memory_budget))

    @classmethod
    def from_keywords(cls, **keywords: Any) -> CompileOptions:
        """Options from keywords; an unknown one is an error that lists the valid ones."""
        valid = [field.name for field in fields(cls)]
        for name in keywords:
            if name not in valid:
                raise UsageError(f"unknown option {name!r}", hint=suggest(name, valid))
        return cls(**keywords)

    @property
    def budget_bytes(self) -> int | None:
        """The memory budget in bytes, or None when there is no limit."""
        budget = self.memory_budget
        assert budget is None or isinstance(budget, int)
        return budget

    def _check_outputs(self) -> None:
        outputs = self.outputs
        if outputs is None or isinstance(outputs, str) or callable(outputs):
            return
        if isinstance(outputs, tuple) and outputs and all(isinstance(p, str) for p in outputs):
            return
        raise UsageError(
            f"option outputs cannot be {outputs!r}",
            hint='give a path such as "loss", several, a function of the output, or None for all',
        )


def parse_bytes(size: int | str) -> int:
    """Bytes of a size given as a whole number or as a text such as '600MiB' or '1.5 GB'."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        if isinstance(size, str)
        else None
    )
    if match and match[2] in _UNITS and (count := int(float(match[1]) * _UNITS[match[2]])) > 0:
        return count
    raise UsageError(
        f"{size!r} is not a size in bytes",
        hint='give a positive number of bytes or a text such as "600MiB" or "1.5GB"',
    )


@dataclass(frozen=True)
class EnvironmentVariable:
    """One RUDAGRAPH_* variable: its name, the default when unset, and what it does."""

    name: str
    default: str
    meaning: str


ENVIRONMENT = (
    EnvironmentVariable(
        "RUDAGRAPH_DUMP", "", "Directory that receives every stage of a compilation as text."
    ),
    EnvironmentVariable(
        "RUDAGRAPH_CACHE",
        "~/.cache/rudagraph",
        "Directory of compiled kernels; `off` compiles anew every time.",
    ),
    EnvironmentVariable(
        "RUDAGRAPH_JOBS", "", "Processes that compile kernels; unset means one per usable core."
    ),
    EnvironmentVariable(
        "RUDAGRAPH_PROGRESS",
        "1",
        "`0` shows no progress when a compilation on a terminal takes more than a second.",
    ),
    EnvironmentVariable(
        "RUDAGRAPH_VERIFY",
        "last",
        "`each` verifies a graph after every pass, not only after the last of several.",
    ),
)


def environment(name: str) -> str:
    """Value of a RUDAGRAPH_* variable, or its default; the table above is the only reader."""
    for variable in ENVIRONMENT:
        if variable.name == name:
            return os.environ.get(name, variable.default)
    raise KeyError(f"{name} is not in the table of environment variables in rudagraph/options.py")


def _check_choice(name: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise UsageError(f"option {name} cannot be {value!r}", hint=suggest(str(value), valid))
