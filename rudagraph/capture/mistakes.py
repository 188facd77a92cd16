"""A call that PyTorch refuses while forward is captured, told in the user's terms.

Input: the exception, and what the capture was doing. Output: a UsageError with the user's line, the
function and the tensors it was given. Invariant: exceptions that the user's own code raises stay
what they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from rudagraph.capture.nodes import Node, map_nodes
from rudagraph.capture.places import is_users, line_of, location_text
from rudagraph.errors import RudagraphError, UsageError
from rudagraph.ir.graph import Location
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import TensorType

# What PyTorch raises for a wrong argument; anything else is somebody's program error.
_MISTAKES = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
HINT = (
    "mend the shapes and dtypes on that line; called on this batch, the model itself should fail "
    "there too"
)
_OUTSIDE = "the model or its loss, in no line of yours"
_MOST = 6  # tensors that a message shows


@dataclass(frozen=True)
class Refused:
    """The call of PyTorch that failed last: the function, its tensors in words, the place."""

    error: BaseException
    function: str
    tensors: str
    location: Location


def refused(
    error: BaseException,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    names: dict[int, str],
    location: Location,
) -> Refused:
    """Note a failed call; `names` says what a tensor is by identity."""
    name = str(getattr(function, "__name__", function)).strip("_")
    words = [
        " ".join(filter(None, (names.get(id(tensor), ""), described(tensor))))
        for tensor in _tensors(arguments)
    ]
    return Refused(error, name, ", ".join(words[:_MOST]), location)


def explained(
    error: Exception, note: Refused | None, boundary: CodeType, module: str
) -> UsageError | None:
    """The error to show instead, if PyTorch raised this one in a forward below `boundary`."""
    if isinstance(error, RudagraphError) or not isinstance(error, _MISTAKES):
        return None
    if note is not None and note.error is error:
        given = f"({note.tensors})" if note.tensors else ""
        what = f"{note.function}{given} fails: {_sentence(error)}"
        return UsageError(what, location_text(note.location) or _OUTSIDE, HINT)
    files, inside, line = [], False, ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        inside = inside or code is boundary
        files.append(code.co_filename)
        if inside and is_users(code.co_filename):
            line = line_of(code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    if not line or is_users(files[-1]):
        return None
    return UsageError(
        f"forward fails: {_sentence(error)}", location_text(Location(module, line)), HINT
    )


def refusal_of(node: Node) -> str | None:
    """Why PyTorch itself would not run this op on tensors of these types; None if it would.

    Shapes and dtypes are traced without looking at every rule, so this runs the op on zeros.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    arguments, keywords = map_nodes((node.args, node.kwargs), _zeros)
    try:
        with torch.no_grad():
            target(*arguments, **keywords)
    except Exception as error:
        return _sentence(error)
    return None


def _zeros(node: Node) -> Any:
    """Zeros in the memory of one: nothing large is allocated for them."""
    fake = node.traced
    zero = torch.zeros((), dtype=fake.dtype)
    return zero.expand(fake.shape)


def described(tensor: torch.Tensor) -> str:
    """float32[2, 5]."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def spoken(type: TensorType) -> str:
    """The same of a type of the IR."""
    return f"{str(to_torch_dtype(type.dtype)).removeprefix('torch.')}{list(type.shape)}"


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from _tensors(value)


def _sentence(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Fake tensors log a traceback of every call they refuse; the error says it better."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
