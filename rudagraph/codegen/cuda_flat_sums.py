"""Pointwise bodies with sums over rows on CUDA: about one wave of threads steps over all elements.

    thread = block_index() * 256 + thread_index()
    for first in range(thread * 8, 33554432, 1081344):
        …
        dbias_sum = accumulate_add(dbias_sum, dx)
    vector.store_f32(advance(partials, thread // 512 * 16384), thread % 512 * 8, dbias_sum)

Input: the stages of a body of one pass with sums. Output: lines of the first kernel; cuda_finish
adds the parts.
"""

from __future__ import annotations

from rudagraph.codegen.cuda_flat import FlatKernel
from rudagraph.codegen.cuda_launch import FLAT_THREADS
from rudagraph.codegen.cuda_totals import Totals
from rudagraph.codegen.cuda_writer import FOLD_NAMES
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.stages import Stages


class FlatSumKernel(FlatKernel):
    """Pointwise bodies with sums: `active` threads step over all elements together.

    Their step is a whole number of rows, so each thread meets the same columns every time, and
    thread p's partial column sums are those of columns p * length … of one long partial row.
    """

    def __init__(
        self, stages: Stages, length: int, active: int, partials: dict[int, Partial]
    ) -> None:
        super().__init__(stages, length)
        self.active = active
        self.totals = Totals(self, partials)

    @property
    def blocks(self) -> int:
        return -(-self.active // FLAT_THREADS)

    def setup(self) -> str:
        return f"{super().setup()}\nblock = Block(threads={FLAT_THREADS})"

    def write(self) -> None:
        (current,) = self.stages.passes
        self.declare_operands()
        self.declare_results(self.totals.partials)
        names, lines, nest = self.names, self.lines, self.nest
        thread, first, row, element = (names.fresh(n) for n in ("thread", "first", "row", "j"))
        self.index = Indexing(nest, row, element)
        lines.add(f"{thread} = block_index() * {FLAT_THREADS} + thread_index()")
        self.once()
        self.totals.start()
        start = f"{thread} * {self.length}"
        if self.active % FLAT_THREADS:
            start = f"({start} if {thread} < {self.active} else {nest.elements})"
        step = self.active * self.length
        with lines.block(f"for {first} in range({start}, {nest.elements}, {step}):"):
            self.locate(first, row, element)
            self.index.declare(lines, names, self.accesses())
            self.between(current)
            self.need_before(current)
            self.elements(current)
            self.store_elements(current)
            self.totals.add_elements(current)
            in_row = f"{element} == 0" if nest.inner > self.length else ""
            self.totals.add_rows(current, in_row)
        self._finish(thread)

    def _finish(self, thread: str) -> None:
        for index, partial in self.totals.partials.items():
            total, dtype = self.totals.register[index], partial.dtype
            if partial.is_column:
                per_row = partial.columns // self.length
                place = self.totals.place(index, f"({thread} // {per_row})")
                at = f"{thread} % {per_row} * {self.length}"
                store = f"vector.store_{dtype}({place}, {at}, {total})"
                if self.active % FLAT_THREADS == 0:
                    self.lines.add(store)
                    continue
                with self.lines.block(f"if {thread} < {self.active}:"):
                    self.lines.add(store)
                continue
            self.lines.add(
                f"{total} = block.across_{FOLD_NAMES[self.sum_op(index).opcode]}({total})"
            )
            place = self.totals.place(index, "block_index()")
            with self.lines.block("if thread_index() == 0:"):
                self.lines.add(f"store_{dtype}({place}, 0, {total})")
