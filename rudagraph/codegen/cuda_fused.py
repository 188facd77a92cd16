"""A fused op as CUDA kernels: nest, stages, loop shape, and the finishing of sums.

Input: the op and the strides of its operands and results. Output: Lowered. Invariant: what the
kernels compute does not depend on which operands share memory with results.
"""

from __future__ import annotations

from rudagraph.codegen.cuda_finish import finish_call
from rudagraph.codegen.cuda_flat import FlatKernel
from rudagraph.codegen.cuda_launch import (
    FLAT_THREADS,
    active_threads,
    fits,
    row_shape,
    sum_groups,
    sum_row_shape,
    vector_length,
)
from rudagraph.codegen.cuda_rows import TileKernel
from rudagraph.codegen.cuda_sums import FlatSumKernel, TileSumKernel
from rudagraph.codegen.cuda_writer import CUDA_PREAMBLE
from rudagraph.codegen.domain import Nest, body_nest, result_access, sum_access
from rudagraph.codegen.expressions import accumulator_dtype
from rudagraph.codegen.fused import inplace_pairs, kernel_title
from rudagraph.codegen.memory import Partial, lay_out_partials
from rudagraph.codegen.source import describe, kernel_call
from rudagraph.codegen.stages import Place, Source, Stages
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.schedule.kernel import CudaLaunch
from rudagraph.schedule.lowered import KernelCall, Lowered, Strides

Kernel = FlatKernel | TileKernel


def lower_fused(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    target: str,
) -> Lowered:
    """Kernel calls of a fused op."""
    body = op.body
    assert body is not None, "a fused op has a body"
    nest = body_nest(body, operand_strides, result_strides)
    stages = Stages(body, nest)
    title = kernel_title(op)
    sums = [index for index in range(len(stages.results)) if stages.sum_op(index) is not None]
    if nest.elements == 0:
        return Lowered(_finish_empty(title, stages, sums, target))
    vector = vector_length(_sizes(stages), *_multiples(stages))
    is_flat = len(stages.passes) == 1
    if not sums:
        kernel, launch = _plain(stages, vector, is_flat, target)
        return Lowered((_call(title, stages, kernel, launch),), (), inplace_pairs(stages))
    kernel, launch, partials, sizes = _summing(stages, sums, vector, is_flat, target)
    ops = {index: stages.sum_op(index) for index in sums}
    first = _call(title, stages, kernel, launch)
    second = finish_call(title, {i: o for i, o in ops.items() if o is not None}, partials, target)
    return Lowered((first, second), sizes, inplace_pairs(stages))


def _plain(
    stages: Stages, vector: int, is_flat: bool, target: str
) -> tuple[Kernel, CudaLaunch]:
    if is_flat:
        return FlatKernel(stages, vector), CudaLaunch(target, FLAT_THREADS)
    shape = row_shape(stages.nest.inner, vector, _held_words(stages))
    if not fits(shape, _held_words(stages)):
        raise UnsupportedError(f"rows of {stages.nest.inner} do not fit the registers of a block")
    return TileKernel(stages, shape), CudaLaunch(target, shape.block_threads, shape.resident)


def _summing(
    stages: Stages, sums: list[int], vector: int, is_flat: bool, target: str
) -> tuple[Kernel, CudaLaunch, list[tuple[Partial, int]], tuple[int, ...]]:
    """The first kernel, its launch, partial sums with their numbers, bytes of the workspaces."""
    columns = [index for index in sums if stages.is_column(index)]
    others = [index for index in sums if not stages.is_column(index)]
    nest = stages.nest
    if is_flat:
        per_row = nest.inner // vector if columns else 1
        active = active_threads(nest.elements // vector, per_row, target)
        counts = (active // per_row, -(-active // FLAT_THREADS))
        partials, sizes = _partials(stages, (columns, others), counts)
        by_result = {partial.result: partial for partial, _ in partials}
        flat = FlatSumKernel(stages, vector, active, by_result)
        return flat, CudaLaunch(target, FLAT_THREADS), partials, sizes
    shape = sum_row_shape(nest.inner, vector, _held_words(stages))
    groups = sum_groups(shape, nest.rows, target)
    partials, sizes = _partials(stages, (columns, others), (groups, groups))
    by_result = {partial.result: partial for partial, _ in partials}
    tile = TileSumKernel(stages, shape, groups, by_result)
    return tile, CudaLaunch(target, shape.block_threads, shape.resident), partials, sizes


def _partials(
    stages: Stages, groups: tuple[list[int], list[int]], counts: tuple[int, int]
) -> tuple[list[tuple[Partial, int]], tuple[int, ...]]:
    """Column sums in one workspace, other sums in another."""
    result: list[tuple[Partial, int]] = []
    sizes: list[int] = []
    for members, count in zip(groups, counts, strict=True):
        if not members:
            continue
        described = []
        for index in members:
            op = stages.sum_op(index)
            assert op is not None
            column = stages.is_column(index)
            described.append(
                (index, accumulator_dtype(op), stages.nest.inner if column else 1, column)
            )
        partials, step = lay_out_partials(described, len(sizes))
        result += [(partial, count) for partial in partials]
        sizes.append(step * count)
    return result, tuple(sizes)


def _call(title: str, stages: Stages, kernel: Kernel, launch: CudaLaunch) -> KernelCall:
    kernel.write()
    nest = stages.nest
    docstring = [f"{nest.rows} rows of {nest.inner}.", "", *describe(stages.body)]
    return kernel_call(
        title,
        docstring,
        kernel.lines,
        kernel.parameters,
        nest.rows,
        kernel.blocks,
        preamble=f"{CUDA_PREAMBLE}\n\n{kernel.setup()}",
        cuda=launch,
    )


def _finish_empty(
    title: str, stages: Stages, sums: list[int], target: str
) -> tuple[KernelCall, ...]:
    """Sums of nothing."""
    if not sums:
        return ()
    groups = ([], []) if not sums else (
        [index for index in sums if stages.is_column(index)],
        [index for index in sums if not stages.is_column(index)],
    )
    partials, _ = _partials(stages, groups, (0, 0))
    ops = {index: op for index in sums if (op := stages.sum_op(index)) is not None}
    return (finish_call(title, ops, partials, target),)


# -- what vectors must divide, and what a row's elements take


def _stepping(stages: Stages) -> list[tuple[str, Value]]:
    """Accesses to memory that step along the row, with what lies there."""
    nest = stages.nest
    accesses = [(port.value.name, port.value) for port in stages.body.inputs]
    accesses += [
        (result_access(index), value)
        for index, value in enumerate(stages.results)
        if stages.sum_op(index) is None
    ]
    return [(access, value) for access, value in accesses if nest.inner_stride(access) == 1]


def _sizes(stages: Stages) -> list[int]:
    return [value.type.dtype.size for _, value in _stepping(stages)]


def _multiples(stages: Stages) -> list[int]:
    """Row length, and the steps of everything that is accessed by vectors or counted."""
    nest = stages.nest
    steps = [nest.inner]
    accesses = [access for access, _ in _stepping(stages)]
    accesses += [op.result.name for op in stages.body.ops if has(op, Tag.RANDOM)]
    accesses += [
        sum_access(index)
        for index in range(len(stages.results))
        if stages.sum_op(index) is not None and nest.inner_stride(sum_access(index)) != 0
    ]
    for access in accesses:
        steps += nest.outer_strides(access)
    return steps


def _held_words(stages: Stages) -> float:
    """32-bit words an element takes while its row is held: operands, and what later passes want."""
    words = 0.0
    seen: set[Value] = set()
    for current in stages.passes:
        for value, source in current.sources.items():
            if value in seen or stages.place[value] is not Place.ELEMENT:
                continue
            if source in (Source.OPERAND, Source.STORED, Source.KEPT):
                seen.add(value)
                kept = source is Source.KEPT
                words += (value.type.dtype.compute if kept else value.type.dtype).size / 4
    return words
