"""A fused op as CUDA kernels: nest, stages, loop shape, and the finishing of sums.

Input: the op and the strides of its operands and results. Output: Lowered. Invariant: what the
kernels compute does not depend on which operands share memory with results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rudagraph.codegen.copies import without_copies
from rudagraph.codegen.cuda_finish import finish_call
from rudagraph.codegen.cuda_flat import FlatKernel
from rudagraph.codegen.cuda_flat_sums import FlatSumKernel
from rudagraph.codegen.cuda_launch import (
    ASKED_ROWS,
    FLAT_THREADS,
    SHARED_HELD_WORDS,
    WARP,
    RowShape,
    ahead_shape,
    copies_in_bulk,
    cuda_launch,
    early_blocks,
    fits,
    late_shape,
    long_shape,
    row_shape,
    rows_behind,
    widest_shape,
)
from rudagraph.codegen.cuda_long import LongKernel, LongStages
from rudagraph.codegen.cuda_long_ring import LongRingKernel, find_long_ring, ring_blocks
from rudagraph.codegen.cuda_needs import (
    held_words,
    needs_of,
    peak_words,
    stepping_operands,
    vector_of,
)
from rudagraph.codegen.cuda_rows import SPARE_REGISTERS, TileKernel, TileStages
from rudagraph.codegen.cuda_split import split_folds
from rudagraph.codegen.cuda_sum_shapes import (
    ASKED_SINGLES,
    Loads,
    RingShape,
    active_threads,
    asks_ahead,
    ring_shape,
    sum_choices,
    sum_groups,
    sum_row_shapes,
    sums_fit,
)
from rudagraph.codegen.cuda_sums import TileSumKernel
from rudagraph.codegen.cuda_writer import CUDA_PREAMBLE
from rudagraph.codegen.domain import body_nest
from rudagraph.codegen.expressions import accumulator_dtype
from rudagraph.codegen.fused import inplace_pairs, kernel_title
from rudagraph.codegen.memory import Partial, lay_out_partials
from rudagraph.codegen.ranges import mark_nonpositive
from rudagraph.codegen.source import describe, kernel_call, overview
from rudagraph.ir.graph import Attribute, Graph, Op
from rudagraph.ir.types import row_major_strides
from rudagraph.schedule.kernel import CudaLaunch
from rudagraph.schedule.lowered import KernelArgument, KernelCall, Lowered, Strides

Kernel = FlatKernel | TileKernel


def lower_fused(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    target: str,
    offsets: tuple[int, ...] = (),
) -> Lowered:
    """Kernel calls of a fused op; buffers begin at multiples of 16 bytes, operands at offsets."""
    assert op.body is not None, "a fused op has a body"
    body = mark_nonpositive(without_copies(op.body))
    title, form = kernel_title(op), op.get("form")
    return _Lowering(title, form, body, operand_strides, result_strides, target, offsets).lower()


@dataclass
class _Lowering:
    """One body on its way to kernels."""

    title: str
    form: Attribute
    body: Graph
    operand_strides: tuple[Strides | None, ...]
    result_strides: tuple[Strides, ...]
    target: str
    offsets: tuple[int, ...] = ()

    def lower(self) -> Lowered:
        self.nest = body_nest(self.body, self.operand_strides, self.result_strides)
        self.stages = TileStages(self.body, self.nest)
        numbers = range(len(self.stages.results))
        self.sums = {i: op for i in numbers if (op := self.stages.sum_op(i)) is not None}
        pairs = inplace_pairs(self.stages)
        if self.nest.elements == 0:
            return Lowered(self._finish(*self._partials((0, 0))))
        self.vector = vector_of(self.stages, self.offsets)
        if len(self.stages.passes) == 1:
            return replace(self._flat(), inplace=pairs)
        if not self.sums:
            return replace(self._rows(), inplace=pairs)
        return replace(self._rows_with_sums(), inplace=pairs)

    # -- loop shapes

    def _flat(self) -> Lowered:
        if not self.sums:
            kernel = FlatKernel(self.stages, self.vector)
            return self._lowered(kernel, cuda_launch(self.target, kernel.block_threads))
        launch = cuda_launch(self.target, FLAT_THREADS)
        columns = any(self.stages.is_column(index) for index in self.sums)
        per_row = self.nest.inner // self.vector if columns else 1
        active = active_threads(self.nest.elements // self.vector, per_row, self.target)
        counts = (active // per_row, -(-active // FLAT_THREADS))
        partials, sizes = self._partials(counts)
        summing = FlatSumKernel(self.stages, self.vector, active, _by_result(partials))
        return self._lowered(summing, launch, partials, sizes)

    def _rows(self) -> Lowered:
        words = held_words(self.stages)
        shape = row_shape(self.nest.inner, self.vector, words)
        needs = needs_of(self.stages)
        found = ahead_shape(shape, self.nest.rows, needs.shared, needs.unpacked, self.target)
        if found is not None:
            is_single = len(stepping_operands(self.stages)) == 1
            asks = ASKED_ROWS if is_single and copies_in_bulk(self.target) else 0
            return self._persistent(self.stages, *found, Loads.AHEAD, None, asks)
        is_small = shape.chunks * shape.vector * words <= SHARED_HELD_WORDS
        own = held_words(self.stages, shared=False)
        holds_shared = is_small or shape.threads <= WARP or own == words
        if not holds_shared:
            shape = late_shape(self.nest.inner, self.vector)
        peak = peak_words(self.stages, shared=holds_shared)
        if not fits(shape, peak):
            shape = widest_shape(self.nest.inner, self.vector)
        if not fits(shape, peak):
            return self._long()
        launch = cuda_launch(self.target, shape.block_threads, shape.resident)
        behind = rows_behind(shape, self.target)
        kernel = TileKernel(self.stages, shape, holds_shared=holds_shared, behind=behind)
        return self._lowered(kernel, launch)

    def _rows_with_sums(self) -> Lowered:
        if not any(self.stages.is_column(index) for index in self.sums):
            return self._rows_with_totals()
        plan = self._plan_rows_with_sums()
        if plan is None:
            return self._split()
        stages, shape, loads, ring = plan
        shape, groups = sum_groups(shape, self.nest.rows, self.target)
        singles = loads is Loads.PLAIN and asks_ahead(self.vector, shape, self.target)
        asks = ASKED_SINGLES if singles else 0
        return self._persistent(stages, shape, groups, loads, ring, asks)

    def _rows_with_totals(self) -> Lowered:
        """No thread keeps columns from row to row, so every row has a group of its own."""
        words = held_words(self.stages)
        shape = row_shape(self.nest.inner, self.vector, words)
        if not fits(shape, words):
            return self._long()
        if shape.threads < WARP:  # where groups must run in step
            shape = sum_row_shapes(self.nest.inner, self.vector)[0]
            shape, groups = sum_groups(shape, self.nest.rows, self.target)
        else:
            groups = -(-self.nest.rows // shape.rows) * shape.rows
        return self._persistent(self.stages, shape, groups, Loads.PLAIN, None)

    def _persistent(
        self,
        stages: TileStages,
        shape: RowShape,
        groups: int,
        loads: Loads,
        ring: RingShape | None,
        asks: int = 0,
    ) -> Lowered:
        partials, sizes = self._partials((groups // shape.rows, groups))
        by_result = _by_result(partials)
        kernel = TileSumKernel(stages, shape, groups, by_result, loads=loads, ring=ring, asks=asks)
        shared = 0 if ring is None else ring.bytes
        launch = cuda_launch(
            self.target, shape.block_threads, shape.resident, shared, shape.cluster
        )
        return self._lowered(kernel, launch, partials, sizes)

    def _plan_rows_with_sums(
        self,
    ) -> tuple[TileStages, RowShape, Loads, RingShape | None] | None:
        """The first choice that fits registers: what is held, the shape, how rows are loaded."""
        spare = TileStages(self.body, self.nest, SPARE_REGISTERS)
        sizes = tuple(value.type.dtype.size for value in stepping_operands(self.stages))
        for shapes, choices in sum_choices(self.nest.inner, self.vector, self.target):
            for holds, loads in choices:
                stages = spare if holds else self.stages
                words = needs_of(stages).words(loads)
                for shape in shapes:
                    ring = None
                    if loads is Loads.RING:
                        ring = ring_shape(shape, sizes, self.target, is_held=holds)
                    is_possible = loads is not Loads.RING or ring is not None
                    if is_possible and sums_fit(shape, words):
                        return stages, shape, loads, ring
        return None

    def _long(self) -> Lowered:
        shape = long_shape(self.nest.inner, self.vector, self._row_bytes(), self.target)
        stages = LongStages(self.body, self.nest)
        found = find_long_ring(stages, shape, self.target)
        if found is not None:
            shape, ring = found
            count = ring_blocks(self.nest.rows, self.target)
            partials, sizes = self._partials((count, count))
            turns = LongRingKernel(stages, shape, _by_result(partials), ring, count)
            launch = cuda_launch(self.target, shape.threads, shape.resident, ring.bytes)
            return self._lowered(turns, launch, partials, sizes)
        partials, sizes = self._partials((self.nest.rows, self.nest.rows))
        kernel = LongKernel(stages, shape, _by_result(partials))
        launch = cuda_launch(self.target, shape.threads, shape.resident, cluster=shape.cluster)
        return self._lowered(kernel, launch, partials, sizes)

    def _row_bytes(self) -> int:
        """Of the operands that each row brings."""
        sizes = [value.type.dtype.size for value in stepping_operands(self.stages)]
        return self.nest.inner * sum(sizes)

    def _split(self) -> Lowered:
        """Row reductions by one kernel, everything else by another."""
        first, second = split_folds(self.body)
        statistics = [port.value.type for port in first.outputs]
        strides = tuple(row_major_strides(type.shape) for type in statistics)
        one = _Lowering(
            f"{self.title}_rows",
            self.form,
            first,
            self.operand_strides,
            strides,
            self.target,
            self.offsets,
        ).lower()
        two = _Lowering(
            self.title,
            self.form,
            second,
            (*self.operand_strides, *strides),
            self.result_strides,
            self.target,
            self.offsets,
        ).lower()
        operands, base = len(self.body.inputs), len(one.workspaces) + len(two.workspaces)

        def of_first(argument: KernelArgument) -> KernelArgument:
            if argument.kind == "result":
                return KernelArgument("workspace", base + argument.index)
            return argument

        def of_second(argument: KernelArgument) -> KernelArgument:
            if argument.kind == "operand" and argument.index >= operands:
                return KernelArgument("workspace", base + argument.index - operands)
            if argument.kind == "workspace":
                return KernelArgument("workspace", len(one.workspaces) + argument.index)
            if argument.kind == "error":
                return KernelArgument("error", one.errors + argument.index)
            return argument

        calls = [KernelCall(c.source, tuple(map(of_first, c.arguments))) for c in one.calls]
        calls += [KernelCall(c.source, tuple(map(of_second, c.arguments))) for c in two.calls]
        sizes = (*one.workspaces, *two.workspaces, *(type.bytes for type in statistics))
        return Lowered(tuple(calls), sizes, (), one.errors + two.errors)

    # -- calls

    def _lowered(
        self,
        kernel: Kernel,
        launch: CudaLaunch,
        partials: list[tuple[Partial, int]] | None = None,
        sizes: tuple[int, ...] = (),
    ) -> Lowered:
        kernel.early_blocks = early_blocks(launch)
        kernel.write()
        docstring = [overview(self.form, self.nest), "", *describe(self.body)]
        call = kernel_call(
            self.title,
            docstring,
            kernel.lines,
            kernel.parameters,
            self.nest.rows,
            kernel.blocks,
            preamble=f"{CUDA_PREAMBLE}\n\n{kernel.setup()}",
            cuda=launch,
        )
        return Lowered((call, *self._finish(partials or [])), sizes, (), len(kernel.checks))

    def _finish(
        self, partials: list[tuple[Partial, int]], sizes: tuple[int, ...] = ()
    ) -> tuple[KernelCall, ...]:
        return (finish_call(self.title, self.sums, partials, self.target),) if partials else ()

    def _partials(
        self, counts: tuple[int, int]
    ) -> tuple[list[tuple[Partial, int]], tuple[int, ...]]:
        """Column sums in one workspace, other sums in another; how many of each there are."""
        result: list[tuple[Partial, int]] = []
        sizes: list[int] = []
        for column, count in zip((True, False), counts, strict=True):
            members = [
                (index, accumulator_dtype(op), self.nest.inner if column else 1, column)
                for index, op in self.sums.items()
                if self.stages.is_column(index) is column
            ]
            if members:
                partials, step = lay_out_partials(members, len(sizes))
                result += [(partial, count) for partial in partials]
                sizes.append(step * count)
        return result, tuple(sizes)


def _by_result(partials: list[tuple[Partial, int]]) -> dict[int, Partial]:
    return {partial.result: partial for partial, _ in partials}
