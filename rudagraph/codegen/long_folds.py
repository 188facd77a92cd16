"""Reductions of long rows on a CPU: part by part, the sums of parts in f64.

    total_in_all = float64(0.0)
    for first in range(0, 1200001, 16384):
        total_so_far = float32(0.0)
        for j in range(first, first + 16384 if first < 1183617 else 1200001): …
        total_in_all = add(total_in_all, float64(total_so_far))
    total_so_far = float32(total_in_all)

Input: the reductions of one loop and what writes that loop. Output: lines around it. A lane that
adds a hundred thousand numbers in f32 loses two digits; a part's lanes add a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rudagraph.codegen.expressions import accumulator_dtype, convert, fold, literal
from rudagraph.codegen.source import Lines, Names
from rudagraph.ir.graph import Op
from rudagraph.ir.types import DType

PART = 16384


def is_long(count: str) -> bool:
    """Whether a loop of so many elements goes in parts; the count is a number or a variable."""
    return count.isdigit() and int(count) > PART


def fold_in_parts(
    lines: Lines,
    names: Names,
    count: str,
    totals: Sequence[tuple[Op, str]],
    loop: Callable[[str], None],
) -> None:
    """The loop over a row in parts; each reduction's accumulator ends with the whole row's."""
    wholes = []
    for op, _ in totals:
        wide = _wide(op)
        wholes.append(names.fresh(f"{op.result.name}_in_all"))
        lines.add(f"{wholes[-1]} = {literal(fold(op).start, wide)}")
    first = names.fresh("first")
    with lines.block(f"for {first} in range(0, {count}, {PART}):"):
        for op, part in totals:
            lines.add(f"{part} = {literal(fold(op).start, accumulator_dtype(op))}")
        loop(f"{first}, {first} + {PART} if {first} < {int(count) - PART} else {count}")
        for (op, part), whole in zip(totals, wholes, strict=True):
            value = convert(part, accumulator_dtype(op), _wide(op))
            lines.add(f"{whole} = {fold(op).ordered}({whole}, {value})")
    for (op, part), whole in zip(totals, wholes, strict=True):
        lines.add(f"{part} = {convert(whole, _wide(op), accumulator_dtype(op))}")


def _wide(op: Op) -> DType:
    """The type in which parts are gathered: extremes lose nothing, sums of integers neither."""
    dtype = accumulator_dtype(op)
    return DType.F64 if fold(op).ordered == "add" and dtype is DType.F32 else dtype
