"""Results written past the caches: what a kernel writes to memory that nobody reads soon.

    for j in range(1024): …    store_f32(row_of_dx, j, dx)
    stream(dx_pointer, at * 4, row_of_dx, 4096)

A store to a line that no cache has reads the line first. Where a kernel's operands and results do
not fit into the last cache, that is a third of its traffic: each row is made in scratch, and
copied by stores that read nothing. Input: stages, cut, operands that results take the place of.
Output: which results are streamed. Invariant: the same bytes end up in the same places.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from rudagraph.codegen.domain import Nest, result_access
from rudagraph.codegen.launch import Cut
from rudagraph.codegen.memory import Scratch
from rudagraph.codegen.source import Names
from rudagraph.codegen.stages import Source, Stages
from rudagraph.ir.graph import Value

# All element operands and results together, from where on the first rows are gone when the next
# kernel comes. Writing 8 MiB and reading them in the next takes 1.27 ms, streamed 1.45; 16 MiB 3.30
# and 3.23; 32 MiB 7.54 and 6.67. Of what is not read soon, all sizes gain 10 to 20 %. A kernel of
# one loop gains nothing: its stores overlap with what it computes (dropout takes a tenth longer).
STREAMED_TRAFFIC = 32 * 1024 * 1024
# Smaller results of such kernels may be read again before they are gone.
STREAMED_RESULT = 8 * 1024 * 1024
# A row that leaves the second cache before it is copied would be written twice.
LONGEST_ROW = 64 * 1024
LINE = 64


@dataclass
class Streams:
    """The streamed results of one kernel."""

    stages: Stages
    cut: Cut
    shared: Collection[int]  # results in the place of an operand
    _rows: dict[Value, str] = field(default_factory=dict)  # by what is stored there
    _streamed: set[int] = field(default_factory=set)

    def declare(self, scratch: Scratch, names: Names) -> None:
        """A row of scratch for each; copies of one value share it."""
        loops = [current for current in self.stages.passes if current.has_loop]
        if len(loops) < 2 or self.cut.kind != "rows" or traffic(self.stages) < STREAMED_TRAFFIC:
            return
        read_again = {
            value
            for current in self.stages.passes
            for value, source in current.sources.items()
            if source is Source.STORED
        }
        for current in self.stages.passes:
            for index in current.stores:
                value = self.stages.results[index]
                if value in read_again or index in self.shared or not self._lies_in_lines(index):
                    continue
                self._streamed.add(index)
                kept = self._source(value)
                if kept not in self._rows:
                    self._rows[kept] = names.fresh(f"row_of_{kept.name}")
                    scratch.add(self._rows[kept], self.cut.length * value.type.dtype.size)

    def __bool__(self) -> bool:
        return bool(self._streamed)

    def results(self) -> list[int]:
        """The streamed results."""
        return sorted(self._streamed)

    def row(self, index: int) -> str | None:
        """Where an element of the result is stored at first; None where it goes to its place."""
        if index not in self._streamed:
            return None
        return self._rows[self._source(self.stages.results[index])]

    def is_copy(self, index: int) -> bool:
        """Whether the result's row of scratch is made for another result."""
        value = self.stages.results[index]
        return index in self._streamed and self._source(value) != value

    def _source(self, value: Value) -> Value:
        """What a result is a copy of, if that is streamed too."""
        op = self.stages.producer.get(value)
        if op is None or op.opcode != "copy" or op.inputs[0] not in self.stages.results:
            return value
        other = self.stages.results.index(op.inputs[0])
        is_beside = any(
            {other, self.stages.results.index(value)} <= set(p.stores) for p in self.stages.passes
        )
        return op.inputs[0] if is_beside and other in self._streamed else value

    def _lies_in_lines(self, index: int) -> bool:
        """Whether the result is large, and its rows are whole cache lines."""
        nest, access = self.stages.nest, result_access(index)
        size = self.stages.results[index].type.dtype.size
        row_bytes = self.cut.length * size
        steps = [
            step
            for step, extent in zip(nest.outer_strides(access), nest.outer, strict=True)
            if extent > 1
        ]
        is_whole = nest.inner_stride(access) == 1 and nest.inner * size % LINE == 0
        return (
            is_whole
            and 0 not in steps
            and all(step * size % LINE == 0 for step in steps)
            and row_bytes <= LONGEST_ROW
            and nest.elements * size >= STREAMED_RESULT
        )


def traffic(stages: Stages) -> int:
    """Bytes of the operands and results that step along the row and between rows."""
    return sum(
        _extent(stages.nest, access) * value.type.dtype.size for access, value in stages.in_memory()
    )


def _extent(nest: Nest, access: str) -> int:
    """Elements that an access touches; 0 where it stays on a row or between rows."""
    if nest.inner_stride(access) == 0:
        return 0
    elements = nest.inner
    for step, extent in zip(nest.outer_strides(access), nest.outer, strict=True):
        elements *= extent if step else 1
    return elements if elements > nest.inner or nest.rows == 1 else 0
