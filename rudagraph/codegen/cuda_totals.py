"""Registers that gather sums over rows on CUDA, and where they are stored at the end.

    dweight_sum = tile.full(float32(0.0))
    dweight_sum = accumulate_add(dweight_sum, weighted)            for each row
    tile.store_f32(advance(partials, group * 16384), 0, dweight_sum)

Input: the writer of a kernel and the layout of its partial sums. Output: lines. Invariant: a thread
adds in the order of the rows that it meets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rudagraph.codegen.cuda_writer import FOLD_NAMES, Writer
from rudagraph.codegen.expressions import fold, literal
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.stages import Pass
from rudagraph.schedule.lowered import KernelArgument


@dataclass
class Totals:
    """Registers of the sums of one kernel: tiles for column sums, numbers for the others."""

    writer: Writer
    partials: dict[int, Partial]  # by result
    register: dict[int, str] = field(default_factory=dict)

    def start(self) -> None:
        for index, partial in self.partials.items():
            writer = self.writer
            name = writer.names.fresh(f"{writer.stages.results[index].name}_sum")
            first = literal(fold(writer.sum_op(index)).start, partial.dtype)
            value = f"{writer.lanes}.full({first})" if partial.is_column else first
            writer.lines.add(f"{name} = {value}")
            self.register[index] = name

    def add_elements(self, current: Pass) -> None:
        """The elements of one pass over a row."""
        for index in current.sums:
            self.writer.need(self.writer.sum_op(index).inputs)
            op = self.writer.sum_op(index)
            is_column = self.partials[index].is_column
            self._add(
                index, self.writer.folded_tile(op) if is_column else self.writer.within_text(op)
            )

    def add_rows(self, current: Pass, condition: str = "") -> None:
        """What has one value a row; `condition` picks one thread of those that have it."""
        for index in current.row_sums:
            op = self.writer.sum_op(index)
            self.writer.need(op.inputs)
            if not condition:
                self._add(index, self.writer.folded_tile(op))
                continue
            with self.writer.lines.block(f"if {condition}:"):
                self._add(index, self.writer.folded_tile(op))

    def place(self, index: int, group: str) -> str:
        """Pointer to the partial sums of a group of rows."""
        partial = self.partials[index]
        argument = KernelArgument("workspace", partial.workspace)
        parameters, names = self.writer.parameters, self.writer.names
        known = argument in parameters.arguments
        name = "" if known else names.fresh("partials")
        pointer = parameters.add(name, argument, written=True)
        return f"advance({pointer}, {partial.place(group)})"

    def finish_rows(self, group: str, rows: int) -> None:
        """Store the partial sums: of columns those of a block, which has `rows` groups of rows."""
        writer = self.writer
        columns = [index for index, partial in self.partials.items() if partial.is_column]
        for number, (index, partial) in enumerate(self.partials.items()):
            total, name = self.register[index], FOLD_NAMES[writer.sum_op(index).opcode]
            if partial.is_column:
                if rows > 1:
                    writer.lines.add(f"{total} = tile.rows_{name}_{number % 2}({total})")
                continue
            if any(index in current.sums for current in writer.stages.passes):
                writer.lines.add(f"{total} = tile.across_{name}({total})")
            place = self.place(index, group)
            writer.lines.add(f"tile.store_row_{partial.dtype}({place}, 0, {total})")
        place = "block_index()" if rows > 1 else group
        stores = [
            f"tile.store_{self.partials[index].dtype}"
            f"({self.place(index, place)}, 0, {self.register[index]})"
            for index in columns
        ]
        if rows == 1 or not columns:
            writer.lines.add(*stores)
            return
        with writer.lines.block("if tile.group() == 0:"):
            writer.lines.add(*stores)

    def _add(self, index: int, text: str) -> None:
        total, function = self.register[index], fold(self.writer.sum_op(index)).function
        self.writer.lines.add(f"{total} = {function}({total}, {text})")
