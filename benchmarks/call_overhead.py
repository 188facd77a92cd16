"""What a call costs beyond its kernels, on a 12-layer BERT with 202 parameters.

`python -m benchmarks.call_overhead [--json FILE] [--quick]`

Three parts: the contract check; the forward call without it; backward, autograd's own accumulation
included. Each is taken twice. In a loop: the part is repeated by itself (backward after a forward
each), and every launch (kernel or library op) is replaced by a function that computes nothing; in
backward it allocates what a library op would have, so that autograd gets every gradient. Between
kernels: launches run, and each is timed inside the very call whose total is taken, so their share
cancels call by call; what is left includes fetching again what the kernels have driven out of the
processor's caches. Beside them backward of an autograd Function of the same inputs that does
nothing at all: what PyTorch itself takes for so many leaves.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.report import Result, print_table, write_json
from rudagraph.runtime.buffers import Frame
from rudagraph.runtime.entries import BoundEntry
from rudagraph.runtime.step import Signature, Step, _fits, _form

Action = Callable[[], object]
Parts = dict[str, list[float]]
BATCH, LENGTH = 1, 8


class Stopwatch:
    """Nanoseconds spent in the launches it wraps."""

    def __init__(self) -> None:
        self.spent = 0
        self.launches = 0

    def wrap(self, action: Action) -> Action:
        clock = time.perf_counter_ns

        def timed() -> None:
            start = clock()
            action()
            self.spent += clock() - start
            self.launches += 1

        return timed

    def reset(self) -> None:
        self.spent = self.launches = 0

    def cost(self) -> float:
        """Nanoseconds that wrapping adds to a call, per launch and outside what it counts."""
        count = 20_000
        plain: list[Action] = [lambda: None] * count
        wrapped = [self.wrap(action) for action in plain]
        self.reset()
        start = time.perf_counter_ns()
        for action in wrapped:
            action()
        outside = time.perf_counter_ns() - start - self.spent
        start = time.perf_counter_ns()
        for _ in plain:
            pass
        loop = time.perf_counter_ns() - start  # the executor's own loop stays in the figure
        self.reset()
        return (outside - loop) / count


def replace(entry: BoundEntry, other: Callable[[Action], Action]) -> None:
    """Put something else in the place of every launch of an entry; the rest stays as it is."""
    entry.steps[:] = [
        other(step) if entry.launch_of(step) is not None else step for step in entry.steps
    ]


def nothing() -> None:
    """The launch of no kernel."""


class Learner:
    """Runs a launch and notes what it allocates, to stand in for it afterwards."""

    def __init__(self, frame: Frame, launch: Action) -> None:
        self._tensors = frame.tensors
        self._launch = launch
        self._made: list[tuple[int, torch.Tensor]] = []

    def __call__(self) -> None:
        before = list(self._tensors)
        self._launch()
        pairs = enumerate(zip(before, self._tensors, strict=True))
        self._made = [(slot, now) for slot, (was, now) in pairs if now is not was]

    def stand_in(self) -> None:
        """The launch of no kernel: autograd still gets every gradient, fresh."""
        for slot, tensor in self._made:
            self._tensors[slot] = torch.empty_like(tensor)


def leave_work_out(case: Case, frame: Frame) -> None:
    """Put what learners have seen in one step in the place of every launch."""
    backward = frame.backward
    replace(backward, lambda launch: Learner(frame, launch))
    case.clear()
    case.step(**case.batch).loss.backward()
    backward.steps[:] = [
        step.stand_in if isinstance(step, Learner) else step for step in backward.steps
    ]
    replace(frame.forward, lambda launch: nothing)
    case.clear()
    case.step(**case.batch).loss.backward()
    assert all(parameter.grad is not None for parameter in case.parameters)


def build() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """BERT for masked tokens: 12 layers, narrow, so that its kernels are short."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=12,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    tokens = torch.randint(64, (BATCH, LENGTH))
    return BertForMaskedLM(config), {"input_ids": tokens, "labels": tokens}


def check_contract(step: Step, signature: Signature, batch: dict[str, Any]) -> bool:
    """What a call does before its forward starts."""
    leaves, key = step._arguments.flatten((), batch, ())
    return _form(leaves, key) in step._by_form and _fits(
        signature, leaves, signature.weights.tensors()
    )


class Bare(torch.autograd.Function):
    """The least that any Function of these inputs costs: gradients are at hand."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.gradients = [torch.empty_like(tensor) for tensor in inputs]
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return tuple(gradients)


@dataclass
class Case:
    """The compiled step and what its parts are timed with."""

    step: Step
    signature: Signature
    batch: dict[str, Any]
    parameters: list[torch.nn.Parameter]

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def fits(self) -> None:
        assert check_contract(self.step, self.signature, self.batch)

    def in_a_loop(self, repeats: int) -> Parts:
        """Seconds of each part by itself, launches replaced by nothing."""
        checks = seconds_of(self.fits, repeats)
        forwards = seconds_of(lambda: self.step(**self.batch), repeats)
        return {
            "contract check": checks,
            "forward": less(forwards, statistics.median(checks)),
            "backward": [
                seconds_of(self.step(**self.batch).loss.backward, 1, self.clear)[0]
                for _ in range(repeats)
            ],
        }

    def between_kernels(self, repeats: int, stopwatch: Stopwatch) -> Parts:
        """Seconds of each part of whole steps, without what the stopwatch has counted meanwhile."""
        parts: Parts = {"contract check": [], "forward": [], "backward": []}
        cost = stopwatch.cost()

        def timed(name: str, action: Action) -> Any:
            stopwatch.reset()
            start = time.perf_counter_ns()
            result: Any = action()
            spent = time.perf_counter_ns() - start
            parts[name].append((spent - stopwatch.spent - cost * stopwatch.launches) / 1e9)
            return result

        for _ in range(repeats):
            self.clear()
            timed("contract check", self.fits)
            loss = timed("forward", lambda: self.step(**self.batch)).loss
            timed("backward", loss.backward)
        # The call checks the contract as well; its median, since the two are measured one by one.
        parts["forward"] = less(parts["forward"], statistics.median(parts["contract check"]))
        return parts

    def bare_backward(self, repeats: int) -> list[float]:
        return [
            seconds_of(Bare.apply(*self.parameters).backward, 1, self.clear)[0]
            for _ in range(repeats)
        ]


def seconds_of(action: Action, repeats: int, before: Action | None = None) -> list[float]:
    seconds = []
    for _ in range(repeats):
        if before:
            before()
        start = time.perf_counter_ns()
        action()
        seconds.append((time.perf_counter_ns() - start) / 1e9)
    return seconds


def less(seconds: list[float], part: float) -> list[float]:
    return [value - part for value in seconds]


def prepare() -> Case:
    from rudagraph import StaticGraph

    model, batch = build()
    step = StaticGraph(model, outputs="loss").compile(**batch)
    (signature,) = step._signatures
    step(**batch).loss.backward()
    return Case(step, signature, batch, list(model.parameters()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.call_overhead")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="few repeats, for a first look")
    options = parser.parse_args()
    repeats = 50 if options.quick else 500
    case = prepare()
    count = len(case.parameters)
    (frame,) = case.signature.executor._frames.values()
    entries = (frame.forward, frame.backward)
    launches = [list(entry.steps) for entry in entries]

    stopwatch = Stopwatch()
    for entry in entries:
        replace(entry, stopwatch.wrap)
    gc.collect()
    gc.disable()
    between = case.between_kernels(repeats, stopwatch)
    for entry, steps in zip(entries, launches, strict=True):
        entry.steps[:] = steps
    leave_work_out(case, frame)
    alone = case.in_a_loop(repeats)

    allowed = {
        "contract check": 90e-6,
        "forward": (60 + 1 * count) * 1e-6,
        "backward": (60 + 3 * count) * 1e-6,
    }
    results = []
    for name in allowed:
        for variant, parts in (("in a loop", alone), ("between kernels", between)):
            result = Result(name, variant, target_ms=1e3 * allowed[name])
            result.times(parts[name])
            result.ratios = {"allowed": result.median_ms / result.target_ms}
            result.targets = {"allowed": 1.0}
            results.append(result)
    bare = Result("backward", "autograd alone")
    bare.times(case.bare_backward(repeats))
    results.append(bare)
    print_table("call_overhead: beyond kernels and library ops", results)
    counts = [
        sum(entry.launch_of(step) is not None for step in steps)
        for entry, steps in zip(entries, launches, strict=True)
    ]
    print(f"{count} parameters; launches: {counts[0]} forward, {counts[1]} backward")
    if options.json:
        write_json(options.json, "call_overhead", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
