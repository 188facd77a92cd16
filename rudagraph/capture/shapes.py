"""Tensors of the fast trace, and the results of ATen calls on them, known ones from memory.

Input: a call on traced tensors. Output: what the fake tensor mode gives, as traced tensors.
Invariant: a call is answered from memory only where the same operator has met the same numbers and
the same shapes, strides, dtypes and devices before, and each of its results was new or a view of
its first operand. Equal layers ask the same questions, and PyTorch takes long over each.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

_PLAIN = frozenset(
    (
        bool,
        int,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    )
)


_MEMORIES = itertools.count()


class Layout(NamedTuple):
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @property
    def extent(self) -> int:
        """Elements of the smallest memory that holds it."""
        if 0 in self.shape:
            return self.offset
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return self.offset + last + 1


class Traced(torch.Tensor):
    """A tensor without data. Where a FakeTensor is asked in Python for its device, this one is not.

    Its layout never changes: what would change it is not recorded. Tensors of equal `memory` lie in
    the same. `fake` is the tensor to PyTorch's fake tensor mode, once that has been asked about it.
    """

    fake: FakeTensor | None
    form: Layout
    memory: int
    # In a script: the call that makes it, and which of its results it is; of an input which.
    maker: Any
    place: int
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, layout: Layout, storage_bytes: int | None = None) -> Traced:
        made: Traced = torch.Tensor._make_wrapper_subclass(
            cls,
            layout.shape,
            strides=layout.strides,
            storage_offset=layout.offset,
            dtype=layout.dtype,
            device=layout.device,
            storage_size=storage_bytes,
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        made.fake, made.form, made.memory = None, layout, next(_MEMORIES)
        made.maker, made.place = None, 0
        return made

    @classmethod
    def like(cls, example: torch.Tensor) -> Traced:
        """In memory of its own: aliases among inputs are our business, not the trace's."""
        made = cls(layout_of(example), example.untyped_storage().nbytes())
        made.requires_grad_(example.requires_grad)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise TypeError(f"{function} is called outside the trace")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Traced({list(self.shape)}, {self.dtype})"

    def lie_in(self, owner: Traced) -> None:
        """Share the memory of another."""
        torch._functionalize_unsafe_set(self, owner)
        self.memory = owner.memory


@dataclass(frozen=True, slots=True)
class _Known:
    """The results of a call; those that are views lie in the memory of its first operand."""

    container: type | None  # None where the result is the one tensor itself
    layouts: tuple[Layout | None, ...]
    is_view: tuple[bool, ...]


class Shapes:
    """Answers calls for one fake tensor mode, which is active when it is asked."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._known: dict[Hashable, _Known] = {}

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the call."""
        key: Hashable
        try:
            # The default dtype is what integers become where they are divided.
            described = _described(args), _described(tuple(kwargs.items()))
            key = (id(function), torch.get_default_dtype(), *described)
        except TypeError:
            key = None
        known = self._known.get(key) if key is not None else None
        if known is not None:
            return _again(known, args)
        operands: dict[int, Traced] = {}  # by the memory of their fakes
        given = self._faked(args, operands)
        named = {name: self._faked(value, operands) for name, value in kwargs.items()}
        owners = list(operands.values())
        result = _traced(function(*given, **named), operands)
        if key is not None:
            first = args[0] if function.is_view and args else None
            learnt = _learnt(result, first, owners)
            if learnt is not None:
                self._known[key] = learnt
        return result

    def lift(self, tensor: torch.Tensor) -> Traced:
        """A tensor with data as a traced one, whose fake knows the numbers if there are any."""
        if not tensor.numel():
            return Traced(layout_of(tensor))
        traced: Traced = _traced(torch.ops.aten.lift_fresh.default(tensor), {})
        return traced

    def _faked(self, value: Any, operands: dict[int, Traced]) -> Any:
        if isinstance(value, Traced):
            if value.fake is None:
                value.fake = self._fake(value.form)
            operands.setdefault(_memory(value.fake), value)
            return value.fake
        if isinstance(value, (tuple, list)):
            return type(value)(self._faked(item, operands) for item in value) if value else value
        return value

    def _fake(self, layout: Layout) -> FakeTensor:
        with in_kernel_invocation_manager(self.mode):
            whole = torch.empty(layout.extent, dtype=layout.dtype, device="meta")
            part = whole.as_strided(layout.shape, layout.strides, layout.offset)
        return FakeTensor(self.mode, part, layout.device)


def layout_of(tensor: torch.Tensor) -> Layout:
    """TypeError for what lies in memory in other ways than by strides."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise TypeError
    return Layout(
        tuple(tensor.shape),
        tensor.stride(),
        int(tensor.storage_offset()),
        tensor.dtype,
        tensor.device,
    )


def _traced(result: Any, operands: dict[int, Traced]) -> Any:
    """Fake results as traced ones, in the memory of the operands that they share."""
    if isinstance(result, (tuple, list)):
        return type(result)(_traced(item, operands) for item in result)
    if not isinstance(result, FakeTensor):
        return result
    owner = operands.get(_memory(result))
    if owner is not None and owner.fake is result:
        return owner
    traced = Traced(layout_of(result))
    traced.fake = result
    if owner is None:
        operands[_memory(result)] = traced
    else:
        traced.lie_in(owner)
    return traced


def _learnt(result: Any, first: Any, operands: list[Traced]) -> _Known | None:
    """What can be said of a next call; None where a result is not new, nor a view of `first`."""
    container = type(result) if isinstance(result, (tuple, list)) else None
    owners = {operand.memory: operand for operand in operands}
    layouts: list[Layout | None] = []
    is_view: list[bool] = []
    for part in (result,) if container is None else result:
        if part is None:
            layouts.append(None)
            is_view.append(False)
            continue
        if not isinstance(part, Traced) or any(part is operand for operand in operands):
            return None
        if part.fake is None or part.fake.constant is not None:
            return None
        layouts.append(part.form)
        owner = owners.setdefault(part.memory, part)
        is_view.append(owner is not part)
        if owner is not part and not (isinstance(first, Traced) and first.memory == part.memory):
            return None
    return _Known(container, tuple(layouts), tuple(is_view))


def _again(known: _Known, args: tuple[Any, ...]) -> Any:
    parts: list[Traced | None] = []
    for layout, is_view in zip(known.layouts, known.is_view, strict=True):
        part = None if layout is None else Traced(layout)
        if part is not None and is_view:
            part.lie_in(args[0])
        parts.append(part)
    return parts[0] if known.container is None else known.container(parts)


def _described(value: Any) -> Hashable:
    """All that a result can depend on; TypeError where that is more than can be said."""
    kind = type(value)
    if isinstance(value, Traced):
        if value.fake is not None and value.fake.constant is not None:
            raise TypeError
        return value.form
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return repr(value)  # in which 0.0 and -0.0 differ
    if isinstance(value, (tuple, list)):
        return tuple([_described(item) for item in value])
    raise TypeError


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
