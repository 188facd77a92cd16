"""Times variants of one training step side by side.

Input: cases (a seeded module with its batch) and variants (ways to run it). Output: a table and
one JSON document. Every variant is checked against float64 before anything is timed: it may be off
by as much as eager is. The timed calls of all variants alternate in one process, so that they share
the machine's moods.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.report import Result, print_table, write_json
from rudagraph.measure import peak_bytes


@dataclass(frozen=True)
class Workload:
    """A module in train mode and one batch, called as `module(*args, **kwargs)`."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One piece of work; `build` is seeded, so every variant starts from the same numbers.

    A case with dropout names another one in `check`: its values are compared instead.
    """

    name: str
    build: Callable[[], Workload]
    options: dict[str, Any] = field(default_factory=dict)
    check: Case | None = None
    # Error allowed on top of eager's own, as a part of the tensor's largest value.
    slack: float = 1e-4
    # variant -> largest time, or peak, of rudagraph over that of the variant
    targets: dict[str, float] = field(default_factory=dict)
    peak_targets: dict[str, float] = field(default_factory=dict)


class Step:
    """A prepared forward and backward of one variant on its own copy of the module."""

    def __init__(self, case: Case, variant: str, exact: bool = False) -> None:
        work = in_double(case.build()) if exact else case.build()
        self.module, self.args, self.kwargs = work.module, work.args, work.kwargs
        self.call = VARIANTS[variant](work, case.options)
        tensors = [*work.args, *work.kwargs.values(), *work.module.parameters()]
        self.leaves = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
        self.upstream: torch.Tensor | None = None

    def clear(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None

    def run(self) -> torch.Tensor:
        output = self.call(*self.args, **self.kwargs)
        output = getattr(output, "loss", output)
        if self.upstream is None:
            self.upstream = _upstream(output)
        output.backward(self.upstream)
        return output.detach()

    def values(self) -> list[torch.Tensor]:
        """Output and all gradients of one step, in double precision."""
        self.clear()
        output = self.run()
        missing = [i for i, leaf in enumerate(self.leaves) if leaf.grad is None]
        assert not missing, f"no gradient for leaves {missing}"
        return [t.double() for t in (output, *(leaf.grad for leaf in self.leaves))]


def _upstream(output: torch.Tensor) -> torch.Tensor:
    """1 for a scalar, else normal numbers that every float type holds, whichever the output has."""
    if not output.dim():
        return torch.ones_like(output)
    generator = torch.Generator(output.device).manual_seed(9)
    wide = torch.randn(output.shape, generator=generator, dtype=torch.float64, device=output.device)
    return wide.bfloat16().to(output.dtype)


def in_double(work: Workload) -> Workload:
    """The same numbers in float64, to compare with."""

    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    kwargs = {name: convert(value) for name, value in work.kwargs.items()}
    return Workload(work.module.double(), tuple(map(convert, work.args)), kwargs)


Builder = Callable[[Workload, dict[str, Any]], Callable[..., Any]]


def _eager(work: Workload, options: dict[str, Any]) -> Callable[..., Any]:
    return work.module


def _torch_compile(work: Workload, options: dict[str, Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(work.module, dynamic=False)


def _rudagraph(work: Workload, options: dict[str, Any]) -> Callable[..., Any]:
    from rudagraph import StaticGraph

    return StaticGraph(work.module, **options).compile(*work.args, **work.kwargs)


VARIANTS: dict[str, Builder] = {
    "eager": _eager,
    "torch.compile": _torch_compile,
    "rudagraph": _rudagraph,
}


def benchmark(
    name: str,
    cases: Sequence[Case],
    argv: Sequence[str] | None = None,
    means: dict[str, float] | None = None,
) -> int:
    """Measure the cases, print the table, write the JSON; 1 if a variant of ours went wrong.

    `means` asks for geometric means of the ratios over all cases: variant -> largest mean.
    """
    options = _parse(name, cases, argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    clock = time.thread_time if options.thread_time else time.perf_counter
    results: list[Result] = []
    for case in cases:
        if options.case and case.name not in options.case:
            continue
        results += measure(case, options.variant, options.repeats, options.seconds, clock)
        print(f"measured {case.name}", flush=True)
    if means:
        results.append(geometric_means(results, means))
    print_table(name, results)
    if options.json:
        unit = " (processor time of one thread)" if options.thread_time else ""
        write_json(options.json, name + unit, results)
    failed = any(r.error for r in results if r.variant == "rudagraph")
    return 1 if failed else 0


def measure(
    case: Case,
    variants: Sequence[str],
    repeats: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Result]:
    """Results of all variants of a case; one that fails or is wrong says so and is not timed."""
    results = {variant: Result(case.name, variant) for variant in variants}
    steps: dict[str, Step] = {}
    checked_case = case.check or case
    exact = Step(checked_case, "eager", exact=True).values()
    allowed = [error + case.slack for error in _errors(Step(checked_case, "eager").values(), exact)]
    for variant, result in results.items():
        try:
            start = time.perf_counter()
            step = Step(case, variant)
            step.run()
            result.first_step_s = time.perf_counter() - start
            checked = Step(case.check, variant) if case.check else step
            result.error = _excess(_errors(checked.values(), exact), allowed)
            result.peak_bytes = _peak(case, variant, step.upstream)
        except Exception as error:
            result.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        if not result.error:
            steps[variant] = step
    for variant, times in interleave(steps, repeats, seconds, clock).items():
        results[variant].times(times)
    _compare(case, results)
    return list(results.values())


def geometric_means(results: Sequence[Result], targets: dict[str, float]) -> Result:
    """One record whose ratios are the geometric means of all cases' ratios."""
    mean = Result("geometric mean", "rudagraph", targets=targets)
    for variant in targets:
        ratios = [r.ratios[variant] for r in results if variant in r.ratios]
        if ratios:
            mean.ratios[variant] = statistics.geometric_mean(ratios)
    return mean


def interleave(
    steps: dict[str, Step],
    repeats: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call; the variants alternate, each round starting with another one."""
    names = list(steps)
    if not names:
        return {}
    for name in names:
        for _ in range(2):
            steps[name].clear()
            steps[name].run()
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    try:
        for turn in range(repeats):
            if turn >= 5 and time.perf_counter() - begin > seconds:
                break
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                step = steps[name]
                step.clear()
                start = clock()
                step.run()
                times[name].append(clock() - start)
    finally:
        gc.enable()
    return times


def _peak(case: Case, variant: str, upstream: torch.Tensor | None) -> int:
    """Peak of a fresh step; torch.compile allocates while it compiles, so its second call."""
    step = Step(case, variant)
    step.upstream = upstream
    if variant == "torch.compile":
        step.run()
        step.clear()
    return peak_bytes(step.run)


def _errors(got: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
    """Largest deviation of each tensor, as a part of its largest value."""
    pairs = zip(got, exact, strict=True)
    return [
        float((ours - true).abs().max() / true.abs().max().clamp_min(1e-12)) for ours, true in pairs
    ]


def _excess(errors: list[float], allowed: list[float]) -> str:
    for index, (error, most) in enumerate(zip(errors, allowed, strict=True)):
        if not error <= most:
            what = "output" if index == 0 else f"gradient {index - 1}"
            return f"{what} is off by {error:.1e} of its largest value, {most:.1e} is allowed"
    return ""


def _compare(case: Case, results: dict[str, Result]) -> None:
    ours = results.get("rudagraph")
    if ours is None or ours.median_ms is None:
        return
    for variant, other in results.items():
        if variant != "rudagraph" and other.median_ms:
            ours.ratios[variant] = ours.median_ms / other.median_ms
        if variant != "rudagraph" and other.peak_bytes and ours.peak_bytes is not None:
            ours.peak_ratios[variant] = ours.peak_bytes / other.peak_bytes
    ours.targets = {v: t for v, t in case.targets.items() if v in ours.ratios}
    ours.peak_targets = {v: t for v, t in case.peak_targets.items() if v in ours.peak_ratios}


def _parse(name: str, cases: Sequence[Case], argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="few repeats, for a first look")
    parser.add_argument("--case", action="append", choices=[c.name for c in cases])
    parser.add_argument("--variant", action="append", choices=list(VARIANTS))
    parser.add_argument("--repeats", type=int, help="calls of each variant at most")
    parser.add_argument("--threads", type=int, help="threads of torch, the same for all")
    parser.add_argument(
        "--thread-time",
        action="store_true",
        help="processor time instead of time that passes, where others use the machine too",
    )
    options = parser.parse_args(argv)
    if options.thread_time and options.threads != 1:
        parser.error("--thread-time counts one thread: add --threads 1")
    options.variant = options.variant or list(VARIANTS)
    options.repeats = options.repeats or (5 if options.quick else 31)
    options.seconds = 5.0 if options.quick else 60.0
    return options
