"""Results of a benchmark as a table on the terminal and as one JSON document.

Input: `Result` records. Output: text. Fields that do not apply are left out of the JSON.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_PACKAGES = "rudagraph torch numba numba-cuda llvmlite transformers liger-kernel".split()


@dataclass
class Result:
    """What was measured of one variant of one case."""

    case: str
    variant: str
    median_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    calls: int | None = None
    target_ms: float | None = None
    # Share of the bandwidth of a large copy that a kernel reaches, and the share that is asked for.
    percent_of_copy: float | None = None
    target_percent: float | None = None
    peak_bytes: int | None = None
    first_step_s: float | None = None
    # Seconds of the compile() call alone, and the most that is asked for.
    compile_s: float | None = None
    # Processor time of that call in the compiling process: what a busy machine changes least.
    compile_cpu_s: float | None = None
    target_s: float | None = None
    # Time and peak over those of another variant, and the largest ratios that are asked for.
    ratios: dict[str, float] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)
    peak_ratios: dict[str, float] = field(default_factory=dict)
    peak_targets: dict[str, float] = field(default_factory=dict)
    error: str = ""

    def times(self, seconds: Sequence[float]) -> None:
        """Take the median and the range of the timed calls."""
        self.median_ms = 1e3 * statistics.median(seconds)
        self.min_ms = 1e3 * min(seconds)
        self.max_ms = 1e3 * max(seconds)
        self.calls = len(seconds)

    def as_dict(self) -> dict[str, Any]:
        fields = {name: _rounded(value) for name, value in vars(self).items()}
        return {name: value for name, value in fields.items() if value not in (None, "", {})}


def print_table(title: str, results: Sequence[Result]) -> None:
    """One row a variant, ratios beside their targets; what went wrong is told under the table."""
    table = Table(title=title, title_justify="left")
    for heading in ("case", "variant"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median ms", "min", "max", "peak MiB", "first step s"):
        table.add_column(heading, justify="right")
    for heading in ("time / other (at most)", "peak / other (at most)"):
        table.add_column(heading)
    shares = any(result.percent_of_copy is not None for result in results)
    if shares:
        table.add_column("% of copy (at least)")
    previous = ""
    for result in results:
        table.add_row(
            "" if result.case == previous else result.case,
            result.variant,
            *(_number(v) for v in (result.median_ms, result.min_ms, result.max_ms)),
            f"{result.peak_bytes / 2**20:.1f}" if result.peak_bytes is not None else "",
            _number(result.first_step_s),
            _ratios(result.ratios, result.targets),
            _ratios(result.peak_ratios, result.peak_targets),
            *((_share(result),) if shares else ()),
        )
        previous = result.case
    console = Console(width=None if Console().is_terminal else 140)
    console.print(table)
    for result in results:
        if result.error:
            console.print(f"[red]{result.case}, {result.variant}: {escape(result.error)}[/red]")


def _share(result: Result) -> str:
    if result.percent_of_copy is None:
        return ""
    asked = f" ({result.target_percent:.0f})" if result.target_percent is not None else ""
    return f"{result.percent_of_copy:.1f}{asked}"


def write_json(
    path: str | Path, benchmark: str, results: Sequence[Result], device: str = ""
) -> None:
    """The document that all benchmarks share."""
    document = {
        "benchmark": benchmark,
        "date": date.today().isoformat(),
        "device": device or device_name(),
        "threads": torch.get_num_threads(),
        "versions": _versions(),
        "results": [result.as_dict() for result in results],
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(document, indent=1) + "\n")


def device_name() -> str:
    """The CPU's name as Linux spells it."""
    cpu = Path("/proc/cpuinfo")
    for line in cpu.read_text().splitlines() if cpu.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in (
        "rudagraph",
        "torch",
        "numba",
        "numba-cuda",
        "llvmlite",
        "transformers",
        "liger-kernel",
    ):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _ratios(ratios: dict[str, float], targets: dict[str, float]) -> str:
    texts = []
    for other, ratio in ratios.items():
        text = f"{other} {ratio:.2f}"
        if other in targets:
            colour = "green" if ratio <= targets[other] else "red"
            text = f"{other} [{colour}]{ratio:.2f}[/{colour}] ({targets[other]:.2f})"
        texts.append(text)
    return ", ".join(texts)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
