"""What happens at every PyTorch call of the user's forward while it is traced.

Input: the call. Output: its result, with the user's line and module path noted on every op it
makes, composites replaced by our operators, and calls that a step cannot hold refused. Tensors
that belong neither to the module nor to the arguments are noted as they are met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.fx import traceback as notes
from torch.overrides import TorchFunctionMode

from rudagraph.capture.autocast import cast_arguments
from rudagraph.capture.composites import NESTED, REPLACEMENTS
from rudagraph.capture.draws import UniformDraw
from rudagraph.capture.dropouts import Streams
from rudagraph.capture.mistakes import Refused, refused
from rudagraph.capture.places import ModulePath, line_of, location_text, user_frame
from rudagraph.capture.script import Call, Script
from rudagraph.errors import RudagraphError, UnsupportedError
from rudagraph.ir.graph import Location

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_FOLLOWED = (list, tuple)
# What a tensor with real data may be in; traced tensors and numbers are of none of these types.
_MAY_HOLD_REAL = frozenset((*_PLAIN_TENSORS, *_FOLLOWED))

# Calls that ask for shape, dtype and the like; they compute nothing.
_QUESTIONS = frozenset({"__get__", "size", "dim", "numel", "stride", "is_floating_point"})

_ABSENT = object()

# What one run of forward called, and from where.
Calls = list[tuple[Callable[..., Any], Location]]


class CaptureMode(TorchFunctionMode):
    """Active during one run of forward; `outer` collects foreign tensors by identity."""

    def __init__(
        self,
        modules: ModulePath,
        boundary: CodeType,
        outer: dict[int, torch.Tensor],
        names: dict[int, str],
    ) -> None:
        super().__init__()
        self.names = names  # of the module's tensors and the arguments, by identity
        self.refused: Refused | None = None
        self.modules = modules
        self.boundary = boundary
        self.outer = outer
        self.streams = Streams()
        self.default_dtype = torch.get_default_dtype()
        self.last = Location()
        self.meets_autograd = False  # forward has called something of _AUTOGRAD
        self.calls: Calls = []
        self.script: Script | None = None  # where calls are only noted
        self._played: Location | None = None  # of the call that is played back
        self._locations: dict[tuple[str, str, int], Location] = {}

    def location(self) -> Location:
        """Where forward is: a loop, and a module that runs twice, make many calls at one place."""
        if self._played is not None:
            return self._played
        place = (self.modules.current, *user_frame(self.boundary))
        location = self._locations.get(place)
        if location is None:
            module, file, line = place
            location = Location(module, line_of(file, line) if file else "")
            self._locations[place] = location
        return location

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        location = self.last = self.location()
        if getattr(function, "__name__", "") not in _QUESTIONS:
            self.calls.append((function, location))
        if function in _AUTOGRAD:
            self.meets_autograd = True
        if not (_holds_no_real(args) and _holds_no_real(kwargs.values())):
            self._note_foreign(function, args, kwargs, location)
        if torch.get_default_dtype() != self.default_dtype:
            # Library ops ask for it when they run, and then it is the one of the call.
            raise UnsupportedError(
                "forward changes the default dtype",
                where=location_text(location),
                hint="give the dtype to the functions that make the tensors",
            )
        if function == _SETS_DATA:
            raise UnsupportedError(
                "forward gives a tensor other memory (`x.data = ...`), which no trace sees",
                where=location_text(location),
                hint="use the new tensor itself, or copy into the old one (x.copy_)",
            )
        if function in _TO_NUMPY and not list(_real_tensors(args[:1])):
            raise data_dependent("Tensor.numpy()", location)
        meta = notes.get_current_meta()
        outer = meta.get("custom", _ABSENT)
        # As `notes.annotate` does it, which is written for calls that are fewer and slower.
        meta["custom"] = {"module": location.module, "line": location.line}
        try:
            if self.script is None or self.script.learner.learning:
                return self._call(function, args, kwargs)
            return self.script.call(function, args, kwargs, location, self._drawing)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise data_dependent(str(error.func), location) from error
        except RudagraphError as error:
            if not error.where:
                error.where = location_text(location)
            raise
        except Exception as error:
            # Forward may catch it; if not, the capture says what was called on what.
            if self.refused is None or self.refused.error is not error:
                given = (*args, *kwargs.values())
                self.refused = refused(error, function, given, self.names, location)
            raise
        finally:
            if outer is _ABSENT:
                meta.pop("custom", None)
            else:
                meta["custom"] = outer

    def play(
        self, call: Call, location: Location, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call of a script as forward would have, at this place."""
        self._played = location
        try:
            if call.grad == torch.is_grad_enabled():
                return call.function(*args, **kwargs)
            with torch.set_grad_enabled(call.grad):
                return call.function(*args, **kwargs)
        finally:
            self._played = None

    def _drawing(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, int]:
        """What a call gives, and from how many random streams it draws."""
        before = self.streams.count
        return self._call(function, args, kwargs), self.streams.count - before

    def _call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        replacement = REPLACEMENTS.get(function)
        if replacement is None:
            result = function(*args, **kwargs)
            if function is torch.rand and result.dim() == 0:
                return UniformDraw(location_text(self.location()))
            return result
        args, kwargs = cast_arguments(function, args, kwargs)
        if function in NESTED:
            with self:
                result = replacement(self.streams, *args, **kwargs)
        else:
            result = replacement(self.streams, *args, **kwargs)
        return function(*args, **kwargs) if result is NotImplemented else result

    def _note_foreign(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        location: Location,
    ) -> None:
        for index, tensor in _real_tensors((*args, *kwargs.values())):
            if tensor.requires_grad:
                raise UnsupportedError(
                    f"a tensor of shape {list(tensor.shape)} that requires grad is used, but it "
                    "is neither a parameter of the module nor an argument",
                    where=location_text(location),
                    hint="register it as a parameter or pass it as an argument",
                )
            if index == 0 and _writes(function):
                raise UnsupportedError(
                    f"a tensor of shape {list(tensor.shape)} that belongs neither to the module "
                    "nor to its arguments is changed in place",
                    where=location_text(location),
                    hint="register it as a buffer or pass it as an argument",
                )
            self.outer[id(tensor)] = tensor


# What PyTorch calls a read of one number is nothing that stands on the user's line.
_SPOKEN = {
    "aten._local_scalar_dense.default": "aten._local_scalar_dense.default "
    "(item(), tolist(), float(), or `if` or assert on a tensor)",
}
_SETS_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]
# Change what is differentiated, in ways that neither ops nor tensors of forward show at its end.
_AUTOGRAD: frozenset[Any] = frozenset(
    (
        torch.autograd.grad,
        torch.autograd.backward,
        torch.Tensor.grad_fn.__get__,  # type: ignore[union-attr]
        torch.Tensor.requires_grad_,
        torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    )
)
_TO_NUMPY: tuple[Any, ...] = (torch.Tensor.numpy, torch.Tensor.__array__)


def data_dependent(operator: str, location: Location) -> UnsupportedError:
    """The error for a value or shape that depends on the numbers in a tensor."""
    operator = _SPOKEN.get(operator, operator)
    return UnsupportedError(
        f"{operator} needs the numbers in a tensor while the step is captured: "
        "a shape or a branch depends on data",
        where=location_text(location),
        hint="compute it outside the step and pass it as an argument, or write it with "
        "torch.where, masks and fixed shapes",
    )


def _holds_no_real(values: Iterable[Any]) -> bool:
    """Whether it shows at the types alone, as it mostly does, that there is no real tensor."""
    return _MAY_HOLD_REAL.isdisjoint(map(type, values))


def _real_tensors(values: tuple[Any, ...]) -> Iterator[tuple[int, torch.Tensor]]:
    """Tensors that hold real data, with the position of the argument they are in."""
    for index, value in enumerate(values):
        if type(value) in _PLAIN_TENSORS:
            if not _is_traced(value):
                yield index, value
        elif type(value) in _FOLLOWED:
            for _, tensor in _real_tensors(tuple(value)):
                yield -1, tensor


def _is_traced(tensor: torch.Tensor) -> bool:
    return (
        isinstance(tensor, FakeTensor)
        or torch._is_functional_tensor(tensor)
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _writes(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    return name == "__setitem__" or (
        (name.endswith("_") and not name.endswith("__"))
        or (name.startswith("__i") and name != "__invert__")
    )
