"""What a step costs the host on an NVIDIA GPU: launches outside a graph, and replayed entries.

`python -m benchmarks.gpu_calls [--json FILE] [--quick]`

A 12-layer BERT with 202 parameters. Every action starts on an idle device and is timed until it
returns, so that kernels run beside it. Kernels are launched one after another as a direct call does
it. A replayed forward, without the contract check, may take 60 µs and 1 µs a parameter, as on a
CPU, and 25 µs more; backward 60 µs, 3 µs a parameter, and 25 µs more. Beside them stands what an
autograd Function takes that has the same inputs, hands out the same tensors and does nothing.
Backward is timed once more under `torch.autograd.set_multithreading_enabled(False)`, where autograd
stays in the calling thread instead of handing each of a GPU's nodes to another.

Actions take turns, because a host's clock changes within seconds by a factor of two, and each
follows a call of its own kind: the check is timed after a whole forward, as it is met in the next
one, and what it takes there is taken off that very turn's forward.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.call_overhead import build, check_contract
from benchmarks.report import Result, print_table, write_json
from rudagraph.runtime.step import Step

Action = Callable[[], object]
Tensor = torch.Tensor
KERNEL_MS = 0.008
REPLAY_MS = 0.025
CALL_MS = 0.060
PARAMETER_MS = {"forward": 0.001, "backward": 0.003}


class HandOut(torch.autograd.Function):
    """Results and gradients are at hand; new tensors over their memory go out, as in a replay."""

    results: Sequence[Tensor] = ()
    gradients: Sequence[Tensor] = ()

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple([tensor.data for tensor in HandOut.results])

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Tensor, ...]:
        return tuple([tensor.data for tensor in HandOut.gradients])


def seconds(turns: Sequence[tuple[Action, Action]], repeats: int) -> list[list[float]]:
    """Seconds of each action after its preparation; the actions take turns."""
    found: list[list[float]] = [[] for _ in turns]
    for _ in range(repeats):
        for (before, action), taken in zip(turns, found, strict=True):
            before()
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            action()
            taken.append((time.perf_counter_ns() - start) / 1e9)
    return found


class Calls:
    """The compiled step, replayed."""

    def __init__(self) -> None:
        from rudagraph import StaticGraph

        model, batch = build()
        self.model = model.cuda()
        self.batch = {name: tensor.cuda() for name, tensor in batch.items()}
        self.parameters = list(self.model.parameters())
        self.step: Step = StaticGraph(self.model, outputs="loss").compile(**self.batch)
        (self.signature,) = self.step._signatures
        for _ in range(4):
            self.clear()
            self.loss = self.forward()
            self.loss.backward()
        (self.frame,) = self.signature.executor._frames.values()
        if self.frame.graphs.refused or not self.frame.graphs.pairs:
            raise RuntimeError(f"the step is not replayed: {self.frame.graphs.refused}")
        HandOut.results = [self.loss.detach().clone()]
        HandOut.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def forward(self) -> Tensor:
        loss: Tensor = self.step(**self.batch).loss
        return loss

    def launch(self, repeats: int) -> tuple[list[float], int]:
        """Seconds a kernel of the forward entry, launched directly; and how many there are."""
        entry = self.frame.forward
        found = [(step, entry.launch_of(step)) for step in entry.steps]
        kernels = [step for step, launch in found if launch is not None and launch.kernel]
        entry.bind(entry.device.context())

        def launch_all() -> None:
            for kernel in kernels:
                kernel()

        (every,) = seconds([(lambda: None, launch_all)], repeats)
        return [value / len(kernels) for value in every], len(kernels)

    def forwards(self, repeats: int) -> list[list[float]]:
        """Seconds of the contract check, of a whole forward, and of autograd's part alone."""

        def after(call: Callable[[], Tensor]) -> Action:
            def prepare() -> None:
                self.drop()
                call()

            return prepare

        def keep(call: Callable[[], Tensor]) -> Action:
            return lambda: setattr(self, "loss", call())

        return seconds(
            [
                (after(self.forward), self.check),
                (after(self.forward), keep(self.forward)),
                (after(self.bare), keep(self.bare)),
            ],
            repeats,
        )

    def backwards(self, repeats: int) -> list[list[float]]:
        """Seconds of a whole backward, of autograd's part alone, and of both in one thread."""

        def after(call: Callable[[], Tensor]) -> Action:
            def prepare() -> None:
                self.clear()
                self.loss = call()

            return prepare

        def backward() -> None:
            self.loss.backward()

        def in_this_thread() -> None:
            with torch.autograd.set_multithreading_enabled(False):
                self.loss.backward()

        return seconds(
            [
                (after(call), action)
                for action in (backward, in_this_thread)
                for call in (self.forward, self.bare)
            ],
            repeats,
        )

    def check(self) -> None:
        assert check_contract(self.step, self.signature, self.batch)

    def drop(self) -> None:
        """Nothing that a step has returned is held afterwards."""
        self.clear()
        self.loss = HandOut.results[0]

    def allowed(self, entry: str) -> float:
        """Milliseconds that a replayed entry may take."""
        return CALL_MS + PARAMETER_MS[entry] * len(self.parameters) + REPLAY_MS

    def bare(self) -> Tensor:
        results: tuple[Tensor, ...] = HandOut.apply(*self.parameters)
        return results[0]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_calls")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="few repeats, for a first look")
    options = parser.parse_args(argv)
    repeats = 50 if options.quick else 300
    calls = Calls()
    gc.collect()
    gc.disable()
    launches, kernels = calls.launch(repeats)
    check, whole, alone = calls.forwards(repeats)
    forward = [taken - checked for taken, checked in zip(whole, check, strict=True)]
    backwards = calls.backwards(repeats)
    results = [
        _result("launch", "one kernel outside a graph", launches, KERNEL_MS),
        _result("call", "contract check", check),
        _result("forward", "replayed", forward, calls.allowed("forward")),
        _result("forward", "autograd alone", alone),
        _result("backward", "replayed", backwards[0], calls.allowed("backward")),
        _result("backward", "autograd alone", backwards[1]),
        _result("backward", "replayed, one thread", backwards[2]),
        _result("backward", "autograd alone, one thread", backwards[3]),
    ]
    gc.enable()
    print_table("gpu_calls: milliseconds of the host", results)
    print(f"{len(calls.parameters)} parameters, {kernels} kernels in forward")
    if options.json:
        write_json(options.json, "gpu_calls", results, torch.cuda.get_device_name())
    return 0


def _result(
    case: str, variant: str, seconds: list[float], target_ms: float | None = None
) -> Result:
    result = Result(case, variant, target_ms=target_ms)
    result.times(seconds)
    assert result.median_ms is not None
    if target_ms is not None:
        result.ratios = {"allowed": result.median_ms / target_ms}
        result.targets = {"allowed": 1.0}
    return result


if __name__ == "__main__":
    sys.exit(main())
