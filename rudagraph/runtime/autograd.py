"""The bridge to autograd: one Function whose forward and backward are the two entries.

Parameters and arguments that require grad are its inputs, so accumulation, hooks, scalers and
process groups see each gradient where they always do. Invariant: results and gradients handed to
autograd are referenced by nobody else, so it can take them over instead of copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

from rudagraph.errors import UsageError
from rudagraph.runtime.executor import Executor
from rudagraph.runtime.wiring import picker

Tensor = torch.Tensor


class Call:
    """One call on its way through autograd: its tensors, and those that get gradients."""

    __slots__ = ("bridge", "leaves", "weights")

    def __init__(self, bridge: Bridge, leaves: list[Tensor], weights: list[Tensor]) -> None:
        self.bridge = bridge
        self.leaves = leaves
        self.weights = weights


class Bridge:
    """Runs an executor under autograd."""

    def __init__(self, executor: Executor, weight_index: dict[str, int]) -> None:
        self.executor = executor
        program = executor.program
        paths = {leaf.path: place for place, leaf in enumerate(program.contract.leaves)}
        targets = [target for target, *_ in executor.wiring.gradients]
        arguments = [t.removeprefix("argument:") for t in targets if t.startswith("argument:")]
        self.own_leaves = picker([paths[path] for path in arguments])
        self.own_weights = picker([weight_index[target] for target in targets[len(arguments) :]])
        leaves = program.template.leaves
        self.fixed = [place for place, leaf in enumerate(leaves) if not leaf.requires_grad]
        self.differentiable = bool(targets) and len(self.fixed) < len(leaves)

    def __call__(self, leaves: list[Tensor], weights: list[Tensor]) -> Sequence[Tensor]:
        """The results of a call; differentiable if grad mode is enabled."""
        grad = self.differentiable and torch.is_grad_enabled()
        with _undisturbed(self.executor.device.type):
            if grad:
                call = Call(self, leaves, weights)
                results: Sequence[Tensor] = _apply(
                    call, *self.own_leaves(leaves), *self.own_weights(weights)
                )
                return results
            with torch.no_grad():
                return self.executor.forward(leaves, weights, keep=False).results


class _Step(torch.autograd.Function):
    """Its context is the node of the graph; it lives as long as some output does."""

    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        pending = call.bridge.executor.forward(call.leaves, call.weights, keep=True)
        ctx.pending = pending
        ctx.executor = call.bridge.executor
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*pending.saved)
        results = tuple(pending.results)
        pending.results = []
        pending.saved = []
        ctx.mark_non_differentiable(*[results[place] for place in call.bridge.fixed])
        return results

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UsageError(
                "the step has first-order gradients only, and create_graph=True asks for more",
                "backward of a step",
                "call step.model(...) where gradients of gradients are needed",
            )
        if torch._C._are_functorch_transforms_active() or any(map(_is_batched, tangents)):
            raise UsageError(
                "backward of a step takes one upstream gradient at a time, and this is a batch "
                "of them (vectorize=True, is_grads_batched=True, vmap)",
                "backward of a step",
                "call it once for each, or differentiate step.model(...)",
            )
        executor, pending = ctx.executor, ctx.pending
        # Before autograd says the same of its saved tensors, but not of a step.
        executor.refuse_freed(pending)
        with _undisturbed(executor.device.type):
            gradients = executor.backward(pending, ctx.saved_tensors, tangents, _graph_is_kept())
            return (None, *gradients)


# Function.apply itself walks over all inputs in Python to unwrap those of dead transforms.
_apply: Any = super(torch.autograd.Function, _Step).apply


def _is_batched(tangent: Tensor | None) -> bool:
    """Of either vmap: torch.autograd's own still uses the older kind."""
    functorch: Any = torch._C._functorch
    return tangent is not None and (
        functorch.is_functorch_wrapped_tensor(tangent) or functorch.is_legacy_batchedtensor(tangent)
    )


def _graph_is_kept() -> bool:
    """Whether this backward was called with retain_graph=True."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def _undisturbed(device: str) -> AbstractContextManager[object]:
    """Our own ops run as they are: casts were captured, inference mode would taint the arena."""
    if not torch.is_autocast_enabled(device) and not torch.is_inference_mode_enabled():
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.autocast(device, enabled=False))
    return stack
