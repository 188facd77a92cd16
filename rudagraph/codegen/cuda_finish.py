"""Sums over rows on CUDA, second kernel: partial sums are added in a fixed order and rounded once.

    column = block_index() * 32 + lane
    for part in range(warp, 264, 32): total += partials[part, column]
    total = block.columns_sum(total)               the 32 warps in their order

Input: what the first kernel left in the workspaces. Output: a kernel that finishes every sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rudagraph.codegen.cuda_launch import FINISH_LOADS, FINISH_THREADS, WARP, cuda_launch
from rudagraph.codegen.cuda_writer import CUDA_PREAMBLE, CUDA_RESERVED
from rudagraph.codegen.expressions import fold, literal
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.scalars import finished
from rudagraph.codegen.source import Lines, Names, Parameters, kernel_call
from rudagraph.ir.graph import Op
from rudagraph.ir.text import print_op
from rudagraph.schedule.lowered import KernelArgument, KernelCall

_WARPS = FINISH_THREADS // WARP


def finish_call(
    title: str, ops: Mapping[int, Op], partials: Sequence[tuple[Partial, int]], target: str
) -> KernelCall:
    """The kernel that adds partial sums; each comes with how many there are of it."""
    lines, names, parameters = Lines(depth=1), Names(CUDA_RESERVED), Parameters()
    columns = max((partial.columns for partial, _ in partials if partial.is_column), default=1)
    blocks = max(1, -(-columns // WARP))
    if any(partial.is_column for partial, _ in partials):
        lines.add(f"lane = thread_index() % {WARP}", f"warp = thread_index() // {WARP}")
        lines.add(f"column = block_index() * {WARP} + lane")
    for partial, count in partials:
        op = ops[partial.result]
        source = _partials_pointer(partial, count, names, parameters)
        pointer = parameters.add(
            names.fresh(f"{op.result.name}_pointer"),
            KernelArgument("result", partial.result),
            written=True,
        )
        total = names.fresh(f"{op.result.name}_total")
        write = _column if partial.is_column else _number
        write(lines, op, partial, count, source, pointer, total)
    docstring = ["Adds partial sums in their order.", ""]
    docstring += [print_op(ops[partial.result]) for partial, _ in partials]
    launch = cuda_launch(target, FINISH_THREADS)
    preamble = f"{CUDA_PREAMBLE}\n\nblock = Block(threads={FINISH_THREADS})"
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


def _column(
    lines: Lines, op: Op, partial: Partial, count: int, source: str, pointer: str, total: str
) -> None:
    dtype = partial.dtype
    lines.add(f"{total} = {literal(fold(op).start, dtype)}")
    with lines.block(f"if column < {partial.columns}:"):
        _add_parts(lines, op, partial, ("warp", count, _WARPS), source, total)
    lines.add(f"{total} = block.columns_{_name(op)}({total})")
    with lines.block(f"if warp == 0 and column < {partial.columns}:"):
        result = op.result.type.dtype
        lines.add(f"store_{result}({pointer}, column, {finished(op, total)})")


def _number(
    lines: Lines, op: Op, partial: Partial, count: int, source: str, pointer: str, total: str
) -> None:
    """One number: the first block's work."""
    lines.add(f"{total} = {literal(fold(op).start, partial.dtype)}")
    _add_parts(lines, op, partial, ("thread_index()", count, FINISH_THREADS), source, total)
    lines.add(f"{total} = block.across_{_name(op)}({total})")
    with lines.block("if block_index() == 0 and thread_index() == 0:"):
        result = op.result.type.dtype
        lines.add(f"store_{result}({pointer}, 0, {finished(op, total)})")


def _add_parts(
    lines: Lines, op: Op, partial: Partial, span: tuple[str, int, int], source: str, total: str
) -> None:
    """Every `step`-th part from `first` on; several are loaded before the first is added."""
    first, count, step = span
    if not count:
        return
    at = "column" if partial.is_column else "0"

    def loaded(part: str) -> str:
        return f"load_{partial.dtype}(advance({source}, {partial.place(part)}), {at})"

    lines.add(f"part = {first}")
    together = min(FINISH_LOADS, count // step)
    if together > 1:
        with lines.block(f"while part + {step * (together - 1)} < {count}:"):
            names = [f"part_{number}" for number in range(together)]
            for number, name in enumerate(names):
                lines.add(f"{name} = {loaded(f'(part + {step * number})' if number else 'part')}")
            for name in names:
                lines.add(f"{total} = {fold(op).function}({total}, {name})")
            lines.add(f"part = part + {step * together}")
    with lines.block(f"while part < {count}:"):
        lines.add(f"{total} = {fold(op).function}({total}, {loaded('part')})")
        lines.add(f"part = part + {step}")


def _name(op: Op) -> str:
    return {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min"}[op.opcode]
