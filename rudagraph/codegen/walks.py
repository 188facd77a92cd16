"""How a CPU kernel walks its index space: the loops around one row, piece or tile.

    rows      for row in range(begin, end):
    pieces    for piece in range(begin, end):      row, start from piece
    columns   for piece in range(begin, end):      start from piece; then all rows
    tiles     for tile in range(begin, end):       then stretches of the row; then its rows

Input: a nest and a cut. Output: loop headers, and the indexing inside them. Invariant: each element
is visited once, and all of an element's row or piece by one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from rudagraph.codegen.domain import Nest
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.launch import TILE_LENGTH, TILE_ROWS, Cut
from rudagraph.codegen.source import Lines, Names


class Walk:
    """The loops of one kernel; `count` is the number of elements of the innermost one."""

    def __init__(self, nest: Nest, cut: Cut, lines: Lines, names: Names) -> None:
        self.nest, self.cut, self.lines, self.names = nest, cut, lines, names
        whole = cut.kind == "rows"
        self.row = names.fresh("row")
        self.piece = self.row if whole else names.fresh("tile" if cut.kind == "tiles" else "piece")
        start = "" if whole else names.fresh("start")
        self.index = Indexing(nest, self.row, names.fresh("j"), start)
        self.count = str(cut.length)

    @contextmanager
    def pieces(self) -> Iterator[None]:
        """What is left of the walk is inside `rows`, except that columns have all rows to come."""
        if self.cut.kind != "columns":
            yield
            return
        with self.lines.block(f"for {self.piece} in range(begin, end):"):
            self.lines.add(f"{self.index.start} = {self.piece} * {self.cut.length}")
            self._count(self.index.start)
            yield

    @contextmanager
    def rows(
        self,
        accesses: Iterable[str],
        start_group: Callable[[], None],
        finish_group: Callable[[], None],
    ) -> Iterator[None]:
        """Lines added inside are for one row, or one row of a piece."""
        lines, start = self.lines, self.index.start
        if self.cut.groups > 1:
            group, rows, groups = self.names.fresh("group"), self.nest.rows, self.cut.groups
            with lines.block(f"for {group} in range({groups}):"):
                start_group()
                first, last = (f"{k} * {rows} // {groups}" for k in (group, f"({group} + 1)"))
                with lines.block(f"for {self.row} in range({first}, {last}):"):
                    self.index.declare(lines, self.names, accesses)
                    yield
                finish_group()
            return
        if self.cut.kind == "tiles":
            with self._tiles(accesses):
                yield
            return
        header = f"for {self.piece} in range(begin, end):"
        if self.cut.kind == "columns":
            header = f"for {self.row} in range({self.nest.rows}):"
        with lines.block(header):
            if self.cut.kind == "pieces":
                self._locate_piece()
                self._count(start)
            if self.cut.grouped:
                with self._groups(accesses):
                    yield
                return
            self.index.declare(lines, self.names, accesses)
            yield

    @contextmanager
    def _groups(self, accesses: Iterable[str]) -> Iterator[None]:
        """The row so far is a group's number; the last axes are loops, which need no division."""
        first = len(self.nest.outer) - self.cut.grouped
        indices = self.index.split(self.lines, self.names, self.row, self.nest.outer[:first])
        with ExitStack() as loops:
            for axis in range(first, len(self.nest.outer)):
                name = self.names.fresh(f"{self.row}_{axis}")
                header = f"for {name} in range({self.nest.outer[axis]}):"
                loops.enter_context(self.lines.block(header))
                indices.append(name)
            self.index.declare(self.lines, self.names, accesses, indices)
            yield

    def _locate_piece(self) -> None:
        pieces, length, start = self.cut.pieces, self.cut.length, self.index.start
        if self.nest.rows == 1:
            self.lines.add(f"{start} = {self.piece} * {length}")
        else:
            self.lines.add(f"{self.row} = {self.piece} // {pieces}")
            self.lines.add(f"{start} = {self.piece} % {pieces} * {length}")

    def _count(self, start: str) -> None:
        """The last piece of a row may be shorter."""
        if self.nest.inner % self.cut.length:
            self.count = self.names.fresh("count")
            rest = f"{self.nest.inner} - {start}"
            self.lines.add(f"{self.count} = minimum(int64({self.cut.length}), {rest})")

    @contextmanager
    def _tiles(self, accesses: Iterable[str]) -> Iterator[None]:
        lines, start, axis = self.lines, self.index.start, self.cut.axis
        first, last = self.names.fresh("first"), self.names.fresh("last")
        along = self.nest.outer[axis]
        with lines.block(f"for {self.piece} in range(begin, end):"):
            indices = self._outside_tile(axis)
            lines.add(f"{first} = {self.piece} % {self.cut.pieces} * {TILE_ROWS}")
            lines.add(f"{last} = minimum({first} + {TILE_ROWS}, int64({along}))")
            with lines.block(f"for {start} in range(0, {self.nest.inner}, {self.cut.length}):"):
                self._count(start)
                with lines.block(f"for {self.row} in range({first}, {last}):"):
                    indices[axis] = self.row
                    self.index.declare(lines, self.names, accesses, indices)
                    yield

    def _outside_tile(self, axis: int) -> list[str]:
        """The index along each outer axis but the tile's own."""
        step = self.nest.rows // self.nest.outer[axis] * self.cut.pieces
        indices = []
        for number, extent in enumerate(self.nest.outer):
            if number == axis:
                indices.append("")
                continue
            step //= extent
            name = self.names.fresh(f"{self.row}_{number}")
            wrapped = f" % {extent}" if indices and any(indices) else ""
            self.lines.add(f"{name} = {self.piece} // {step}{wrapped}")
            indices.append(name)
        return indices


def tile_axis(nest: Nest, accesses: Iterable[str]) -> int | None:
    """The outer axis along which an access that jumps along the row is contiguous."""
    for access in accesses:
        outer, inner = nest.outer_strides(access), nest.inner_stride(access)
        if inner > 1 and nest.inner >= TILE_LENGTH:
            for axis, (step, extent) in enumerate(zip(outer, nest.outer, strict=True)):
                if step == 1 and extent >= TILE_LENGTH:
                    return axis
    return None
