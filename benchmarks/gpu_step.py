"""Whole training steps on an NVIDIA GPU: a Llama of 1.2 billion parameters, and a small one.

`python -m benchmarks.gpu_step [--json FILE] [--quick] [--case 1b] [--variant rudagraph]`

Forward and backward, no optimizer. Every variant has its own copy of the model; loss and gradients
are compared with eager's before anything is timed. Peaks count from before the first call, over
the weights: what a variant keeps between calls is in them. Timed are runs of a few steps between
two synchronisations, variants in turn.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.llama import modeling_llama

from benchmarks.report import Result, print_table, write_json

Tensor = torch.Tensor
Call = Callable[..., Any]

STEPS = 5  # between two synchronisations
# Gradients of two right bf16 steps differ by rounding; a wrong one is far outside.
GRADIENT_DISTANCE = 0.05


@dataclass(frozen=True)
class Case:
    """A shape of Llama and of its batch."""

    name: str
    config: dict[str, Any]
    batch: int
    tokens: int
    targets: dict[str, float]

    def build(self) -> tuple[nn.Module, dict[str, Tensor]]:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**self.config, attn_implementation="sdpa")
        with torch.device("cuda"):
            model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()
            ids = torch.randint(0, config.vocab_size, (self.batch, self.tokens))
        return model, {"input_ids": ids, "labels": ids}


CASES = (
    Case(
        "1b",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
            "rope_theta": 500000.0,
            "use_cache": False,
        },
        *(4, 2048),
        {"best peer": 0.88},
    ),
    Case(
        "small",
        {
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "vocab_size": 8192,
            "tie_word_embeddings": True,
            "use_cache": False,
        },
        *(4, 256),
        {"torch.compile-reduce-overhead": 0.80},
    ),
)


# ---- variants


def _eager(model: nn.Module, batch: dict[str, Tensor]) -> Call:
    return model


def _checkpointing(model: Any, batch: dict[str, Tensor]) -> Call:
    model.gradient_checkpointing_enable()
    return model  # type: ignore[no-any-return]


def _compile(model: nn.Module, batch: dict[str, Tensor]) -> Call:
    torch._dynamo.reset()
    return torch.compile(model, dynamic=False)


def _reduce_overhead(model: nn.Module, batch: dict[str, Tensor]) -> Call:
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=False, mode="reduce-overhead")

    def call(**given: Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(**given)

    return call


def _liger(model: nn.Module, batch: dict[str, Tensor]) -> Call:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    # Liger patches functions of transformers for everyone: here only while its own model runs.
    before = dict(vars(modeling_llama))
    apply_liger_kernel_to_llama(model=model)
    changed = {k: v for k, v in vars(modeling_llama).items() if before.get(k) is not v}
    original = {name: before[name] for name in changed if name in before}
    vars(modeling_llama).update(original)

    def call(**given: Tensor) -> Any:
        vars(modeling_llama).update(changed)
        try:
            return model(**given)
        finally:
            vars(modeling_llama).update(original)

    return call


def _rudagraph(model: nn.Module, batch: dict[str, Tensor]) -> Call:
    from rudagraph import StaticGraph

    return StaticGraph(model, outputs="loss").compile(**batch)


def _deterministic(model: nn.Module, batch: dict[str, Tensor]) -> Call:
    from rudagraph import StaticGraph

    return StaticGraph(model, outputs="loss", deterministic=True).compile(**batch)


VARIANTS: dict[str, Callable[[nn.Module, dict[str, Tensor]], Call]] = {
    "eager": _eager,
    "checkpointing": _checkpointing,
    "liger": _liger,
    "torch.compile": _compile,
    "torch.compile-reduce-overhead": _reduce_overhead,
    "rudagraph": _rudagraph,
    "rudagraph-deterministic": _deterministic,
}


class Step:
    """A variant on its own copy of the model."""

    def __init__(self, case: Case, variant: str) -> None:
        self.model, self.batch = case.build()
        self.parameters = list(self.model.parameters())
        torch.cuda.synchronize()
        self.before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        self.call = VARIANTS[variant](self.model, self.batch)
        self.run()
        torch.cuda.synchronize()
        self.first_step_s = time.perf_counter() - start

    def run(self) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        loss: Tensor = self.call(**self.batch).loss
        loss.backward()
        return loss.detach()

    def values(self) -> list[Tensor]:
        """Loss and gradients of a later step."""
        self.run()
        loss = self.run().clone()
        return [loss, *(p.grad.clone() for p in self.parameters if p.grad is not None)]

    def peak(self) -> int:
        """Over the weights, what is kept between calls included."""
        for parameter in self.parameters:
            parameter.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - self.before

    def release(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


def measure(case: Case, variants: Sequence[str], options: argparse.Namespace) -> list[Result]:
    """Results of all variants; one that fails or is wrong says so and is not timed."""
    results = {variant: Result(case.name, variant) for variant in variants}
    steps: dict[str, Step] = {}
    expected: list[Tensor] | None = None
    torch._dynamo.reset()  # what earlier cases left behind would be freed in the midst of this one
    for variant, result in results.items():
        try:
            with _collected():
                step = Step(case, variant)
                result.first_step_s = step.first_step_s
                got = step.values()
                expected = got if expected is None else expected
                result.error = _difference(got, expected)
                del got
                result.peak_bytes = step.peak()
                step.release()
        except Exception as error:
            text = str(error).strip() or repr(error)
            result.error = f"{type(error).__name__}: {text.splitlines()[0][:200]}"
            continue
        if not result.error:
            steps[variant] = step
        print(f"{case.name} {variant}: ready {result.error}", flush=True)
    del expected
    for variant, times in interleave(steps, options.rounds).items():
        results[variant].times(times)
    _compare(case, results)
    return list(results.values())


def interleave(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds a step of each run; the variants alternate, each round starts with another."""
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            step = steps[name]
            step.run()  # its memory is in the allocator's cache again
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step.run()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / STEPS)
            step.release()
    return times


@contextmanager
def _collected() -> Iterator[None]:
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def _difference(got: list[Tensor], expected: list[Tensor]) -> str:
    loss, wanted = float(got[0]), float(expected[0])
    if not abs(loss - wanted) <= 0.01 * abs(wanted):
        return f"loss {loss:.3f} for eager's {wanted:.3f}"
    if len(got) != len(expected):
        return f"{len(got) - 1} gradients for eager's {len(expected) - 1}"
    pairs = list(zip(got, expected, strict=True))
    difference = sum(float((a.float() - b.float()).square().sum()) for a, b in pairs)
    distance = (difference / sum(float(b.float().square().sum()) for _, b in pairs)) ** 0.5
    if not distance <= GRADIENT_DISTANCE:
        return f"gradients differ from eager's by {distance:.1e}"
    return ""


def _compare(case: Case, results: dict[str, Result]) -> None:
    ours = results.get("rudagraph")
    if ours is None or ours.median_ms is None:
        return
    others = {k: r.median_ms for k, r in results.items() if k != "rudagraph" and r.median_ms}
    ours.ratios = {variant: ours.median_ms / median for variant, median in others.items()}
    peers = [median for variant, median in others.items() if not variant.startswith("rudagraph")]
    if peers:
        ours.ratios["best peer"] = ours.median_ms / min(peers)
    ours.targets = {k: v for k, v in case.targets.items() if k in ours.ratios}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_step")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="few rounds, for a first look")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--variant", action="append", choices=list(VARIANTS))
    parser.add_argument("--rounds", type=int, help=f"runs of {STEPS} steps of each variant")
    options = parser.parse_args(argv)
    options.rounds = options.rounds or (3 if options.quick else 11)
    results: list[Result] = []
    for case in CASES:
        if not options.case or case.name in options.case:
            results += measure(case, options.variant or list(VARIANTS), options)
    print_table("gpu_step", results)
    if options.json:
        write_json(options.json, "gpu_step", results, torch.cuda.get_device_name())
    return 1 if any(r.error for r in results if r.variant == "rudagraph") else 0


if __name__ == "__main__":
    sys.exit(main())
