"""The loop shape of long rows on CUDA: a block goes over its row part by part, once a pass.

    for part in range(4):
        start = part * 32768
        x = tile.load_bf16(x_pointer, at, start)
        maximum_part = …                                   each thread's own
    max = tile.across_max(max_part)

Input: the stages of a body whose row does not fit registers. Output: lines of its kernel. Every
other pass goes backwards: it begins with what the pass before read last, which L2 still holds.
A softmax's maximum and sum take one pass together: the sum is scaled when the maximum grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rudagraph.codegen.cuda_launch import RowShape
from rudagraph.codegen.cuda_rows import TileKernel
from rudagraph.codegen.cuda_sums import Totals
from rudagraph.codegen.cuda_writer import FOLD_NAMES
from rudagraph.codegen.domain import result_access
from rudagraph.codegen.expressions import accumulator_dtype, convert, fold, literal
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.stages import Pass, Source, Stages
from rudagraph.ir.graph import Op, Value
from rudagraph.ir.types import DType


class LongStages(Stages):
    """Passes that keep nothing between them: a value is loaded or computed again."""

    def _keep_cost(self) -> float:
        return math.inf


@dataclass(frozen=True)
class Online:
    """A maximum, and the sum of exp(x - maximum) in the pass after it."""

    largest: Op
    exponential: Op
    total: Op


def find_online(stages: Stages) -> dict[int, Online]:
    """By pass: pairs of which the second pass has nothing else to do."""
    found: dict[int, Online] = {}
    for at, (current, following) in enumerate(zip(stages.passes, stages.passes[1:], strict=False)):
        pair = _pair(stages, current, following)
        if pair is not None and at - 1 not in found:
            found[at] = pair
    return found


def _pair(stages: Stages, current: Pass, following: Pass) -> Online | None:
    if len(following.folds) != 1 or following.sums or following.stores or following.row_ops:
        return None
    (total,) = following.folds
    exponential = stages.producer.get(total.inputs[0])
    if total.opcode != "sum" or exponential is None or exponential.opcode != "exp":
        return None
    difference = stages.producer.get(exponential.inputs[0])
    if difference is None or difference.opcode != "sub" or len(difference.inputs) != 2:
        return None
    x, largest = difference.inputs
    for op in current.folds:
        same = op.opcode == "amax" and op.result == largest and op.inputs[0] == x
        if same and x.type.dtype is DType.F32:
            return Online(op, exponential, total)
    return None


class LongKernel(TileKernel):
    """Writes the kernel of one row per block, in parts; each row is a partial sum of its own."""

    def __init__(
        self, stages: LongStages, shape: RowShape, partials: dict[int, Partial] | None = None
    ) -> None:
        super().__init__(stages, shape)
        self.online = find_online(stages)
        self.totals = Totals(self, partials or {})
        self.start = ""

    def write(self) -> None:
        self.declare_operands()
        self.declare_results(self.totals.partials)
        row = self.names.fresh("row")
        self.index = Indexing(self.nest, row, "")
        self.lines.add(f"{row} = tile.row()")
        self.index.declare(self.lines, self.names, self.accesses())
        self.once()
        self.totals.start()
        self.passes()
        self.totals.finish_rows(row)

    def setup(self) -> str:
        return super().setup().removesuffix(")") + ", parts=True)"

    @property
    def part(self) -> int:
        return self.shape.threads * self.shape.vector * self.shape.chunks

    def passes(self, in_turn: str = "") -> None:
        backwards = False
        for at, current in enumerate(self.stages.passes):
            self.between(current)
            self.totals.add_rows(current)
            if not current.has_loop or at - 1 in self.online:
                continue
            self.need_before(current)
            self._pass(current, backwards, self.online.get(at))
            backwards = not backwards

    def _pass(self, current: Pass, backwards: bool, online: Online | None) -> None:
        folds = [op for op in current.folds if online is None or op is not online.largest]
        own = {op.result: self._start_fold(op) for op in folds}
        pair = self._start_online(online) if online is not None else ("", "")
        parts = -(-self.nest.inner // self.part)
        part = self.names.fresh("part")
        self.start = self.names.fresh("start")
        with self.lines.block(f"for {part} in range({parts}):"):
            index = f"({parts - 1} - {part})" if backwards else part
            self.lines.add(f"{self.start} = {index} * {self.part}")
            self.elements(current)
            self.store_elements(current)
            self.totals.add_elements(current)
            for op in folds:
                total, part_total = own[op.result], self.within_text(op)
                self.lines.add(f"{total} = {fold(op).function}({total}, {part_total})")
            if online is not None:
                self._add_online(online, *pair)
        for op in folds:
            total = own[op.result]
            self.lines.add(f"{total} = tile.across_{FOLD_NAMES[op.opcode]}({total})")
            self.finish_fold(op, total)
        if online is not None:
            self._finish_online(online, *pair)

    def _start_fold(self, op: Op) -> str:
        name = self.names.fresh(f"{op.result.name}_part")
        self.lines.add(f"{name} = {literal(fold(op).start, accumulator_dtype(op))}")
        return name

    # -- softmax's pair

    def _start_online(self, online: Online) -> tuple[str, str]:
        largest = self.names.fresh(f"{online.largest.result.name}_part")
        total = self.names.fresh(f"{online.total.result.name}_part")
        self.lines.add(f"{largest} = float32(-infinity)", f"{total} = float32(0.0)")
        return largest, total

    def _add_online(self, online: Online, largest: str, total: str) -> None:
        x = self.register[online.largest.inputs[0]]
        new, base = self.names.fresh("larger"), self.names.fresh("base")
        self.lines.add(
            f"{new} = maximum({largest}, tile.within_max({x}, {self.start}))",
            # A thread that has met nothing but -infinity must not compute infinity - infinity.
            f"{base} = where(eq({new}, float32(-infinity)), float32(0.0), {new})",
            f"{total} = mul({total}, exp_coarse(sub({largest}, {base})))",
            f"{total} = add({total}, tile.within_sum(exp_coarse(sub({x}, {base})), {self.start}))",
            f"{largest} = {new}",
        )

    def _finish_online(self, online: Online, largest: str, total: str) -> None:
        whole, base = self.names.fresh("whole"), self.names.fresh("base")
        self.lines.add(
            f"{whole} = tile.across_max({largest})",
            f"{base} = where(eq({whole}, float32(-infinity)), float32(0.0), {whole})",
            f"{total} = tile.across_sum(mul({total}, exp_coarse(sub({largest}, {base}))))",
        )
        self.assign(online.largest.result, whole)
        result = online.total.result
        self.assign(result, convert(total, DType.F32, result.type.dtype))

    # -- elements of a part

    def take_operand(self, value: Value) -> None:
        self.assign(value, self.load_text(value.name, value.type.dtype))

    def take_stored(self, value: Value) -> None:
        access = result_access(self.stages.results.index(value))
        self.assign(value, self.load_text(access, value.type.dtype))

    def elements(self, current: Pass) -> None:
        for value in self.ordered(current):
            source = current.sources[value]
            if source is Source.OPERAND:
                self.take_operand(value)
            elif source is Source.STORED:
                self.take_stored(value)
            else:
                self.compute(self.stages.producer[value], self._only_stored(value, current))

    def store_elements(self, current: Pass) -> None:
        for index in current.stores:
            value, access = self.stages.results[index], result_access(index)
            self.lines.add(self.store_text(access, value))

    def within_text(self, op: Op) -> str:
        return self._in_part(super().within_text(op))

    def load_text(self, access: str, dtype: DType) -> str:
        return self._in_part(super().load_text(access, dtype))

    def store_text(self, access: str, value: Value) -> str:
        return self._in_part(super().store_text(access, value))

    def positions(self, value: Value) -> str:
        text = super().positions(value)
        return text.replace("tile.positions()", f"tile.positions({self.start})")

    def random_words(self, op: Op) -> str:
        text = super().random_words(op)
        return self._in_part(text) if text.startswith("tile.") else text

    def _special(self, op: Op) -> str:
        text = super()._special(op)
        return self._in_part(text) if text.startswith("tile.") else text

    def _in_part(self, text: str) -> str:
        """The call with the start of the part as its last argument."""
        return f"{text.removesuffix(')')}, {self.start})"
