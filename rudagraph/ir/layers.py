"""Names of what belongs to numbered layers, and layers that a captured graph leaves out.

    layers.2.norm.weight, grad.layers.2.norm      belong to layer 2 of the row `layers`

Everything is named after module paths, so the same thing of another layer has another index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

# A row may alternate, as layers of two kinds do: so many layers are one repeat at most.
MOST_KINDS = 6
# Repeats that stay: those at the ends have other neighbours, of the rest two must come out alike.
KEPT = 5
# Repeats before the place of those left out; the others come after it.
KEPT_BEFORE = 2
# Fewer that could be left out are not worth the while.
LEAST = 3


class NotRepeating(Exception):
    """Layers that cannot be told apart by name, or that differ."""


class LayerNames:
    """Tells which of the layers `prefix`.0, `prefix`.1 … something belongs to by its name."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        path = re.escape(f"{prefix}.") if prefix else ""
        self._index = re.compile(rf"((?:grad\.|[a-z]+:)*{path})(\d+)(?=\.|$)")
        self._parts: dict[str, tuple[str, int, str] | None] = {}

    def split(self, name: str) -> tuple[str, int, str] | None:
        """What stands before the index of the layer, the index, and what follows."""
        if name not in self._parts:
            match = self._index.match(name)
            self._parts[name] = match and (match[1], int(match[2]), name[match.end() :])
        return self._parts[name]

    def index(self, name: str) -> int | None:
        """The layer that something of this name belongs to; None for what belongs to none."""
        parts = self.split(name)
        return None if parts is None else parts[1]

    def later(self, name: str, layers: int) -> str:
        """The name of the same so many layers further on."""
        parts = self.split(name)
        if parts is None or not layers:
            return name
        before, index, after = parts
        return f"{before}{index + layers}{after}"


@dataclass(frozen=True)
class Streams:
    """Random streams of a graph: the layers that draw them; what those of no layer become."""

    drawn_by: Mapping[int, int | None]
    outside: Mapping[int, int]


@dataclass(frozen=True)
class LeftOut:
    """`removed` layers of the row `prefix` that a captured graph does without, from `first` on.

    Later ones have moved down into their place. So many as `step` layers repeat as one.
    """

    prefix: str
    first: int
    removed: int
    step: int
    streams: Streams  # of the graph without them

    @cached_property
    def _names(self) -> LayerNames:
        return LayerNames(self.prefix)

    def origin(self, name: str) -> str:
        """What in the graph without the layers stands for something of this name with them."""
        names = self._names
        index = names.index(name)
        if index is None or index < self.first:
            return name
        beyond = index - (self.first + self.removed)
        if beyond >= 0:
            return names.later(name, -self.removed)
        return names.later(name, beyond % self.step - self.step - (index - self.first))


def origin(name: str, left_out: Sequence[LeftOut]) -> str:
    """What stands for it where rows leave layers out, the last row first."""
    for row in reversed(left_out):
        name = row.origin(name)
    return name


def numbered_rows(names: list[str]) -> list[str]:
    """Module paths of many numbered modules; a list inside such a module is part of it."""
    found: dict[str, set[int]] = {}
    for name in names:
        parts = name.split(".")
        place = next((place for place, part in enumerate(parts) if part.isdigit()), None)
        if place is not None:
            found.setdefault(".".join(parts[:place]), set()).add(int(parts[place]))
    return [prefix for prefix, indices in found.items() if len(indices) >= KEPT + LEAST]
