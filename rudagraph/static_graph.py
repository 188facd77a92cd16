"""StaticGraph: options, and the way from a model and an example batch to a step.

It holds no compiler logic: `compiler.compile_signature` makes programs, `runtime.step` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any

from torch import nn

from rudagraph.compiler import compile_signature
from rudagraph.errors import UsageError
from rudagraph.options import CompileOptions
from rudagraph.progress import reported
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

    def __init__(self, model: nn.Module, *batch: Any, **options: Any) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"StaticGraph takes a torch.nn.Module, not a {type(model).__name__}",
                hint="pass the model itself, not its class or output",
            )
        _refuse_wrapped(model)
        if type(model).forward is nn.Module.forward and "forward" not in model.__dict__:
            raise UsageError(
                f"a {type(model).__name__} has no forward of its own",
                hint="pass the module that calls its parts",
            )
        if batch:
            raise UsageError(
                "StaticGraph takes the model and options by keyword",
                hint="the example batch goes to StaticGraph(model).compile(...)",
            )
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
        loss = self.options.loss
        self._check_keywords(kwargs)
        if loss is not None:
            _check_loss(loss, kwargs.get("targets", ()))
        step = Step(
            self.model,
            Arguments(self.model.forward),
            load_kernels,
            self._compile,
            in_flight=self.options.in_flight,
            loss=loss,
        )
        return step.add(*args, **kwargs)

    def _check_keywords(self, kwargs: dict[str, Any]) -> None:
        """Keywords that forward does not take, and that belong elsewhere."""
        known = signature(self.model.forward).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            return
        foreign = kwargs.keys() - known.keys()
        if "targets" in foreign and self.options.loss is None:
            raise UsageError(
                "targets were given, but there is no loss function to take them",
                hint="StaticGraph(model, loss=function).compile(..., targets=...)",
            )
        for option in fields(CompileOptions):
            if option.name in foreign:
                raise UsageError(
                    f"{option.name} is an option of StaticGraph, and forward does not take it",
                    hint=f"StaticGraph(model, {option.name}=...).compile(...)",
                )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(
            "a StaticGraph is not a step yet",
            hint="step = graph.compile(...) with an example batch, then step(...)",
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(self.__dict__.get("model"), name):
            raise AttributeError(f"a StaticGraph is no module: use graph.model.{name}")
        raise AttributeError(f"a StaticGraph has no {name!r}")

    def _compile(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> Program:
        with reported() as report:
            return compile_signature(self.model, args, kwargs, self.options, targets, report)

    def __repr__(self) -> str:
        return f"StaticGraph({type(self.model).__qualname__}, {self.options})"


def _check_loss(loss: Callable[..., Any], targets: Any) -> None:
    """A loss that cannot be called with these targets is named before anything is traced."""
    if not isinstance(targets, tuple | list):
        return  # the step says so
    try:
        takes = signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # a function of C without a signature
        return
    try:
        takes.bind(None, *targets)
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        raise UsageError(
            f"the loss cannot be called with the output and {len(targets)} targets: {error}",
            f"{name}{takes}",
            "pass compile(..., targets=(y,)): what the loss takes after the model's output",
        ) from None


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
