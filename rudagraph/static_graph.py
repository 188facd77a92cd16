"""StaticGraph: options, and the way from a model and an example batch to a step.

It holds no compiler logic: `compiler.compile_signature` makes programs, `runtime.step` runs them.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn

from rudagraph.compiler import compile_signature
from rudagraph.errors import UsageError
from rudagraph.options import CompileOptions
from rudagraph.runtime.arguments import Arguments
from rudagraph.runtime.kernels import load_kernels
from rudagraph.runtime.step import Step
from rudagraph.schedule.program import Program

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")


class StaticGraph:
    """A model and how to compile it.

    >>> graph = StaticGraph(model, outputs="loss")
    >>> step = graph.compile(input_ids=ids, labels=ids)
    >>> step(input_ids=ids, labels=ids).loss.backward()
    """

    def __init__(self, model: nn.Module, **options: Any) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"StaticGraph takes a torch.nn.Module, not a {type(model).__name__}",
                hint="pass the model itself, not its class or output",
            )
        _refuse_wrapped(model)
        self.model = model
        self.options = CompileOptions.from_keywords(**options)
        if self.options.accumulate == "kernel":
            raise UsageError(
                'accumulate="kernel" is not available yet',
                hint='leave it at "autograd": gradients add up in .grad as they do in eager',
            )

    def compile(self, *args: Any, **kwargs: Any) -> Step:
        """A step for calls like this one: arguments just as the model takes them.

        With the option `loss`, the keyword `targets` holds what follows the output in its call.
        Nothing is executed on the batch and no state is changed.
        """
        takes_targets = self.options.loss is not None
        own = "targets" in signature(self.model.forward).parameters
        if "targets" in kwargs and not takes_targets and not own:
            raise UsageError(
                "targets were given, but there is no loss function to take them",
                hint="StaticGraph(model, loss=function).compile(..., targets=...)",
            )
        step = Step(
            self.model,
            Arguments(self.model.forward),
            load_kernels,
            self._compile,
            in_flight=self.options.in_flight,
            takes_targets=takes_targets,
        )
        return step.add(*args, **kwargs)

    def _compile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> Program:
        return compile_signature(self.model, args, kwargs, self.options, targets)

    def __repr__(self) -> str:
        return f"StaticGraph({type(self.model).__qualname__}, {self.options})"


def _refuse_wrapped(model: nn.Module) -> None:
    """What reduces gradients in Python around forward: a trace of it would leave that out."""
    for path, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS and type(module).__module__.startswith("torch."):
            name = type(module).__name__
            raise UsageError(
                f"{path or 'the model'} is wrapped in {name}, which works around forward and "
                "cannot be part of a step",
                path or "the model",
                "compile the module inside it; for DistributedDataParallel wrap the step: "
                "DistributedDataParallel(StaticGraph(model).compile(...).as_module())",
            )
