"""The attributes that forward may have read, and a quick comparison of many of them.

Input: a model. Output: a dictionary for each module, and for each object in one that is there to be
read; `Getters` compares named values in them. Invariant: values that are equal and of one type fit.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rudagraph.ir.contract import Plain
from rudagraph.runtime.behaviour import CONTENTS, OBJECTS, is_one_of
from rudagraph.runtime.skeletons import PLAIN, is_plain

# What nn.Module keeps in an instance for itself; the rest of __dict__ is the user's.
INTERNAL = frozenset(nn.Module().__dict__) | {"_is_full_backward_hook"}
# Hugging Face's settings for sampling, and its record of warnings given: no step reads them.
NO_PART_OF_FORWARD = frozenset(("generation_config", "warnings_issued"))
_NO_CONFIGURATIONS = (nn.Module, torch.Tensor, *OBJECTS)
_DEEPEST = 4  # objects in objects


def attribute_tables(model: nn.Module) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Path, owner and attribute dictionary of each module, and of configuration objects in them.

    A configuration is an object with plain attributes that is no module, such as Hugging Face's
    `model.config`, a dataclass or an argparse.Namespace; forward reads it as it reads the module's
    own attributes.
    """
    seen: set[int] = set()
    for path, module in model.named_modules():
        yield path, module, module.__dict__
        yield from _configurations(path, module.__dict__, seen, 0)


def _configurations(
    path: str, table: dict[str, Any], seen: set[int], depth: int
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for name, value in table.items():
        # Cheap questions first: all layers hold the same one, and PyTorch's own fields.
        if type(value) in CONTENTS or id(value) in seen or name in INTERNAL:
            continue
        if name in NO_PART_OF_FORWARD or not _is_configuration(name, value):
            continue
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict) or depth >= _DEEPEST:
            continue
        seen.add(id(value))
        inner = f"{path}.{name}" if path else name
        yield inner, value, attributes
        yield from _configurations(inner, attributes, seen, depth + 1)


def _is_configuration(name: str, value: Any) -> bool:
    """An object that is named as one, is made to be one, or holds nothing but plain values."""
    if is_one_of(value, _NO_CONFIGURATIONS):
        return False
    if name.endswith("config") or isinstance(value, SimpleNamespace):
        return True
    if dataclasses.is_dataclass(value):
        return True
    attributes = getattr(value, "__dict__", None)
    return isinstance(attributes, dict) and bool(attributes) and is_plain(attributes)


def plain_attributes(attributes: dict[str, Any]) -> tuple[tuple[str, Plain], ...]:
    """The user's own scalars in an instance dictionary, and copies of the containers of some."""
    return tuple(
        (name, value if isinstance(value, PLAIN) else copy.deepcopy(value))
        for name, value in attributes.items()
        if name not in INTERNAL and name not in NO_PART_OF_FORWARD and is_plain(value)
    )


class Getters:
    """Named values in many dictionaries, and what they should be.

    Dictionaries with the same names share one getter, run over them in C.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], int] = {}  # of the names in both lists
        self._getters: list[tuple[Callable[..., Any], list[dict[str, Any]]]] = []
        self._wanted: list[list[Any]] = []

    def add(self, table: dict[str, Any], wanted: dict[str, Any]) -> None:
        if not wanted:
            return
        names, values = tuple(wanted), tuple(wanted.values())
        place = self._places.setdefault(names, len(self._getters))
        if place == len(self._getters):
            self._getters.append((operator.itemgetter(*names), []))
            self._wanted.append([])
        self._getters[place][1].append(table)
        self._wanted[place].append(values[0] if len(values) == 1 else values)

    def fit(self) -> bool:
        try:
            return [[*map(get, tables)] for get, tables in self._getters] == self._wanted
        except (KeyError, RuntimeError, ValueError, TypeError):  # gone, or a tensor or array now
            return False

    def exactly(self) -> bool:
        """Of values that are equal, whether they are of the same type and sign: 2 is not 2.0."""
        return all(
            _same_kind(now, wanted)
            for (get, tables), expected in zip(self._getters, self._wanted, strict=True)
            for table, wanted in zip(tables, expected, strict=True)
            if (now := get(table)) is not wanted
        )


def _same_kind(now: Any, wanted: Any) -> bool:
    if type(now) is not type(wanted):
        return False
    if isinstance(now, tuple):  # of the values of one dictionary, or of a tuple in it
        return all(map(_same_kind, now, wanted))
    return not isinstance(now, (float, complex)) or repr(now) == repr(wanted)
