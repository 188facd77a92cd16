"""What a call costs beyond its kernels, on a 12-layer BERT with 202 parameters.

`python -m benchmarks.call_overhead [--json FILE] [--quick]`

Three parts: the contract check; the forward call without it and without launches; backward without
launches, autograd's own accumulation included. Every launch (kernel or library op) is timed inside
the very call whose total is taken, so their share cancels call by call; the stopwatch's own cost is
measured on launches that do nothing, and taken off.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.report import Result, print_table, write_json
from rudagraph.runtime.entries import BoundEntry
from rudagraph.runtime.step import Signature, Step, _fits, _form

Action = Callable[[], object]
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


def watch(entry: BoundEntry, stopwatch: Stopwatch) -> None:
    """Put the stopwatch around every launch of an entry; memory management stays outside."""
    entry.steps[:] = [
        stopwatch.wrap(step) if entry.launch_of(step) is not None else step for step in entry.steps
    ]


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


def measure(repeats: int) -> tuple[int, dict[str, list[float]], dict[str, int]]:
    """Parameters, seconds of each part per call, and launches of each entry."""
    from rudagraph import StaticGraph

    model, batch = build()
    parameters = list(model.parameters())
    step = StaticGraph(model, outputs="loss").compile(**batch)
    (signature,) = step._signatures
    step(**batch).loss.backward()
    (frame,) = signature.executor._frames.values()
    stopwatch = Stopwatch()
    for entry in (frame.forward, frame.backward):
        watch(entry, stopwatch)
    cost = stopwatch.cost()

    parts: dict[str, list[float]] = {"contract check": [], "forward": [], "backward": []}
    launches = {}

    def beyond(total: int) -> float:
        rest = total - stopwatch.spent - cost * stopwatch.launches
        return rest / 1e9

    gc.collect()
    gc.disable()
    try:
        for _ in range(repeats):
            for parameter in parameters:
                parameter.grad = None
            start = time.perf_counter_ns()
            assert check_contract(step, signature, batch)
            parts["contract check"].append((time.perf_counter_ns() - start) / 1e9)

            stopwatch.reset()
            start = time.perf_counter_ns()
            out = step(**batch)
            parts["forward"].append(beyond(time.perf_counter_ns() - start))
            launches["forward"] = stopwatch.launches

            stopwatch.reset()
            loss = out.loss
            start = time.perf_counter_ns()
            loss.backward()
            parts["backward"].append(beyond(time.perf_counter_ns() - start))
            launches["backward"] = stopwatch.launches
    finally:
        gc.enable()
    # The call checks the contract as well; its median, since the two are measured one by one.
    check_seconds = statistics.median(parts["contract check"])
    parts["forward"] = [seconds - check_seconds for seconds in parts["forward"]]
    return len(parameters), parts, launches


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.call_overhead")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="few repeats, for a first look")
    options = parser.parse_args()
    count, parts, launches = measure(50 if options.quick else 500)
    allowed = {
        "contract check": 90e-6,
        "forward": (60 + 1 * count) * 1e-6,
        "backward": (60 + 3 * count) * 1e-6,
    }
    results = []
    for name, seconds in parts.items():
        result = Result(name, "rudagraph", target_ms=1e3 * allowed[name])
        result.times(seconds)
        result.ratios = {"allowed": result.median_ms / result.target_ms}
        result.targets = {"allowed": 1.0}
        results.append(result)
    print_table("call_overhead: beyond kernels and library ops", results)
    print(
        f"{count} parameters; launches: {launches['forward']} forward, {launches['backward']} back"
    )
    if options.json:
        write_json(options.json, "call_overhead", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
