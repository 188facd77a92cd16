"""Sums over rows, first stage: what one block of a CPU kernel adds up.

    a number          in a register, stored into the block's part at the end
    a row of columns  in the block's partial row, or, where a block takes whole columns, in scratch

Input: the stages' sums. Output: lines at five places of the kernel. Invariant: rows are added in
their order; with a single block, or whole columns, the result is finished here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rudagraph.codegen.domain import result_access
from rudagraph.codegen.expressions import accumulator_dtype, convert, fold, literal
from rudagraph.codegen.memory import Partial, Scratch
from rudagraph.codegen.source import Lines, Names, Parameters
from rudagraph.codegen.stages import Stages
from rudagraph.codegen.sums import finish_partial
from rudagraph.codegen.walks import Walk
from rudagraph.ir.graph import Op, Value
from rudagraph.schedule.lowered import KernelArgument


@dataclass
class BlockSums:
    """Lines for the sums of one kernel; `pointers` has the results that are finished here."""

    stages: Stages
    partials: Mapping[int, Partial]
    walk: Walk
    lines: Lines
    names: Names
    parameters: Parameters
    scratch: Scratch
    pointers: Mapping[str, str]
    register: Callable[[Value], str]
    _row: dict[int, str] = field(default_factory=dict)  # memory of a column sum
    _sum: dict[int, str] = field(default_factory=dict)  # memory of all groups' sum, in columns
    _total: dict[int, str] = field(default_factory=dict)  # register of any other

    @property
    def whole_columns(self) -> bool:
        return self.walk.cut.kind == "columns"

    def is_finished_here(self, index: int) -> bool:
        """Whether no second kernel follows for the sum."""
        own = self.whole_columns and self.stages.is_column(index)
        return own or self.walk.cut.blocks == 1

    def declare(self) -> None:
        """Scratch rows of whole columns."""
        for index, partial in self.partials.items():
            if self.whole_columns and partial.is_column:
                name = self.stages.results[index].name
                self._sum[index] = self._row[index] = self.names.fresh(f"sums_{name}")
                self.scratch.add(self._sum[index], self.walk.cut.length * partial.dtype.size)
                if self.walk.cut.groups > 1:
                    self._row[index] = self.names.fresh(f"group_{name}")
                    self.scratch.add(self._row[index], self.walk.cut.length * partial.dtype.size)

    # -- before and after all rows

    def start(self) -> None:
        for index, partial in self.partials.items():
            name = self.stages.results[index].name
            if not partial.is_column:
                self._total[index] = self.names.fresh(f"total_{name}")
                self.lines.add(f"{self._total[index]} = {self._start_text(index)}")
            elif not self.whole_columns:
                self._row[index] = self.names.fresh(f"partial_{name}")
                self.lines.add(f"{self._row[index]} = {self._own(partial)}")
                self._clear(index, self._row[index], str(partial.columns))

    def finish(self) -> None:
        for index, partial in self.partials.items():
            if self.whole_columns and partial.is_column:
                continue
            if self.is_finished_here(index):
                held = self._row.get(index) or self._total[index]
                pointer = self.pointers[result_access(index)]
                j = self.walk.index.element
                finish_partial(self.lines, self.op(index), partial, held, pointer, j)
            elif index in self._total:
                own = self._own(partial)
                self.lines.add(f"store_{partial.dtype}({own}, 0, {self._total[index]})")

    # -- before and after the rows of whole columns

    def start_columns(self) -> None:
        for index, row in self._sum.items():
            self._clear(index, row, self.walk.count)

    def start_group(self) -> None:
        for index in self._sum:
            self._clear(index, self._row[index], self.walk.count)

    def finish_group(self) -> None:
        """The group's rows join the sum, as a block's partial row would."""
        j = self.walk.index.element
        for index, sum in self._sum.items():
            dtype, function = self.partials[index].dtype, fold(self.op(index)).ordered
            with self.lines.block(f"for {j} in range({self.walk.count}):"):
                pair = f"load_{dtype}({sum}, {j}), load_{dtype}({self._row[index]}, {j})"
                self.lines.add(f"store_{dtype}({sum}, {j}, {function}({pair}))")

    def finish_columns(self) -> None:
        for index, row in self._sum.items():
            j, first = self.walk.index.element, self.walk.index.start
            finish_partial(
                self.lines,
                self.op(index),
                self.partials[index],
                row,
                self.pointers[result_access(index)],
                j,
                count=self.walk.count,
                at=f"{first} + {j}",
            )

    # -- inside

    def part(self, index: int) -> str | None:
        """A register for what one loop adds to a total; None for a column sum."""
        if index not in self._total:
            return None
        name = self.names.fresh(f"part_of_{self.stages.results[index].name}")
        self.lines.add(f"{name} = {self._start_text(index)}")
        return name

    def add_element(self, index: int, part: str | None) -> None:
        """Inside a loop over elements."""
        if part is not None:
            self.lines.add(f"{part} = {folded(self.op(index), part, self.register)}")
            return
        dtype, row, j = self.partials[index].dtype, self._row[index], self.walk.index.element
        start = "" if self.whole_columns else self.walk.index.start
        at = f"{start} + {j}" if start else j
        op = self.op(index)
        sum = folded(op, f"load_{dtype}({row}, {at})", self.register, ordered=True)
        self.lines.add(f"store_{dtype}({row}, {at}, {sum})")

    def add_part(self, index: int, part: str) -> None:
        """After a loop over elements. Two levels of adding keep a long sum exact."""
        total = self._total[index]
        self.lines.add(f"{total} = {fold(self.op(index)).function}({total}, {part})")

    def add_row(self, index: int) -> None:
        """Once per row."""
        total = self._total[index]
        self.lines.add(f"{total} = {folded(self.op(index), total, self.register)}")

    # -- texts

    def op(self, index: int) -> Op:
        op = self.stages.sum_op(index)
        assert op is not None, f"result {index} is no sum"
        return op

    def _start_text(self, index: int) -> str:
        return literal(fold(self.op(index)).start, self.partials[index].dtype)

    def _clear(self, index: int, row: str, count: str) -> None:
        j, dtype = self.walk.index.element, self.partials[index].dtype
        with self.lines.block(f"for {j} in range({count}):"):
            self.lines.add(f"store_{dtype}({row}, {j}, {self._start_text(index)})")

    def _own(self, partial: Partial) -> str:
        """This block's part of the partial sums."""
        argument = KernelArgument("workspace", partial.workspace)
        known = argument in self.parameters.arguments
        name = "" if known else self.names.fresh("partials")
        pointer = self.parameters.add(name, argument, written=True)
        return f"advance({pointer}, {partial.place('block')})"


def folded(
    op: Op, accumulator: str, register: Callable[[Value], str], *, ordered: bool = False
) -> str:
    """The accumulator with the op's operand added to it; `ordered` where it lies in memory."""
    operand = op.inputs[0]
    value = convert(register(operand), operand.type.dtype, accumulator_dtype(op))
    function = fold(op).ordered if ordered else fold(op).function
    return f"{function}({accumulator}, {value})"
