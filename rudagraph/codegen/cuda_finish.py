"""Sums over rows on CUDA, second kernel: partial sums are added in a fixed order and rounded once.

    column = block_index() * 32 + lane            or so many vectors
    for part in range(warp, 264, 32): total += partials[part, column]
    total = block.columns_sum(total)               the 32 warps in their order

Input: what the first kernel left in the workspaces. Output: a kernel that finishes every sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rudagraph.codegen.cuda_launch import WARP, cuda_launch
from rudagraph.codegen.cuda_sum_shapes import (
    FINISH_LOADS,
    FINISH_REGISTERS,
    FINISH_THREADS,
    finish_vector,
)
from rudagraph.codegen.cuda_writer import CUDA_PREAMBLE, CUDA_RESERVED
from rudagraph.codegen.expressions import fold, literal
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.scalars import finished
from rudagraph.codegen.source import Lines, Names, Parameters, kernel_call
from rudagraph.ir.graph import Op
from rudagraph.ir.text import print_op
from rudagraph.schedule.lowered import KernelArgument, KernelCall

_WARPS = FINISH_THREADS // WARP


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum whose `count` parts are added, and the names it has in the text."""

    op: Op
    partial: Partial
    count: int
    source: str
    pointer: str
    total: str
    wide: int  # columns a thread

    @property
    def lanes(self) -> str:
        return "vector." if self.wide > 1 else ""

    @property
    def start(self) -> str:
        text = literal(fold(self.op).start, self.partial.dtype)
        return f"vector.full({text})" if self.wide > 1 else text


def finish_call(
    title: str, ops: Mapping[int, Op], partials: Sequence[tuple[Partial, int]], target: str
) -> KernelCall:
    """The kernel that adds partial sums; each comes with how many there are of it."""
    lines, names, parameters = Lines(depth=1), Names(CUDA_RESERVED), Parameters()
    columns = max((partial.columns for partial, _ in partials if partial.is_column), default=1)
    size = max(partial.dtype.size for partial, _ in partials)
    wide = finish_vector(columns, size, target)
    blocks = max(1, -(-columns // (WARP * wide)))
    if any(partial.is_column for partial, _ in partials):
        lines.add(f"lane = thread_index() % {WARP}", f"warp = thread_index() // {WARP}")
        number = f"block_index() * {WARP} + lane"
        lines.add("column = " + (f"({number}) * {wide}" if wide > 1 else number))
    sums = [
        _Sum(
            ops[partial.result],
            partial,
            count,
            _partials_pointer(partial, count, names, parameters),
            parameters.add(
                names.fresh(f"{ops[partial.result].result.name}_pointer"),
                KernelArgument("result", partial.result),
                written=True,
            ),
            names.fresh(f"{ops[partial.result].result.name}_total"),
            wide if partial.is_column else 1,
        )
        for partial, count in partials
    ]
    of_columns = [each for each in sums if each.partial.is_column]
    for group in _together(of_columns):
        _add_columns(lines, names, group)
    for each in of_columns:
        _store_column(lines, each)
    for each in sums:
        if not each.partial.is_column:
            _number(lines, names, each)
    docstring = ["Adds partial sums in their order.", ""]
    docstring += [print_op(ops[partial.result]) for partial, _ in partials]
    launch = cuda_launch(target, FINISH_THREADS)
    preamble = f"{CUDA_PREAMBLE}\n\nblock = Block(threads={FINISH_THREADS})"
    preamble += f"\nvector = Vector({wide})" if wide > 1 else ""
    return kernel_call(
        f"{title}_sums",
        docstring,
        lines,
        parameters,
        columns,
        blocks,
        preamble=preamble,
        cuda=launch,
    )


def _partials_pointer(partial: Partial, count: int, names: Names, parameters: Parameters) -> str:
    """The workspace with the partial sums; sums of nothing have none."""
    if not count:
        return ""
    workspace = KernelArgument("workspace", partial.workspace)
    known = workspace in parameters.arguments
    return parameters.add("" if known else names.fresh("partials"), workspace, written=False)


def _together(sums: list[_Sum]) -> Iterator[list[_Sum]]:
    """Sums over as many columns and parts, whose parts are loaded together."""
    while sums:
        first = sums[0]
        held = first.wide * min(2 * FINISH_LOADS, -(-first.count // _WARPS))
        most = max(FINISH_REGISTERS // max(held, 1), 1)
        alike = [each for each in sums if _extent(each) == _extent(first)][:most]
        yield alike
        sums = [each for each in sums if each not in alike]


def _extent(each: _Sum) -> tuple[int, int]:
    return each.partial.columns, each.count


def _add_columns(lines: Lines, names: Names, sums: list[_Sum]) -> None:
    """The warp's parts of a column, for each sum."""
    for each in sums:
        lines.add(f"{each.total} = {each.start}")
    columns, count = _extent(sums[0])
    with lines.block(f"if column < {columns}:"):
        _add_parts(lines, names, sums, ("warp", count, _WARPS))


def _store_column(lines: Lines, each: _Sum) -> None:
    op, total = each.op, each.total
    lines.add(f"{total} = block.columns_{_name(op)}({total})")
    with lines.block(f"if warp == 0 and column < {each.partial.columns}:"):
        result = op.result.type.dtype
        lines.add(f"{each.lanes}store_{result}({each.pointer}, column, {finished(op, total)})")


def _number(lines: Lines, names: Names, each: _Sum) -> None:
    """One number: the first block's work."""
    op, total = each.op, each.total
    lines.add(f"{total} = {each.start}")
    _add_parts(lines, names, [each], ("thread_index()", each.count, FINISH_THREADS))
    lines.add(f"{total} = block.across_{_name(op)}({total})")
    with lines.block("if block_index() == 0 and thread_index() == 0:"):
        result = op.result.type.dtype
        lines.add(f"store_{result}({each.pointer}, 0, {finished(op, total)})")


def _add_parts(lines: Lines, names: Names, sums: list[_Sum], span: tuple[str, int, int]) -> None:
    """Every `step`-th part from `first` on; several are loaded before the first is added."""
    first, count, step = span
    together = min(FINISH_LOADS, -(-count // step))
    if not together:
        return
    part = names.fresh("part")
    lines.add(f"{part} = {first}")
    turns = count // (step * together)  # in which all threads have parts
    if turns > 1:
        with lines.block(f"while {part} < {turns * step * together}:"):
            _add_some(lines, names, sums, part, ["" for _ in range(together)], step)
            lines.add(f"{part} = {part} + {step * together}")
        count -= turns * step * together
    left = range(0, count, step)
    guards = [f"{first} < {count - at}" if at + step > count else "" for at in left]
    _add_some(lines, names, sums, part, guards, step)


def _add_some(
    lines: Lines, names: Names, sums: list[_Sum], part: str, guards: list[str], step: int
) -> None:
    """The part of that number and those behind it, as far as they are there."""
    loaded: list[tuple[_Sum, str]] = []
    for each in sums:
        partial, at = each.partial, "column" if each.partial.is_column else "0"
        for number, guard in enumerate(guards):
            place = partial.place(f"({part} + {step * number})" if number else part)
            text = f"{each.lanes}load_{partial.dtype}(advance({each.source}, {place}), {at})"
            if guard:
                text += f" if {guard} else {each.start}"
            loaded.append((each, names.fresh(f"{each.total}_part")))
            lines.add(f"{loaded[-1][1]} = {text}")
    for each, name in loaded:
        lines.add(f"{each.total} = {fold(each.op).function}({each.total}, {name})")


def _name(op: Op) -> str:
    return {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min"}[op.opcode]
