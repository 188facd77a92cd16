"""Step time against memory: ten budgets of ours beside eager, checkpointing and torch.compile's.

`python -m benchmarks.pareto [--json FILE] [--png FILE] [--model llama] [--quick]`: ten budgets from
what the default takes down to the smallest that can be met. Peaks are measured, over weights and
inputs, gradients included; times are of alternating calls in one process. Less budget must not
measure higher, and no bit of loss or gradients may change with it: what breaks that is an error.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks import cpu_step, harness
from benchmarks.harness import Case, Step, Workload, interleave
from benchmarks.report import Result, write_json
from rudagraph import StaticGraph
from rudagraph.errors import MemoryBudgetError
from rudagraph.measure import peak_bytes

BUDGETS = 10
PEER_BUDGETS = (1.0, 0.5, 0.2)
_SEED = 7


# ---- models


def llama(layers: int = 6) -> Workload:
    """The Llama of `cpu_step`."""
    return cpu_step.llama(layers)


def gpt2(layers: int = 6) -> Workload:
    """GPT-2 of the same width, with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=4096,
        n_positions=256,
        n_embd=256,
        n_layer=layers,
        n_head=8,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        loss_type="ForCausalLM",
    )
    tokens = torch.randint(4096, (4, 256))
    return Workload(GPT2LMHeadModel(config), kwargs={"input_ids": tokens, "labels": tokens})


class ConvolutionBlock(nn.Module):
    """Two convolutions with normalisation and dropout beside a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(8, width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(8, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.first_norm(self.first(x)))
        hidden = F.dropout(hidden, 0.1, self.training)
        return F.gelu(x + self.second_norm(self.second(hidden)))


class Convolutions(nn.Module):
    """A small residual network over 32 × 32 images; gives its loss."""

    def __init__(self, blocks: int, width: int = 32) -> None:
        super().__init__()
        self.checkpoints = False
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(ConvolutionBlock(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(images)
        for block in self.blocks:
            if self.checkpoints:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        return F.cross_entropy(self.head(hidden.mean((2, 3))), labels)


def convolutions(blocks: int = 6) -> Workload:
    torch.manual_seed(0)
    batch = (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))
    return Workload(Convolutions(blocks), batch)


MODELS: dict[str, Callable[[int], Workload]] = {
    "llama": llama,
    "gpt2": gpt2,
    "convolutions": convolutions,
}


# ---- variants


def _checkpointing(work: Workload, options: dict[str, Any]) -> Callable[..., Any]:
    """Each layer is computed again in backward, by PyTorch's own means."""
    if isinstance(work.module, Convolutions):
        work.module.checkpoints = True
    else:
        settings = {"use_reentrant": False}
        work.module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)  # type: ignore[operator]
    return work.module


def _torch_compile(budget: float, work: Workload, options: dict[str, Any]) -> Callable[..., Any]:
    import torch._functorch.config as settings

    torch._dynamo.reset()
    compiled = torch.compile(work.module, dynamic=False)

    def call(*args: Any, **kwargs: Any) -> Any:
        with settings.patch(activation_memory_budget=budget):
            return compiled(*args, **kwargs)

    return call


def _budgeted(budget: int, work: Workload, options: dict[str, Any]) -> Callable[..., Any]:
    graph = StaticGraph(work.module, **options, memory_budget=budget)
    return graph.compile(*work.args, **work.kwargs)


@dataclass
class Point:
    """One variant of one model, prepared and measured."""

    result: Result
    step: Step
    values: list[torch.Tensor]  # loss and gradients of a step with a fixed seed
    planned: int | None = None


def measure(case: Case, options: argparse.Namespace) -> list[Point]:
    """All variants of a case; times of those that ran."""
    builders: dict[str, harness.Builder] = {"eager": harness.VARIANTS["eager"]}
    builders["checkpointing"] = _checkpointing
    if not options.without_compile:
        for budget in PEER_BUDGETS:
            builders[f"torch.compile {budget:g}"] = functools.partial(_torch_compile, budget)
    for budget in budgets(case, options.budgets):
        builders[f"rudagraph {budget / 2**20:.1f} MiB"] = functools.partial(_budgeted, budget)
    points = []
    for variant, builder in builders.items():
        points.append(_point(case, variant, builder))
        print(f"measured the peak of {case.name}, {variant}", flush=True)
    _check(points)
    steps = {point.result.variant: point.step for point in points}
    for variant, times in interleave(steps, options.repeats, options.seconds).items():
        next(p for p in points if p.result.variant == variant).result.times(times)
    return points


def budgets(case: Case, count: int) -> list[int]:
    """So many budgets, from what the default takes down to the smallest that can be met."""
    work = case.build()
    free = StaticGraph(work.module, **case.options).compile(*work.args, **work.kwargs)
    most, least = free.plan.peak_bytes, smallest(case)
    return [most - (most - least) * place // (count - 1) for place in range(count)]


def smallest(case: Case) -> int:
    """What the refusal of an impossible budget says."""
    work = case.build()
    try:
        StaticGraph(work.module, **case.options, memory_budget=1).compile(*work.args, **work.kwargs)
    except MemoryBudgetError as error:
        found = re.search(r"at least (\d+)", str(error))
        assert found is not None, error
        return int(found[1])
    raise AssertionError("a budget of one byte was met")


def _point(case: Case, variant: str, builder: harness.Builder) -> Point:
    """The first step is measured; torch.compile allocates while it compiles, so its second."""
    result = Result(case.name, variant)
    harness.VARIANTS[variant] = builder
    try:
        step = Step(case, variant)
    finally:
        if variant != "eager":
            del harness.VARIANTS[variant]
    step.upstream = torch.ones(())
    if variant.startswith("torch.compile"):
        step.run()
        step.clear()
    result.peak_bytes = peak_bytes(step.run)
    plan = getattr(step.call, "plan", None)
    torch.manual_seed(_SEED)
    return Point(result, step, step.values(), plan.peak_bytes if plan is not None else None)


def _check(points: Sequence[Point]) -> None:
    """Ours, by falling budget: met, never higher than before, the same bits."""
    ours = [point for point in points if point.planned is not None]
    for earlier, point in itertools.pairwise(ours):
        before, now = earlier.result.peak_bytes, point.result.peak_bytes
        assert before is not None and now is not None and point.planned is not None
        pairs = zip(point.values, ours[0].values, strict=True)
        if now > before:
            point.result.error = f"measures {now - before} bytes more than with more budget"
        elif now > point.planned:
            point.result.error = f"measures {now - point.planned} bytes more than planned"
        elif not all(torch.equal(mine, theirs) for mine, theirs in pairs):
            point.result.error = "loss or gradients differ from those without a budget"


# ---- what came out


def show(points: Sequence[Point]) -> None:
    eager = points[0].result
    table = Table(title=f"pareto: {eager.case}", title_justify="left")
    for heading in ("variant", "peak MiB", "of eager's", "median ms", "min", "max", "of eager's"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for point in points:
        result = point.result
        assert result.peak_bytes is not None and eager.peak_bytes is not None
        assert result.median_ms is not None and eager.median_ms is not None
        table.add_row(
            result.variant,
            f"{result.peak_bytes / 2**20:.1f}",
            f"{result.peak_bytes / eager.peak_bytes:.2f}",
            *(f"{value:.1f}" for value in (result.median_ms, result.min_ms, result.max_ms)),  # type: ignore[str-format]
            f"{result.median_ms / eager.median_ms:.2f}",
        )
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    for point in points:
        if point.result.error:
            console.print(f"[red]{point.result.variant}: {point.result.error}[/red]")


def draw(path: str, cases: dict[str, list[Point]]) -> None:
    """A panel a model: each variant a dot, ours joined by a line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(cases), figsize=(4.6 * len(cases), 3.8), squeeze=False)
    kinds = {"rudagraph": "o-", "torch.compile": "s--", "checkpointing": "^", "eager": "D"}
    for panel, (name, points) in zip(panels[0], cases.items(), strict=True):
        for colour, (kind, style) in enumerate(kinds.items()):
            dots = sorted(
                (p.result.peak_bytes / 2**20, p.result.median_ms)  # type: ignore[operator]
                for p in points
                if p.result.variant.startswith(kind)
            )
            if dots:
                panel.plot(*zip(*dots, strict=True), style, color=f"C{colour}", label=kind)
        panel.set(title=name, xlabel="peak over the weights, MiB", xlim=(0, None), ylim=(0, None))
    panels[0][0].set_ylabel("forward and backward, ms")
    panels[0][0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    cases: dict[str, list[Point]] = {}
    for name in options.model or MODELS:
        kept = {"outputs": "loss"} if name != "convolutions" else {}
        case = Case(name, functools.partial(MODELS[name], options.layers), options=kept)
        cases[name] = measure(case, options)
        show(cases[name])
        # After each model, since all of them take a while.
        results = [point.result for points in cases.values() for point in points]
        if options.json:
            write_json(options.json, "pareto", results)
        if options.png:
            draw(options.png, cases)
    return int(any(point.result.error for points in cases.values() for point in points))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pareto")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--png", metavar="FILE", help="draw the results there")
    parser.add_argument("--model", action="append", choices=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="few repeats, two layers, 4 budgets")
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--repeats", type=int, help="calls of each variant at most")
    parser.add_argument("--seconds", type=float, help="time for the calls of one model at most")
    parser.add_argument("--budgets", type=int, help="how many budgets")
    parser.add_argument("--layers", type=int, help="layers, or blocks, of each model")
    options = parser.parse_args(argv)
    options.repeats = options.repeats or (3 if options.quick else 15)
    options.seconds = options.seconds or (10.0 if options.quick else 120.0)
    options.budgets = max(options.budgets or (4 if options.quick else BUDGETS), 2)
    options.layers = options.layers or (2 if options.quick else 6)
    return options


if __name__ == "__main__":
    sys.exit(main())
