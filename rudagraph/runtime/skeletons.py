"""Notices changes inside attributes that hold more than plain values: lists of tensors and numbers.

A tensor in a container is looked up anew at each call, so its numbers may change; how many there
are, what stands beside them, and which modules and functions they are mixed with may not. Input:
attribute tables. Invariant: a model whose containers are built otherwise than before never fits.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from rudagraph.runtime.behaviour import OBJECTS

CONTAINERS = (list, dict, set, frozenset, OrderedDict, defaultdict, deque)
PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEEPEST = 4
_TENSOR = "a tensor"
_MOST_BYTES = 1 << 16  # of a NumPy array whose numbers are compared at each call


class Skeletons:
    """The attributes of a model that hold more than plain values."""

    def __init__(
        self,
        tables: Iterable[tuple[str, Any, dict[str, Any]]],
        known: frozenset[str],
        renewed: set[tuple[str, str]],
    ) -> None:
        self._watched = [
            (f"{path or 'model'}.{name}", table, name, skeleton(value))
            for path, _, table in tables
            for name, value in table.items()
            if type(value) not in PLAIN
            and name not in known
            and (path, name) not in renewed
            and _has_one(value)
        ]

    def fit(self) -> bool:
        return not self._watched or next(self.changes(), None) is None

    def changes(self) -> Iterator[str]:
        """Paths of attributes that are built otherwise now."""
        for path, table, name, before in self._watched:
            if skeleton(table.get(name)) != before:
                yield path


def _has_one(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.nbytes <= _MOST_BYTES
    if isinstance(value, np.generic) or _is_slotted(value):
        return True
    if not isinstance(value, (tuple, *CONTAINERS)):
        return False
    return not is_plain(value)


def _is_slotted(value: Any) -> bool:
    """A dataclass without an instance dictionary that could be watched."""
    known = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return known and not hasattr(value, "__dict__")


def is_plain(value: Any) -> bool:
    """Whether a value is a scalar, or a container of such to any depth."""
    if isinstance(value, dict) and type(value) in CONTAINERS:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if isinstance(value, tuple) or type(value) in CONTAINERS:
        return all(map(is_plain, value))
    return isinstance(value, PLAIN)


def skeleton(value: Any, depth: int = 0) -> Any:
    """What of a value has to stay the same, comparable with ==."""
    if isinstance(value, torch.Tensor):
        return _TENSOR
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, (nn.Module, *OBJECTS)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), value.shape, value.tobytes()
    if depth >= _DEEPEST:
        return type(value)
    if isinstance(value, dict):
        pairs = [(skeleton(k, depth + 1), skeleton(v, depth + 1)) for k, v in value.items()]
        return type(value), tuple(pairs)
    if isinstance(value, (list, tuple, deque)):
        return type(value), tuple(skeleton(part, depth + 1) for part in value)
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(map(hash, value))
    if _is_slotted(value):
        fields = [getattr(value, f.name, None) for f in dataclasses.fields(value)]
        return type(value), tuple(skeleton(part, depth + 1) for part in fields)
    return type(value)
