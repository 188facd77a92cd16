"""Notices behaviour that changed after compile: replaced methods, functions, dtypes and enums.

A contract names plain values; what a model *does* are objects without a text. They are remembered
when a step is bound to its model and compared by identity at each call. Invariant: a model whose
forward, or whose functions kept as attributes, are others than when the step was bound never fits.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

_ABSENT = object()
# What nn.Module keeps in an instance for itself.
_OWN = frozenset(nn.Module().__dict__)
# Told apart by what they hold.
_BY_CONTENT = (list, tuple, dict, set, frozenset, deque, np.ndarray, np.generic)
# What forward may call or choose by, and what compares by identity or as a number does.
OBJECTS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    type,
    enum.Enum,
    torch.dtype,
    torch.device,
    range,
    slice,
)
# Values of exactly these types, most of all that a module holds, are none of them.
CONTENTS = frozenset((bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set))
_NO_OBJECTS = CONTENTS | {OrderedDict}
# Their classes have hundreds of methods, and nobody changes one but forward.
_LIBRARIES = frozenset(("torch", "transformers"))
_MEMBERS = (*OBJECTS, bool, int, float, complex, str, bytes, property, staticmethod, classmethod)
_KNOWN = (torch.Tensor, nn.Module, type(None), *_MEMBERS, *_BY_CONTENT)


def is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """`isinstance`, which asks the value for its class once for each kind.

    Hugging Face's configurations, which each module holds, answer that in Python.
    """
    kind = type(value)
    if issubclass(kind, kinds):
        return True
    said = getattr(value, "__class__", kind)
    return said is not kind and isinstance(said, type) and issubclass(said, kinds)


def behaviour_of(table: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Functions, classes, dtypes and the like in an instance dictionary."""
    return tuple(
        [
            (name, value)
            for name, value in table.items()
            if type(value) not in _NO_OBJECTS and is_one_of(value, OBJECTS)
        ]
    )


class Behaviour:
    """The methods of a model's modules as they were when this was made."""

    def __init__(self, owners: Iterable[tuple[str, Any, dict[str, Any]]]) -> None:
        owners = list(owners)
        # Objects of other kinds must stay the objects that they are.
        self._held = [
            (path, table, name, value)
            for path, _, table in owners
            for name, value in table.items()
            if type(value) not in _NO_OBJECTS and name not in _OWN and _is_other(value)
        ]
        # `if self.bias is not None` is decided at compile.
        self._absent = [
            (path, table, name)
            for path, owner, _ in owners
            if isinstance(owner, nn.Module)
            for table in (owner._parameters, owner._buffers)
            for name, value in table.items()
            if value is None
        ]
        self._paths = [path for path, _, _ in owners]
        self._kinds = [type(owner) for _, owner, _ in owners]
        self._tables = [table for _, _, table in owners]
        self.objects = [behaviour_of(table) for table in self._tables]
        self._total = sum(map(len, self._tables))
        self._names = [frozenset(table) for table in self._tables]
        self._watch_classes()

    def _watch_classes(self) -> None:
        """Classes with the same members share one getter over them, run in C."""
        groups: dict[tuple[str, ...], list[type]] = {}
        for kind in dict.fromkeys(self._kinds):
            if names := _members(kind):
                groups.setdefault(names, []).append(kind)
        self._classes = groups
        self._members = [(operator.attrgetter(*names), kinds) for names, kinds in groups.items()]
        self._wanted = [[*map(get, kinds)] for get, kinds in self._members]

    def classes_fit(self) -> bool:
        """Whether the methods of classes are the same."""
        try:
            return [[*map(get, kinds)] for get, kinds in self._members] == self._wanted
        except AttributeError:
            return False

    def instances_fit(self) -> bool:
        """Whether no new attribute of an instance hides what its class says.

        Functions that were kept as attributes are compared with the contract's values.
        """
        if any(table.get(name) is not value for _, table, name, value in self._held):
            return False
        if any(table.get(name) is not None for _, table, name in self._absent):
            return False
        return sum(map(len, self._tables)) == self._total or self._only_grew()

    @property
    def tables(self) -> list[dict[str, Any]]:
        """Dictionaries that `instances_fit` looks into besides those of attributes."""
        return list({id(table): table for _, table, _ in self._absent}.values())

    def _only_grew(self) -> bool:
        """New attributes are fine, unless one hides what the class says."""
        if next(self._hidden(), None):
            return False
        self._total = sum(map(len, self._tables))
        self._names = [frozenset(table) for table in self._tables]
        return True

    def _hidden(self) -> Iterator[tuple[str, str]]:
        for path, kind, table, names in zip(
            self._paths, self._kinds, self._tables, self._names, strict=True
        ):
            if len(table) == len(names):
                continue
            for name in table.keys() - names:
                if hasattr(kind, name):
                    yield path, name

    def changes(self) -> Iterator[tuple[str, str, str]]:
        """Path and name of each change, and what it is now, in words."""
        for path, name in self._hidden():
            yield path, name, "was set on the instance"
        for path, table, name, value in self._held:
            if table.get(name) is not value:
                yield path, name, "is another object than when the step was compiled"
        for path, table, name in self._absent:
            if table.get(name) is not None:
                yield path, name, "was None when the step was compiled"
        for path, objects, table in zip(self._paths, self.objects, self._tables, strict=True):
            for name, before in objects:
                now = table.get(name, _ABSENT)
                if now is _ABSENT:
                    yield path, name, f"is gone, it was {_spoken(before)}"
                elif now != before:
                    words = f"is {_spoken(now)}, the step was compiled for {_spoken(before)}"
                    yield path, name, words
        for (names, kinds), wanted in zip(self._classes.items(), self._wanted, strict=True):
            for kind, values in zip(kinds, wanted, strict=True):
                befores = (values,) if len(names) == 1 else values
                for name, before in zip(names, befores, strict=True):
                    if getattr(kind, name, _ABSENT) != before:
                        yield kind.__qualname__, name, "was changed on the class"


def _is_other(value: Any) -> bool:
    """Neither a tensor, nor plain, nor a container, nor compared by value."""
    return not is_one_of(value, _KNOWN)


def _members(kind: type) -> tuple[str, ...]:
    """What is watched of a module's class: its own methods and numbers, and forward in any case."""
    if not issubclass(kind, nn.Module):
        return ()
    names = ["forward"]
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in _LIBRARIES:
            continue
        names += [
            name
            for name, value in vars(base).items()
            if isinstance(value, _MEMBERS) and not (name.startswith("__") and name.endswith("__"))
        ]
    return tuple(dict.fromkeys(names))


def _spoken(value: Any) -> str:
    if isinstance(value, types.BuiltinFunctionType):  # PyTorch's carry a class nobody knows
        return value.__name__
    name: str | None = getattr(value, "__qualname__", None)
    return name or repr(value)
