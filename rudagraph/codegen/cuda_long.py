"""The loop shape of long rows on CUDA: a block goes over its row part by part, once a pass.

    for part in range(3):
        start = part * 32768
        x = tile.load_bf16(x_pointer, at + start)
        max_part = …                                   each thread's own
    x_words = last.load_words_bf16(x_pointer, at + 98304)
    …
    max = tile.across_max(max_part)

Input: the stages of a body whose row does not fit registers. Output: lines of its kernel. Every
other pass goes backwards: it begins with what the pass before read last. The last parts of a row
stay in registers, and L2 holds some of those before. A softmax's maximum and sum take one pass
together: the sum is scaled when the maximum grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from rudagraph.codegen.cuda_launch import LONG_HELD_WORDS, RowShape
from rudagraph.codegen.cuda_needs import is_shared
from rudagraph.codegen.cuda_online import Online, find_online
from rudagraph.codegen.cuda_picks import Pick, StoredPick, find_pick, find_stored_pick
from rudagraph.codegen.cuda_rows import TileKernel
from rudagraph.codegen.cuda_totals import Totals
from rudagraph.codegen.cuda_writer import FOLD_NAMES
from rudagraph.codegen.domain import result_access
from rudagraph.codegen.expressions import accumulator_dtype, convert, fold, literal, rounded
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.scalars import needs_rounding, register_text
from rudagraph.codegen.stages import Pass, Place, Source, Stages
from rudagraph.ir.graph import Op, Value
from rudagraph.ir.types import DType


class LongStages(Stages):
    """Passes that keep nothing between them: a value is loaded or computed again."""

    def _keep_cost(self) -> float:
        return math.inf


class LongKernel(TileKernel):
    """Writes the kernel of one row per block, in parts; each row is a partial sum of its own."""

    def __init__(
        self, stages: LongStages, shape: RowShape, partials: dict[int, Partial] | None = None
    ) -> None:
        super().__init__(stages, shape)
        self.online = find_online(stages)
        self.totals = Totals(self, partials or {})
        self.start = ""
        self.number: int | None = None  # of the part, where it is one that registers hold
        self._words: dict[tuple[Value, int | None], str] = {}
        picks = (find_pick(stages, op) for current in stages.passes for op in current.folds)
        self._picks = {pick.fold.result: pick for pick in picks if pick is not None}
        self._stored_picks = {
            index: pick
            for current in stages.passes
            for index in current.stores
            if (pick := find_stored_pick(stages, stages.results[index])) is not None
        }
        self._picked: dict[tuple[Value, Value], str] = {}  # (target, operand) -> its number
        self._ahead: dict[Value, str] = {}  # operands of the part that comes next
        self._early: set[Value] = set()

    def write(self) -> None:
        self.declare_operands()
        self.declare_results(self.totals.partials)
        row = self.names.fresh("row")
        self.index = Indexing(self.nest, row, "")
        self.lines.add(f"{row} = tile.row()")
        self.index.declare(self.lines, self.names, self.accesses())
        self.once()
        self.totals.start()
        self.load_picks()
        self.lines.add("tile.meet()") if self.shape.cluster > 1 else None
        self.passes()
        self.store_picks()
        self.totals.finish_rows(row, 1)

    def setup(self) -> str:
        """A tile for whole parts, and one for what is left of the row."""
        shape, rest = self.shape, self.nest.inner - (self.parts - 1) * self.part
        chunks = -(-rest // (shape.threads * shape.vector * shape.cluster))
        cluster = f", cluster={shape.cluster}" if shape.cluster > 1 else ""

        def tile(length: int, chunks: int) -> str:
            return (
                f"Tile(length={length}, vector={shape.vector}, chunks={chunks},"
                f" threads={shape.threads}, extent={self.nest.rows}{cluster})"
            )

        return f"tile = {tile(self.part, shape.chunks)}\nlast = {tile(rest, chunks)}"

    @property
    def part(self) -> int:
        shape = self.shape
        return shape.cluster * shape.threads * shape.vector * shape.chunks

    @property
    def parts(self) -> int:
        return -(-self.nest.inner // self.part)

    def passes(self, in_turn: str = "") -> None:
        backwards = False
        for at, current in enumerate(self.stages.passes):
            self.between(current)
            self.totals.add_rows(current)
            if current.has_loop and at - 1 not in self.online:
                self.need_before(current)
                self._pass(current, backwards, self.online.get(at))
                backwards = not backwards
            for op in current.folds:
                if op.result in self._picks:
                    self._finish_pick(self._picks[op.result])

    def between(self, current: Pass) -> None:
        left = [op for op in current.row_ops if op.result not in self._early]
        super().between(replace(current, row_ops=left))

    def _pass(self, current: Pass, backwards: bool, online: Online | None) -> None:
        folds = [op for op in current.folds if op.result not in self._picks]
        if online is not None:
            folds.remove(online.largest)
        own = {op.result: self._start_fold(op) for op in folds}
        pair = self._start_online(online) if online is not None else ("", "")

        def work() -> None:
            self.elements(current)
            self.store_elements(current)
            self.totals.add_elements(current)
            for op in folds:
                total, part_total = own[op.result], self.within_text(op)
                self.lines.add(f"{total} = {fold(op).function}({total}, {part_total})")
            if online is not None:
                self._add_online(online, *pair)

        self.visit_parts(current, backwards, work)
        self.lanes = "tile"
        for op in folds:
            total = own[op.result]
            self.lines.add(f"{total} = tile.across_{FOLD_NAMES[op.opcode]}({total})")
            self.finish_fold(op, total)
        if online is not None:
            self._finish_online(online, *pair)

    def visit_parts(self, current: Pass, backwards: bool, work: Callable[[], None]) -> None:
        """Write every part's work: those that registers hold last, or first on the way back."""
        held = range(max(self.parts - self._held_parts(), 0), self.parts)

        def loop() -> None:
            if not held.start:
                return
            part, self.start = self.names.fresh("part"), self.names.fresh("start")
            self.lanes, self.number = "tile", None
            last = held.start - 1
            self.start, start = str(last * self.part if backwards else 0), self.start
            self._load_ahead(current)
            with self.lines.block(f"for {part} in range({held.start}):"):
                index = f"({last} - {part})" if backwards else part
                self.lines.add(f"{start} = {index} * {self.part}")
                following = f"max({index} - 1, 0)" if backwards else f"min({index} + 1, {last})"
                self.start = self.names.fresh("following")
                self.lines.add(f"{self.start} = {following} * {self.part}")
                now = {value: self.names.fresh(f"{value.name}_words") for value in self._ahead}
                self.lines.add(*(f"{now[value]} = {self._ahead[value]}" for value in now))
                self._load_ahead(current)
                self.start = start
                for value, words in now.items():
                    self._words[value, None] = words
                work()
                for value in now:
                    del self._words[value, None]
            self._ahead.clear()

        if not backwards:
            loop()
        for number in reversed(held) if backwards else held:
            self.lanes = "last" if number == self.parts - 1 else "tile"
            self.start, self.number = str(number * self.part), number
            work()
        if backwards:
            loop()

    def _load_ahead(self, current: Pass) -> None:
        """Load what each row brings, a part before it is worked on."""
        if self.shape.cluster > 1:  # other blocks' rows are under way: 75 % without, 73 with
            return
        for value, source in current.sources.items():
            if source is not Source.OPERAND or self.nest.inner_stride(value.name) != 1:
                continue
            if is_shared(self.stages, value):
                continue
            if value not in self._ahead:
                self._ahead[value] = self.names.fresh(f"next_{value.name}_words")
            pointer, at, dtype = self.pointer[value.name], self.offset(value.name), value.type.dtype
            self.lines.add(f"{self._ahead[value]} = tile.load_words_{dtype}({pointer}, {at})")

    def _held_parts(self) -> int:
        """How many parts registers hold, over all that later passes take again."""
        words = sum(value.type.dtype.size / 4 for value in self._taken_again())
        if not words:
            return 1
        each = self.shape.vector * self.shape.chunks * words
        return max(1, int(LONG_HELD_WORDS // each))

    def loops(self) -> list[Pass]:
        """The passes that go over the row: not those that one before does as well."""
        passes = enumerate(self.stages.passes)
        return [current for at, current in passes if at - 1 not in self.online]

    def _taken_again(self) -> list[Value]:
        counts: dict[Value, int] = {}
        for current in self.loops():
            for value, source in current.sources.items():
                if source in (Source.OPERAND, Source.STORED):
                    counts[value] = counts.get(value, 0) + 1
        stored = set(self.stages.results)
        return [value for value, count in counts.items() if count > 1 or value in stored]

    def offset(self, access: str) -> str:
        base, step = self.index.base(access), self.nest.inner_stride(access)
        start = self.start if step == 1 else f"{self.start} * {step}"
        return start if base == "0" else f"{base} + {start}"

    def _start_fold(self, op: Op) -> str:
        name = self.names.fresh(f"{op.result.name}_part")
        self.lines.add(f"{name} = {literal(fold(op).start, accumulator_dtype(op))}")
        return name

    # -- elements that the row's number picks

    def load_picks(self) -> None:
        """Before any pass: a later one may store over what is picked."""
        picks: list[Pick | StoredPick] = [*self._picks.values(), *self._stored_picks.values()]
        for pick in picks:
            self._compute_early(pick.target)
            target = f"int64({self.register[pick.target]})"
            at = self.names.fresh("picked_at")
            self.lines.add(f"{at} = {target} if {self._is_inside(pick.target)} else 0")
            for operand in pick.operands:
                if (pick.target, operand) in self._picked:
                    continue
                base, step = self.index.base(operand.name), self.nest.inner_stride(operand.name)
                name = self.names.fresh(f"picked_{operand.name}")
                place = f"{base} + {at}" + (f" * {step}" if step != 1 else "")
                pointer = self.pointer[operand.name]
                self.lines.add(f"{name} = load_{operand.type.dtype}({pointer}, {place})")
                self._picked[pick.target, operand] = name

    def _is_inside(self, value: Value) -> str:
        target = f"int64({self.register[value]})"
        return f"{target} >= 0 and {target} < {self.nest.inner}"

    def _compute_early(self, value: Value) -> None:
        """A row's number that waits for no reduction."""
        op = self.stages.producer.get(value)
        if op is None:
            self.need((value,))
            return
        if value in self.register:
            return
        for operand in op.inputs:
            self._compute_early(operand)
        self.compute(op)
        self._early.add(value)

    def _finish_pick(self, pick: Pick) -> None:
        found = self._number_at(pick.target, pick.value, {})
        zero = literal(0, pick.value.type.dtype)
        self.assign(pick.fold.result, f"{found} if {self._is_inside(pick.target)} else {zero}")

    def _number_at(self, target: Value, value: Value, known: dict[Value, str]) -> str:
        """An element value at the place that a row's number gives."""
        if not self.is_at(value, Place.ELEMENT):
            self.need((value,))
            return self.register[value]
        if (target, value) in self._picked:
            return self._picked[target, value]
        if value not in known:
            op = self.stages.producer[value]
            names = [self._number_at(target, operand, known) for operand in op.inputs]
            is_coarse = op.opcode == "exp" and self.coarse.is_coarse(value)
            text = f"exp_coarse({names[0]})" if is_coarse else register_text(op, names, "")
            if needs_rounding(op):
                text = rounded(text, value.type.dtype)
            known[value] = self.names.fresh(f"picked_{value.name}")
            self.lines.add(f"{known[value]} = {text}")
        return known[value]

    def store_picks(self) -> None:
        """The one element of each row that its pass took for one of the others."""
        if not self._stored_picks:
            return
        self.lines.add("tile.meet()" if self.shape.cluster > 1 else "synchronise()")
        for index, pick in self._stored_picks.items():
            value, access = pick.value, result_access(index)
            target = self.register[pick.target]
            found = self._number_at(pick.target, value, {pick.hit: f"eq({target}, {target})"})
            base, step = self.index.base(access), self.nest.inner_stride(access)
            place = f"int64({target})" + (f" * {step}" if step != 1 else "")
            pointer, dtype = self.pointer[access], value.type.dtype
            with self.lines.block(f"if {self._is_inside(pick.target)}:"):
                self.lines.add(f"tile.store_row_{dtype}({pointer}, {base} + {place}, {found})")

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
            f"{new} = maximum({largest}, {self.lanes}.within_max({x}))",
            # A thread that has met nothing but -infinity must not compute infinity - infinity.
            f"{base} = where(eq({new}, float32(-infinity)), float32(0.0), {new})",
            f"{total} = mul({total}, exp_coarse(sub({largest}, {base})))",
            # Scaled after the difference: of logits near 1e6 each, e**x / e**base would be noise.
            f"{total} = add({total}, {self.lanes}.within_sum(exp_coarse(sub({x}, {base}))))",
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
        self.take_part(value, value.name)

    def take_stored(self, value: Value) -> None:
        self.take_part(value, result_access(self.stages.results.index(value)))

    def take_part(self, value: Value, access: str) -> None:
        """An element value of this part: from registers where they hold it, else from memory."""
        dtype, known = value.type.dtype, self._words.get((value, self.number))
        if known is not None:
            self.assign(value, f"{self.lanes}.unpack_again_{dtype}({known})")
            return
        is_held = self.number is not None and self.nest.inner_stride(access) == 1
        if not is_held or value not in self._taken_again():
            self.assign(value, self.load_text(access, dtype))
            return
        words = self._hold(value)
        pointer, at = self.pointer[access], self.offset(access)
        self.lines.add(f"{words} = {self.lanes}.load_words_{dtype}({pointer}, {at})")
        self.assign(value, f"{self.lanes}.unpack_{dtype}({words})")

    def _hold(self, value: Value) -> str:
        name = self.names.fresh(f"{value.name}_words")
        self._words[value, self.number] = name
        return name

    def elements(self, current: Pass) -> None:
        picks = [self._stored_picks[i] for i in current.stores if i in self._stored_picks]
        hits = {pick.hit: self.register[pick.target] for pick in picks}
        for value in self.ordered(current):
            if value in hits:  # none is, until the end
                self.register[value] = f"ne({hits[value]}, {hits[value]})"
                continue
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
            later = self.stages.passes[self.stages.passes.index(current) + 1 :]
            wanted = any(each.sources.get(value) is Source.STORED for each in later)
            plain = self.nest.inner_stride(access) == 1 and value in current.sources
            if self.number is None or not (wanted and plain):
                self.lines.add(self.store_text(access, value))
                continue
            dtype, words = value.type.dtype, self._hold(value)
            self.lines.add(f"{words} = {self.lanes}.pack_{dtype}({self.register[value]})")
            pointer, at = self.pointer[access], self.offset(access)
            self.lines.add(f"{self.lanes}.store_words_{dtype}({pointer}, {at}, {words})")
