"""Steps without generated kernels: every op runs as the interpreter or PyTorch defines it.

They are made in milliseconds and exercise all of the runtime but the launching of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from rudagraph.capture import capture
from rudagraph.compiler import compile_signature as compile_with_kernels
from rudagraph.ir.text import print_graph
from rudagraph.options import CompileOptions
from rudagraph.passes.materialise import materialise
from rudagraph.passes.partition import partition
from rudagraph.runtime.arguments import Arguments
from rudagraph.runtime.contract import build_contract
from rudagraph.runtime.kernels import load_kernels
from rudagraph.runtime.step import Step
from rudagraph.schedule.program import Account, Program, Stage, gradient_sources
from tests.schedule.planning import plan

# With kernels, steps are compiled as users compile them: slower, and arena memory is reused.
with_kernels = False


def plain_program(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CompileOptions,
    targets: tuple[Any, ...] = (),
) -> Program:
    captured = capture(
        model, args, kwargs, outputs=options.outputs, loss=options.loss, targets=targets
    )
    entries = [materialise(entry) for entry in partition(captured.graph) if entry is not None]
    planned, _ = plan(entries[0], entries[1] if len(entries) > 1 else None, lambda *_: None)
    graphs = [("capture", captured.graph), *(("materialise", entry) for entry in entries)]
    return Program(
        plan=planned,
        kernels=(),
        contract=build_contract(model, captured.call, captured.renewed),
        template=captured.template,
        constants=captured.constants,
        gradient_sources=gradient_sources(captured.graph),
        account=lambda: Account(tuple(Stage(name, g.name, print_graph(g)) for name, g in graphs)),
        in_flight=options.in_flight,
    )


def plain_step(
    model: nn.Module,
    *args: Any,
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Step:
    """As StaticGraph(model, **options).compile(*args, **kwargs)."""
    chosen = CompileOptions.from_keywords(**(options or {}))

    def compile_signature(
        args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> Program:
        if with_kernels:
            return compile_with_kernels(model, args, kwargs, chosen, targets)
        return plain_program(model, args, kwargs, chosen, targets)

    step = Step(
        model,
        Arguments(model.forward),
        load_kernels,
        compile_signature,
        chosen.in_flight,
        loss=chosen.loss,
    )
    return step.add(*args, **kwargs)


def gradients(model: nn.Module, run: Callable[[], torch.Tensor]) -> list[torch.Tensor | None]:
    """The parameters' gradients after one backward of what `run` returns."""
    model.zero_grad(set_to_none=True)
    run().backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_same(left: Any, right: Any) -> None:
    """Equal trees of tensors, up to rounding in another order; None equals None."""
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
