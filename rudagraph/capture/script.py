"""What forward calls, noted without running it, and played back on other tensors.

Input: calls of PyTorch's functions, as the capture's mode meets them. Output: a list of calls, each
with the tensors it read and made. Invariant: a call that is like one before (the same function on
the same numbers, layouts and needs of gradients) is not run: what it gives is known. Whatever else
could change the outcome (writes, questions about autograd's graph, modes, Functions) makes forward
unusual: its calls do not tell all, and it is traced as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rudagraph.capture.draws import UniformDraw
from rudagraph.capture.nodes import Unusual
from rudagraph.capture.shapes import Layout, Traced
from rudagraph.ir.graph import Location

_saved_tensor_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks


def _getters(*names: str) -> frozenset[Any]:
    return frozenset(getattr(Tensor, name).__get__ for name in names)


# Ask about a tensor, which has the answer.
_QUESTIONS = _getters(
    *"shape dtype device ndim requires_grad layout is_cuda is_cpu is_nested is_sparse is_quantized "
    "is_mkldnn is_meta itemsize nbytes".split()
) | {
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.stride,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.is_contiguous,
    Tensor.element_size,
    Tensor.storage_offset,
    Tensor.get_device,
    Tensor.__len__,
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}
# Set what is noted with each call.
_SETTINGS = frozenset((torch._C._set_grad_enabled,))
# Numbers and the like, told apart by their types too.
_PLAIN = frozenset(
    (
        bool,
        int,
        str,
        type(None),
        type(Ellipsis),
        torch.Size,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What is the same of calls that are alike: what they give."""

    container: Callable[[list[Any]], Any] | None  # None where the result is the one tensor itself
    # Of each new tensor, and whether it needs a gradient; None for one that is left out.
    results: tuple[tuple[Layout, bool] | None, ...]
    returned: int | None  # where the result is the operand of that place
    draws: int  # random streams


class Call:
    """One call: what it was given, with the tensors of forward among it, and what it made."""

    __slots__ = ("args", "function", "grad", "kind", "kwargs", "location", "operands", "results")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        location: Location,
        operands: list[Traced],
        kind: Kind,
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.location, self.operands, self.kind = location, operands, kind
        self.grad = torch.is_grad_enabled()
        self.results: list[Traced | None] = []


Run = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], tuple[Any, int]]


class Learns(Protocol):
    """Runs calls of a kind that is new."""

    learning: bool

    def gives_up(self, reason: str) -> Unusual:
        """Note that forward is unusual; the error to raise, which forward may catch."""


class Script:
    """The calls of one run of forward."""

    def __init__(self, learner: Learns) -> None:
        self.calls: list[Call] = []
        self.learner = learner
        self._kinds: dict[Hashable, Kind] = {}
        self._state: Hashable = None

    def begin(self) -> None:
        """Forward begins in the modes that are active now."""
        self._state = _state()

    def finish(self, results: list[Tensor]) -> None:
        """Forward has ended with these results; Unusual where tensors are not what they were."""
        for call in self.calls:
            for made, wanted in zip(call.results, call.kind.results, strict=True):
                if made is None:
                    continue
                if made._backward_hooks or made.grad_fn is not None:
                    raise Unusual(f"what {call.function} gives has a derivative of its own")
                if _form(made) != wanted:
                    raise Unusual(f"what {call.function} gives needs a gradient, or no more")
        if not all(isinstance(result, Traced) and result.grad_fn is None for result in results):
            raise Unusual("a result is no tensor of the script")

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        location: Location,
        run: Run,
    ) -> Any:
        """Note a call and give its result; `run` really runs it, and counts streams drawn."""
        if function in _QUESTIONS or function in _SETTINGS:
            return function(*args, **kwargs)
        if _state() != self._state or _saved_tensor_hooks(True) is not None:
            raise self.learner.gives_up("forward works in a mode of its own")
        operands: list[Traced] = []
        try:
            described = _described(args, operands), _described(tuple(kwargs.items()), operands)
            key = (function, torch.is_grad_enabled(), *described)
            known = self._kinds.get(key)
        except TypeError:
            raise self.learner.gives_up(f"{function} is given what cannot be compared") from None
        if any(operand.grad_fn is not None for operand in operands):
            raise self.learner.gives_up("a Function of the user's has made a tensor")
        if known is None:
            known = self._kinds[key] = self._learn(function, args, kwargs, operands, run)
        if known.returned is not None:
            return operands[known.returned]
        # Containers as they are now: forward may go on filling them.
        given = _mapped(args, _same), _mapped(kwargs, _same)
        call = Call(function, *given, location, operands, known)
        for form in known.results:
            made = None if form is None else Traced(form[0])
            if made is not None and form is not None:
                made.requires_grad_(form[1])
                made.maker, made.place = call, len(call.results)
            call.results.append(made)
        self.calls.append(call)
        if not call.results:
            return self._run(function, args, kwargs, run)[0]
        return known.container(list(call.results)) if known.container else call.results[0]

    def _learn(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Traced],
        run: Run,
    ) -> Kind:
        versions = [operand._version for operand in operands]
        result, draws = self._run(function, args, kwargs, run)
        if versions != [operand._version for operand in operands]:
            raise self.learner.gives_up(f"{function} writes")
        if isinstance(result, UniformDraw):
            return Kind(None, (), None, draws)
        if isinstance(result, Traced):
            places = [place for place, operand in enumerate(operands) if operand is result]
            if places:
                if draws:
                    raise self.learner.gives_up(f"{function} draws and gives what it was given")
                return Kind(None, (), places[0], 0)
            return Kind(None, (_form(result),), None, draws)
        parts = list(result) if isinstance(result, (tuple, list)) else []
        known = {id(operand) for operand in operands}
        if not any(isinstance(part, Traced) for part in parts) or not all(
            part is None or (isinstance(part, Traced) and id(part) not in known) for part in parts
        ):
            raise self.learner.gives_up(f"{function} gives no tensor")
        return Kind(type(result), tuple(map(_form, parts)), None, draws)

    def _run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], run: Run
    ) -> tuple[Any, int]:
        self.learner.learning = True
        try:
            return run(function, args, kwargs)
        except Exception as error:
            # Forward may catch it; then it has gone another way than with autograd's graph.
            self.learner.gives_up(f"{function} fails: {error!r}")
            raise
        finally:
            self.learner.learning = False


def _form(tensor: Any) -> tuple[Layout, bool] | None:
    return None if tensor is None else (tensor.form, tensor.requires_grad)


def _state() -> Hashable:
    """All but grad mode that changes what calls do, and that none of them tells."""
    return (
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch._C._len_torch_dispatch_stack(),
    )


def _described(value: Any, operands: list[Traced]) -> Hashable:
    """An argument as a key; its tensors are added to the operands. TypeError for all the rest."""
    kind = type(value)
    if kind is Traced:
        operands.append(value)
        return value.form, value.requires_grad
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return repr(value)  # in which 0.0 and -0.0 differ
    if kind is tuple or kind is list:
        return kind, tuple([_described(item, operands) for item in value])
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return kind, tuple([_described(part, operands) for part in parts])
    if kind is dict:
        return kind, tuple([(name, _described(item, operands)) for name, item in value.items()])
    raise TypeError


def play(
    calls: Iterable[tuple[Call, Location]],
    instead: dict[int, Traced],
    values: dict[int, Tensor],
    run: Callable[[Call, Location, tuple[Any, ...], dict[str, Any]], Any],
) -> None:
    """Run calls, at their places, on other tensors.

    Those are `values`, by the identity of the script's; results are added to them. `instead` says
    which of the script's tensors are read for others.
    """

    def value(tensor: Tensor) -> Tensor:
        return values[id(instead.get(id(tensor), tensor))]

    for call, place in calls:
        result = run(call, place, _mapped(call.args, value), _mapped(call.kwargs, value))
        parts = list(result) if call.kind.container else [result][: len(call.results)]
        for made, wanted, part in zip(call.results, call.kind.results, parts, strict=True):
            if _form(part) != wanted:
                raise Unusual(f"{call.function} gives something else than it did")
            values[id(made)] = part


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An argument with other tensors, in containers of its own."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([_mapped(item, change) for item in value])
    if type(value) is dict:
        return {name: _mapped(item, change) for name, item in value.items()}
    if type(value) is slice:
        parts = (value.start, value.stop, value.step)
        return slice(*[_mapped(part, change) for part in parts])
    return value
