"""Put traced tensors in place of a module's own for one run of forward, and see what it changed.

Input: a module, its inputs and one traced tensor per input. Invariant: afterwards the module is
as it was, whatever forward did; a change of Python state is refused, a tensor assigned to a
buffer becomes an update of that buffer.
"""

from __future__ import annotations

import inspect
import operator
import random
import re
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from rudagraph.capture.inputs import DEEPEST, MODULE_FIELDS, Inputs, View
from rudagraph.capture.places import short_path
from rudagraph.errors import UnsupportedError

_ABSENT = object()
_CONTAINERS = (list, dict, set)
_HOLD_NOTHING = frozenset((bool, int, float, str, type(None)))
# What recurrent modules of PyTorch keep of their own weights, and renew when they change.
_CACHES = frozenset({"_flat_weights", "_flat_weight_refs"})


@dataclass
class _Snapshot:
    """One module's instance dictionary, and the contents of the containers in it."""

    path: str
    module: nn.Module
    fields: dict[str, Any]
    contents: list[tuple[Any, Any, str]]  # container, shallow copy or (), attribute


class _Snapshots:
    """All modules, and a quick answer where none of them was touched.

    What their dictionaries and containers hold is kept once more, end to end, so that whether each
    is the very object it was is asked in C. A no says nothing yet: equal numbers are as good. Most
    containers are tables of hooks that nobody has registered, and have to stay empty.
    """

    def __init__(self, model: nn.Module) -> None:
        self.all = [_take(path, module) for path, module in model.named_modules()]
        self._modules = [snapshot.module for snapshot in self.all]
        containers = [c for snapshot in self.all for c, _, _ in snapshot.contents]
        self._empty = [container for container in containers if not container]
        self._containers = [container for container in containers if container]
        self._lengths, self._parts = self._now()

    def __iter__(self) -> Iterator[_Snapshot]:
        return iter(self.all)

    def untouched(self) -> bool:
        """Whether everything is what and where it was."""
        if any(self._empty):
            return False
        lengths, parts = self._now()
        return lengths == self._lengths and all(map(operator.is_, parts, self._parts))

    def _now(self) -> tuple[list[int], list[Any]]:
        containers = [*map(vars, self._modules), *self._containers]
        tables = [container for container in containers if isinstance(container, dict)]
        keys_and_items = chain.from_iterable(containers)
        values = chain.from_iterable(map(dict.values, tables))
        return [*map(len, containers)], [*keys_and_items, *values]


@dataclass
class _Placed:
    """A traced tensor, or a container of some, that stands in for the module's own."""

    table: MutableMapping[str, Any]
    name: str
    path: str
    original: Any
    stand_in: Any
    contents: Any  # shallow copy where the stand-in is a container
    input: int | None


class ModuleState:
    """What a module holds before the trace; restores it and tells what changed."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.original = _Snapshots(model)
        # From where the next run of forward starts, and why that is not the original state.
        self.snapshots = self.original
        self.pending: UnsupportedError | None = None
        # Path and name of what the first run set, and the second found as it wants it.
        self.renewed: frozenset[tuple[str, str]] = frozenset()
        self.draws = _draws()

    def restore(self) -> None:
        """The module as it was before the trace."""
        self.snapshots = self.original
        self._return()

    def _return(self) -> None:
        for snapshot in () if self.snapshots.untouched() else self.snapshots:
            if not _same(snapshot.module.__dict__, snapshot.fields):
                _fill(snapshot.module.__dict__, snapshot.fields)
            for container, copy, _ in snapshot.contents:
                if not _same(container, copy):
                    _fill(container, copy)
        if _draws() != self.draws:
            random.setstate(self.draws[0])
            np.random.set_state(self.draws[1])

    @contextmanager
    def holding(self, inputs: Inputs, traced: list[torch.Tensor]) -> Iterator[Callable[[], None]]:
        """Run with traced tensors in place; call what is yielded once forward has returned."""
        self._return()
        try:
            placed = self._place(inputs, traced)
            yield lambda: self._settle(placed, inputs)
        finally:
            self._return()

    def _place(self, inputs: Inputs, traced: list[torch.Tensor]) -> list[_Placed]:
        views = {key: _view(traced, view) for key, view in inputs.views.items()}

        def change(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in views:
                return views[id(tensor)]
            index = inputs.index.get(id(tensor))
            return tensor if index is None else traced[index]

        placed: list[_Placed] = []
        for snapshot in self.snapshots:
            module = snapshot.module
            for table in (module._parameters, module._buffers, module.__dict__):
                skipped = MODULE_FIELDS if table is module.__dict__ else ()
                for name, value in list(table.items()):
                    if type(value) in _HOLD_NOTHING or name in skipped:
                        continue
                    stand_in = _map(value, change)
                    if stand_in is value:
                        continue
                    path = f"{snapshot.path}.{name}" if snapshot.path else name
                    index = inputs.index.get(id(value))
                    contents = None if isinstance(stand_in, torch.Tensor) else _copy(stand_in)
                    placed.append(_Placed(table, name, path, value, stand_in, contents, index))
                    table[name] = stand_in
        return placed

    def _settle(self, placed: list[_Placed], inputs: Inputs) -> None:
        """Turn tensors assigned to buffers into writes; refuse every other change."""
        updates: list[tuple[torch.Tensor, torch.Tensor]] = []
        for item in placed:
            value = item.table.get(item.name)
            if value is item.stand_in:
                if item.contents is None or _same(value, item.contents):
                    item.table[item.name] = item.original
            elif item.input is not None and isinstance(value, torch.Tensor):
                old = item.stand_in
                fits = (value.shape, value.dtype) == (old.shape, old.dtype)
                if not fits or value.requires_grad or old.requires_grad:
                    raise UnsupportedError(
                        f"forward assigns {item.path} a tensor that does not fit what it held",
                        where=item.path,
                        hint="assign a detached tensor of the same shape and dtype, "
                        "or return the value instead",
                    )
                updates.append((old, value.detach().clone()))
                item.table[item.name] = item.original
        with torch.no_grad():
            for old, value in updates:
                old.copy_(value)
        self._compare(inputs)

    def _compare(self, inputs: Inputs) -> None:
        """Refuse changes, but for attributes that a first run sets and a second leaves alone."""
        if _draws() != self.draws:
            raise UnsupportedError(
                "forward draws from the random module of Python or NumPy: it would be fixed",
                where="forward",
                hint="draw outside the step and pass the number as an argument",
            )
        for snapshot in () if self.snapshots.untouched() else self.snapshots:
            name = _changed_name(snapshot, inputs.derived)
            if not name:
                continue
            error = _changed_error(snapshot, name)
            if self.snapshots is not self.original:
                raise error
            self.pending, self.snapshots = error, _Snapshots(self.model)
            self.renewed = frozenset(_differences(self.original, self.snapshots))
            return


def _differences(before: _Snapshots, after: _Snapshots) -> Iterator[tuple[str, str]]:
    for first, second in zip(before, after, strict=False):
        contents = {id(container): copy for container, copy, _ in second.contents}
        for name in {**first.fields, **second.fields}.keys() - MODULE_FIELDS:
            if not _equal(first.fields.get(name, _ABSENT), second.fields.get(name, _ABSENT)):
                yield first.path, name
        for container, copy, name in first.contents:
            if name not in MODULE_FIELDS and not _same(contents.get(id(container), copy), copy):
                yield first.path, name


def _draws() -> tuple[Any, Any]:
    """The states of the random generators of Python and NumPy, comparable."""
    name, words, *rest = np.random.get_state()
    return random.getstate(), (name, tuple(np.asarray(words).tolist()), *rest)


def _take(path: str, module: nn.Module) -> _Snapshot:
    contents: list[tuple[Any, Any, str]] = []
    for name, value in module.__dict__.items():
        if isinstance(value, _CONTAINERS):
            _containers(value, name, contents, 0)
    return _Snapshot(path, module, dict(module.__dict__), contents)


def _containers(value: Any, name: str, found: list[tuple[Any, Any, str]], depth: int) -> None:
    if not isinstance(value, _CONTAINERS) or depth > DEEPEST:
        return
    if not value:
        found.append((value, (), name))
        return
    found.append((value, _copy(value), name))
    if name == "_modules":
        return
    for part in value.values() if isinstance(value, dict) else value:
        _containers(part, name, found, depth + 1)


def _copy(container: Any) -> Any:
    if isinstance(container, dict):
        return dict(container)
    return set(container) if isinstance(container, set) else list(container)


def _fill(container: Any, copy: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(copy)
    else:
        container.update(copy)


def _same(container: Any, copy: Any) -> bool:
    """Whether a container holds the very objects, or equal plain values, that it held."""
    if len(container) != len(copy):
        return False
    if isinstance(copy, set):
        return bool(container == copy)
    if isinstance(copy, dict):
        return all(
            key in container and _equal(container[key], value) for key, value in copy.items()
        )
    return all(_equal(a, b) for a, b in zip(container, copy, strict=True))


def _equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    plain = (bool, int, float, str, bytes, tuple, torch.Size)
    if type(left) is not type(right) or not isinstance(left, plain):
        return False
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


def _changed_name(snapshot: _Snapshot, derived: set[int]) -> str:
    """The first attribute that differs, leaving out what forward computes anew each time."""
    now = snapshot.module.__dict__
    caches = _CACHES if isinstance(snapshot.module, nn.RNNBase) else frozenset()
    for name, value in snapshot.fields.items():
        if id(value) in derived or name in caches:
            continue
        if name not in now or not _equal(now[name], value):
            return name
    for name in now:
        if name not in snapshot.fields:
            return name
    for container, copy, name in snapshot.contents:
        if name not in caches and not _same(container, copy):
            return _changed_key(container, copy) if name in MODULE_FIELDS else name
    return ""


def _changed_key(container: Any, copy: Any) -> str:
    if not isinstance(container, dict):
        return "hooks"
    before = dict(copy)
    for key in {**before, **container}:
        if key not in container or key not in before or not _equal(container[key], before[key]):
            return str(key)
    return ""


def _changed_error(snapshot: _Snapshot, name: str) -> UnsupportedError:
    path = f"{snapshot.path}.{name}" if snapshot.path else name
    line = _assignment(type(snapshot.module), name)
    return UnsupportedError(
        f"forward changes the Python attribute {path}: a compiled step would not",
        where=f"{path} ({line})" if line else path,
        hint="make it a tensor buffer changed in place (register_buffer), or change it outside "
        "the step; if only the first call sets it, call the model once before compile()",
    )


def _assignment(kind: type, name: str) -> str:
    """The first line of the class that seems to assign the attribute."""
    try:
        lines, start = inspect.getsourcelines(kind.forward)  # type: ignore[attr-defined]
        file = inspect.getsourcefile(kind)
    except (OSError, TypeError, AttributeError):
        return ""
    pattern = re.compile(rf"\.{re.escape(name)}\b\s*(\[.*\]\s*)?([-+*/]?=[^=]|\.\w+\()")
    for offset, line in enumerate(lines):
        if file and pattern.search(line):
            return f"{short_path(file)}:{start + offset}"
    return ""


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor], depth: int = 0) -> Any:
    """The value with tensors replaced; the same object where there is nothing to replace."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if depth >= DEEPEST or type(value) not in (list, tuple, dict):
        return value
    if isinstance(value, dict):
        mapped = {key: _map(part, change, depth + 1) for key, part in value.items()}
        return value if all(mapped[key] is value[key] for key in value) else mapped
    parts = [_map(part, change, depth + 1) for part in value]
    unchanged = all(new is old for new, old in zip(parts, value, strict=True))
    return value if unchanged else type(value)(parts)


def _view(traced: list[torch.Tensor], view: View) -> torch.Tensor:
    """The view over the traced base; a transposition stays one, so its gradient stays simple."""
    base = traced[view.base]
    order = sorted(range(len(view.shape)), key=lambda axis: -view.strides[axis])
    if view.offset == 0 and base.is_contiguous() and len(order) == base.dim():
        inverse = [order.index(axis) for axis in range(len(order))]
        candidate = base.permute(inverse)
        if (tuple(candidate.shape), candidate.stride()) == (view.shape, view.strides):
            return candidate
    return base.as_strided(view.shape, view.strides, base.storage_offset() + view.offset)
