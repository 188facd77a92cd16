"""Sums over rows, second stage: partial sums of the blocks are added in their order.

    dw[j] = ((partial[0, j] + partial[1, j]) + …) rounded once

Input: what the first kernel left in the workspace. Output: a kernel that finishes every sum of an
op. Invariant: the order is that of the blocks, whatever threads ran them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rudagraph.codegen.expressions import RESERVED, fold, literal
from rudagraph.codegen.launch import BLOCK_NANOSECONDS, ELEMENT_NANOSECONDS, MOST_BLOCKS
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.scalars import finished
from rudagraph.codegen.source import Lines, Names, Parameters, kernel_call
from rudagraph.ir.graph import Op
from rudagraph.ir.text import print_op
from rudagraph.schedule.lowered import KernelArgument, KernelCall


def finish_partial(
    lines: Lines,
    op: Op,
    partial: Partial,
    held: str,
    pointer: str,
    element: str,
    *,
    count: str = "",
    at: str = "",
) -> None:
    """Lines that store a finished sum from the row (or register) that holds it.

    A row may be `count` columns of more, which go to `at`.
    """
    dtype = op.result.type.dtype
    if partial.is_column:
        with lines.block(f"for {element} in range({count or partial.columns}):"):
            value = finished(op, f"load_{partial.dtype}({held}, {element})")
            lines.add(f"store_{dtype}({pointer}, {at or element}, {value})")
    else:
        lines.add(f"store_{dtype}({pointer}, 0, {finished(op, held)})")


def finish_call(
    title: str, ops: Mapping[int, Op], partials: Sequence[Partial], blocks: int
) -> KernelCall:
    """The kernel that adds the partial sums of `blocks` blocks."""
    lines, names, parameters = Lines(depth=1), Names(RESERVED), Parameters()
    j, k = names.fresh("j"), names.fresh("k")
    if blocks:
        argument = KernelArgument("workspace", partials[0].workspace)
        names_of_partials = parameters.add(names.fresh("partials"), argument, written=True)
    columns = max((partial.columns for partial in partials if partial.is_column), default=1)
    for partial in partials:
        op = ops[partial.result]
        pointer = parameters.add(
            names.fresh(f"{op.result.name}_pointer"),
            KernelArgument("result", partial.result),
            written=True,
        )
        start, function = literal(fold(op).start, partial.dtype), fold(op).ordered
        dtype, result = partial.dtype, op.result.type.dtype
        if not partial.is_column:
            with lines.block("if begin == 0:"):
                total = names.fresh(f"total_{op.result.name}")
                lines.add(f"{total} = {start}")
                if blocks:
                    with lines.block(f"for {k} in range({blocks}):"):
                        part = f"advance({names_of_partials}, {partial.place(k)})"
                        lines.add(f"{total} = {function}({total}, load_{dtype}({part}, 0))")
                lines.add(f"store_{result}({pointer}, 0, {finished(op, total)})")
            continue
        if not blocks:
            with lines.block(f"for {j} in range(begin, end):"):
                lines.add(f"store_{result}({pointer}, {j}, {finished(op, start)})")
            continue
        first = names.fresh(f"first_{op.result.name}")
        other = names.fresh(f"other_{op.result.name}")
        lines.add(f"{first} = advance({names_of_partials}, {partial.place('0')})")
        # Row after row into the first: both loops step through memory, so the inner vectorises.
        with lines.block(f"for {k} in range(1, {blocks}):"):
            lines.add(f"{other} = advance({names_of_partials}, {partial.place(k)})")
            with lines.block(f"for {j} in range(begin, end):"):
                pair = f"load_{dtype}({first}, {j}), load_{dtype}({other}, {j})"
                lines.add(f"store_{dtype}({first}, {j}, {function}({pair}))")
        with lines.block(f"for {j} in range(begin, end):"):
            value = finished(op, f"load_{dtype}({first}, {j})")
            lines.add(f"store_{result}({pointer}, {j}, {value})")
    docstring = [f"Adds the partial sums of {blocks} blocks in their order.", ""]
    docstring += [print_op(ops[partial.result]) for partial in partials]
    nanoseconds = columns * max(blocks, 1) * len(partials) * ELEMENT_NANOSECONDS
    wanted = max(1, min(int(nanoseconds / BLOCK_NANOSECONDS), MOST_BLOCKS, columns))
    return kernel_call(f"{title}_sums", docstring, lines, parameters, columns, wanted)
