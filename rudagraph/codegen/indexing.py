"""Index text: where the element of a row lies in each operand and result.

Input: the nest and the names of the loop variables. Output: lines that compute one base per kind of
access once per row, and the index expressions of the loops. Steps are constants of the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from rudagraph.codegen.domain import Nest
from rudagraph.codegen.source import Lines, Names


@dataclass
class Indexing:
    """Bases of the current row; `start` names the first element of a piece of it."""

    nest: Nest
    row: str
    element: str
    start: str = ""
    indices: list[str] = field(default_factory=list)
    _bases: dict[str, str] = field(default_factory=dict)

    def declare(
        self,
        lines: Lines,
        names: Names,
        accesses: Iterable[str],
        indices: list[str] | None = None,
    ) -> None:
        """Lines for the index along each outer axis (unless given) and the base of each access."""
        if indices is None:
            indices = self.split(lines, names, self.row, self.nest.outer)
        self.indices = indices
        known: dict[str, str] = {}
        for access in accesses:
            text = self._base_text(access)
            if " " in text and text not in known:
                if not known and len(indices) > 1:
                    lines.add("# Where the row begins in each operand, in elements.")
                known[text] = names.fresh("at" if not known else f"at_{access}")
                lines.add(f"{known[text]} = {text}")
            self._bases[access] = known.get(text, text)

    def split(self, lines: Lines, names: Names, row: str, extents: tuple[int, ...]) -> list[str]:
        """The index along each of some axes, from the number of a row of them."""
        if len(extents) < 2:
            return [row] * len(extents)
        step, indices = math.prod(extents), []
        for axis, extent in enumerate(extents):
            step //= extent
            text = row if step == 1 else f"{row} // {step}"
            name = names.fresh(f"{row}_{axis}")
            lines.add(f"{name} = {text}" + (f" % {extent}" if axis else ""))
            indices.append(name)
        return indices

    def _base_text(self, access: str) -> str:
        terms = [
            _product(index, step)
            for index, step in zip(self.indices, self.nest.outer_strides(access), strict=True)
            if step
        ]
        inner = self.nest.inner_stride(access)
        if self.start and inner:
            terms.append(_product(self.start, inner))
        return " + ".join(terms)

    def base(self, access: str) -> str:
        """Index of the row's (or piece's) first element."""
        return self._bases.get(access, "") or "0"

    def at(self, access: str) -> str:
        """Index of the current element; of the row's only one where the access does not step."""
        base, inner = self._bases.get(access, ""), self.nest.inner_stride(access)
        if not inner:
            return base or "0"
        step = _product(self.element, inner)
        return f"{base} + {step}" if base else step

    def guard(self, access: str) -> str:
        """The condition under which a row is the first of those that share this place."""
        steps = zip(self.indices, self.nest.outer_strides(access), self.nest.outer, strict=True)
        zero = [index for index, step, extent in steps if not step and extent != 1]
        if self.start and not self.nest.inner_stride(access):
            zero.append(self.start)
        return " and ".join(f"{index} == 0" for index in zero)


def _product(index: str, step: int) -> str:
    return index if step == 1 else f"{index} * {step}"
