"""A fused op as kernel calls: nest, stages, cut, the rows kernel, and the finishing of sums.

Input: the op and the strides of its operands and results. Output: Lowered. Invariant: what the
calls compute does not depend on threads, nor on which operands share memory with results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rudagraph.codegen.copies import without_copies
from rudagraph.codegen.domain import body_nest, result_access
from rudagraph.codegen.expressions import accumulator_dtype, cost
from rudagraph.codegen.launch import Cut, cut, interleaving
from rudagraph.codegen.memory import Partial, Scratch, lay_out_partials
from rudagraph.codegen.ranges import mark_nonpositive
from rudagraph.codegen.row_stages import RowStages
from rudagraph.codegen.rows import RowsKernel
from rudagraph.codegen.slopes import share_slopes
from rudagraph.codegen.source import CPU_PREAMBLE, describe, kernel_call, overview
from rudagraph.codegen.stages import Place, Stages
from rudagraph.codegen.sums import finish_call
from rudagraph.codegen.walks import tile_axis
from rudagraph.ir.graph import Op
from rudagraph.schedule.lowered import KernelCall, Lowered, Strides


def lower_fused(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    shared: tuple[tuple[int, int], ...],
) -> Lowered:
    """Kernel calls of a fused op; `shared` are (operand, result) pairs in the same memory."""
    assert op.body is not None, "a fused op has a body"
    body = share_slopes(mark_nonpositive(without_copies(op.body)))
    nest = body_nest(body, operand_strides, result_strides)
    stages = RowStages(body, nest)
    title = kernel_title(op)
    partials, workspaces = _partials(stages, workspace=0)
    if nest.rows == 0 or (nest.inner == 0 and not nest.outer):
        return Lowered(_finish(title, stages, partials, blocks=0))
    cutting = _cut(stages, partials)
    whole_columns = cutting.kind == "columns"
    # Sums that need a second kernel, since several blocks add to them.
    split = [p for p in partials if not (whole_columns and p.is_column)]
    split = split if cutting.blocks > 1 else []
    in_memory = bool(split) or (not whole_columns and any(p.is_column for p in partials))
    sizes = [step * cutting.blocks for step in workspaces] if in_memory else []
    kernel = RowsKernel(
        stages, cutting, dict(shared), Scratch(len(sizes)), {p.result: p for p in partials}
    )
    kernel.write()
    notes = [*cutting.notes(), *_notes(stages, kernel, dict(shared), split, cutting.blocks)]
    notes = ["", *notes] if notes else []
    docstring = [overview(op.get("form"), nest), *notes, "", *describe(op.body)]
    call = kernel_call(
        title,
        docstring,
        kernel.lines,
        kernel.parameters,
        cutting.extent,
        cutting.blocks,
        preamble=_preamble(stages, cutting),
    )
    second = _finish(title, stages, split, cutting.blocks)
    if kernel.scratch.block_bytes:
        sizes.append(kernel.scratch.block_bytes * cutting.blocks)
    return Lowered((call, *second), tuple(sizes), inplace_pairs(stages), len(kernel.checks))


def _cut(stages: RowStages, partials: list[Partial]) -> Cut:
    first = stages.passes[0]
    single = len(stages.passes) == 1 and not first.row_sums
    jumping = [*(port.value.name for port in stages.body.inputs)]
    jumping += [result_access(i) for i in range(len(stages.results)) if not stages.sum_op(i)]
    return cut(
        stages.nest,
        stages.element_cost(),
        divisible=single,
        totals=any(not partial.is_column for partial in partials),
        columns=any(partial.is_column for partial in partials),
        # Random words are drawn many at a time, a tile has few in a row.
        tile_axis=None if first.fills else tile_axis(stages.nest, jumping),
        scratch=stages.scratch_bytes(),
    )


def _preamble(stages: Stages, cutting: Cut) -> str:
    """The import, and what the build must know of the innermost loops; see build/cpu_loops.py."""
    lines = [
        CPU_PREAMBLE,
        "",
        "# Turns of an innermost loop: the order of its sums follows from it.",
    ]
    lines.append(f"LENGTH = {cutting.length}")
    dearest = max(map(cost, stages.producer.values()), default=0.0)
    count = interleaving(cutting.length, dearest)
    if count:
        lines.append(
            "# Vectors at a time: the dearest function takes long, and others need not wait."
        )
        lines.append(f"INTERLEAVE = {count}")
    return "\n".join(lines)


def _notes(
    stages: RowStages,
    kernel: RowsKernel,
    shared: Mapping[int, int],
    split: Sequence[Partial],
    blocks: int,
) -> Iterator[str]:
    """Sentences about memory: what the lines below do not say of themselves."""
    for operand, result in sorted(shared.items()):
        old, new = stages.body.inputs[operand].value, stages.results[result]
        yield f"%{new.name} takes the place of %{old.name}, which nobody reads again."
    if kernel.has_kept:
        yield "A row of scratch, `kept_…`, has what a later loop reads and need not compute again."
    for index in kernel.streams.results():
        rows = f"Rows of %{stages.results[index].name}"
        yield f"{rows} are made in scratch and go past the caches, which read no line first."
    if split:
        names = ", ".join(f"%{stages.results[partial.result].name}" for partial in split)
        yield f"Each of {blocks} blocks adds its rows of {names}: the next kernel adds the blocks."


def kernel_title(op: Op) -> str:
    """What a kernel's name begins with: its first result, without layer numbers."""
    assert op.body is not None
    name = op.body.outputs[0].value.name if op.body.outputs else op.opcode
    return re.sub(r"\W+", "_", name).strip("_") or op.opcode


def _partials(stages: Stages, workspace: int) -> tuple[list[Partial], list[int]]:
    sums = []
    for index in range(len(stages.results)):
        op = stages.sum_op(index)
        if op is not None:
            column = stages.is_column(index)
            columns = stages.nest.inner if column else 1
            sums.append((index, accumulator_dtype(op), columns, column))
    if not sums:
        return [], []
    partials, step = lay_out_partials(sums, workspace, apart=True)
    return partials, [step]


def _finish(
    title: str, stages: Stages, partials: list[Partial], blocks: int
) -> tuple[KernelCall, ...]:
    if not partials:
        return ()
    ops = {index: op for index in range(len(stages.results)) if (op := stages.sum_op(index))}
    return (finish_call(title, ops, partials, blocks),)


def inplace_pairs(stages: Stages) -> tuple[tuple[int, int], ...]:
    """Pairs (operand, result) whose elements lie alike, the operand read for the last time before.

    Only elements qualify: what is read once per row may be read by several blocks.
    """
    nest = stages.nest
    pairs = []
    for index, port in enumerate(stages.body.inputs):
        for number, value in enumerate(stages.results):
            same_type = (
                port.value.type == value.type and stages.place.get(port.value) is Place.ELEMENT
            )
            if not same_type or stages.sum_op(number) is not None:
                continue
            same_steps = nest.strides[port.value.name] == nest.strides[result_access(number)]
            is_element = nest.inner_stride(result_access(number)) != 0
            stored = stages.stage[value]
            if same_steps and is_element and 0 <= stages.last_read(port.value) <= stored:
                pairs.append((index, number))
    return tuple(pairs)
