"""Sums over rows on CUDA: persistent threads keep partial sums in registers, a second kernel adds.

    row = group                                  group: the rows of one block (or part of one)
    while row < 8192:
        …                                        the passes over a row, as in cuda_rows
        dweight_sum = accumulate_add(dweight_sum, weighted)
        row = int32(row + 264)
    tile.store_f32(advance(partials, group * 16384), 0, dweight_sum)

Input: the stages of a body with sums. Output: lines of the first kernel. Invariant: which rows a
partial sum takes, and in which order, follows from shapes alone. The next row is loaded while this
one is worked on: a block has few threads to hide a load behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rudagraph.codegen.cuda_flat import FlatKernel
from rudagraph.codegen.cuda_launch import (
    FLAT_THREADS,
    MOST_SLOTS,
    WARP,
    Loads,
    RingShape,
    RowShape,
)
from rudagraph.codegen.cuda_rows import TileKernel
from rudagraph.codegen.cuda_writer import FOLD_NAMES, Writer
from rudagraph.codegen.expressions import fold, literal
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.stages import Pass, Place, Stages
from rudagraph.ir.graph import Value
from rudagraph.schedule.lowered import KernelArgument


@dataclass
class Totals:
    """Registers of the sums of one kernel: tiles for column sums, numbers for the others."""

    writer: Writer
    partials: dict[int, Partial]  # by result
    register: dict[int, str] = field(default_factory=dict)

    def start(self) -> None:
        for index, partial in self.partials.items():
            writer = self.writer
            name = writer.names.fresh(f"{writer.stages.results[index].name}_sum")
            first = literal(fold(writer.sum_op(index)).start, partial.dtype)
            value = f"{writer.lanes}.full({first})" if partial.is_column else first
            writer.lines.add(f"{name} = {value}")
            self.register[index] = name

    def add_elements(self, current: Pass) -> None:
        """The elements of one pass over a row."""
        for index in current.sums:
            self.writer.need(self.writer.sum_op(index).inputs)
            op = self.writer.sum_op(index)
            is_column = self.partials[index].is_column
            self._add(
                index, self.writer.folded_tile(op) if is_column else self.writer.within_text(op)
            )

    def add_rows(self, current: Pass, condition: str = "") -> None:
        """What has one value a row; `condition` picks one thread of those that have it."""
        for index in current.row_sums:
            op = self.writer.sum_op(index)
            self.writer.need(op.inputs)
            if not condition:
                self._add(index, self.writer.folded_tile(op))
                continue
            with self.writer.lines.block(f"if {condition}:"):
                self._add(index, self.writer.folded_tile(op))

    def place(self, index: int, group: str) -> str:
        """Pointer to the partial sums of a group of rows."""
        partial = self.partials[index]
        argument = KernelArgument("workspace", partial.workspace)
        parameters, names = self.writer.parameters, self.writer.names
        known = argument in parameters.arguments
        name = "" if known else names.fresh("partials")
        pointer = parameters.add(name, argument, written=True)
        return f"advance({pointer}, {partial.place(group)})"

    def finish_rows(self, group: str, rows: int) -> None:
        """Store the partial sums: of columns those of a block, which has `rows` groups of rows."""
        writer = self.writer
        columns = [index for index, partial in self.partials.items() if partial.is_column]
        for index, partial in self.partials.items():
            total, name = self.register[index], FOLD_NAMES[writer.sum_op(index).opcode]
            if partial.is_column:
                if rows > 1:
                    writer.lines.add(f"{total} = tile.rows_{name}({total})")
                continue
            if any(index in current.sums for current in writer.stages.passes):
                writer.lines.add(f"{total} = tile.across_{name}({total})")
            place = self.place(index, group)
            writer.lines.add(f"tile.store_row_{partial.dtype}({place}, 0, {total})")
        place = "block_index()" if rows > 1 else group
        stores = [
            f"tile.store_{self.partials[index].dtype}"
            f"({self.place(index, place)}, 0, {self.register[index]})"
            for index in columns
        ]
        if rows == 1 or not columns:
            writer.lines.add(*stores)
            return
        with writer.lines.block("if tile.group() == 0:"):
            writer.lines.add(*stores)

    def _add(self, index: int, text: str) -> None:
        total, function = self.register[index], fold(self.writer.sum_op(index)).function
        self.writer.lines.add(f"{total} = {function}({total}, {text})")


class TileSumKernel(TileKernel):
    """Rows in registers, `groups` groups of threads, each with every groups-th row."""

    def __init__(
        self,
        stages: Stages,
        shape: RowShape,
        groups: int,
        partials: dict[int, Partial],
        *,
        loads: Loads,
        ring: RingShape | None = None,
    ) -> None:
        super().__init__(stages, shape)
        self.is_ahead = loads is Loads.AHEAD
        self.ring = ring
        self.groups = groups
        self.totals = Totals(self, partials)

    @property
    def blocks(self) -> int:
        return self.groups // self.shape.rows * self.shape.cluster

    def setup(self) -> str:
        tile = super().setup().replace(f"extent={self.nest.rows}", f"extent={self.groups}")
        if self.ring is None:
            return tile
        sizes = "".join(f"{value.type.dtype.size}, " for value in self._in_ring)
        return f"{tile}\nring = Ring(tile=tile, slots={self.ring.slots}, sizes=({sizes[:-1]}))"

    def write(self) -> None:
        self.declare_operands()
        self.declare_results(self.totals.partials)
        group, row, following = (self.names.fresh(n) for n in ("group", "row", "following"))
        self.index = Indexing(self.nest, row, "")
        lines, last = self.lines, self.count(self.nest.rows - 1)
        lines.add(f"{group} = {self.count('tile.row()')}")
        lines.add("tile.meet()") if self.shape.cluster > 1 else None
        self.once()
        self._hold_shared()
        self.totals.start()
        ahead = self._name_loads(following)
        # A block may have more groups than there are rows.
        spare = self.groups > self.nest.rows
        lines.add(f"{following} = " + (f"min({group}, {last})" if spare else group))
        self._load(ahead, "next_")
        if self.ring is not None:
            self._fill_ring(group)
        turn, turns = self._turn()
        lines.add(f"{row} = {group}")
        with lines.block(f"while {row} < {self.nest.rows}:"):
            self.index.declare(lines, self.names, self.accesses())
            if self.ring is not None:
                self._refill_ring(row)
            lines.add(*(f"{held} = next_{held}" for held in self._held.values()))
            after = self.count(f"{row} + {self.groups}")
            lines.add(f"{following} = min({after}, {last})")
            self._load(ahead, "next_")
            self._load(self.index, "", now=True)
            self._work(turn)
            if self.ring is not None:
                self._turn_ring()
            lines.add(*turns)
            lines.add(f"{row} = {after}")
        self.totals.finish_rows(group, self.shape.rows)

    def count(self, number: str | int) -> str:
        """A row's number: 32 bits wherever they do, half the instructions of 64."""
        furthest = self.nest.rows + self.groups * (1 + MOST_SLOTS)
        return f"int32({number})" if furthest < 1 << 31 else str(number)

    def _turn(self) -> tuple[str, list[str]]:
        """What tells a row's folds from the last one's, and the lines that change it."""
        has_folds = any(current.folds for current in self.stages.passes)
        if not has_folds or self.shape.threads <= WARP:
            return "", []
        if self.ring is not None and self.ring.slots % 2 == 0:
            return self._slot, []
        turn = self.names.fresh("turn")
        self.lines.add(f"{turn} = int32(0)")
        return turn, [f"{turn} = int32({turn} + 1)"]

    def _work(self, turn: str) -> None:
        self._unpacked.clear()
        self.forget_row()
        for current in self.stages.passes:
            self.between(current)
            self.totals.add_rows(current)
            if current.has_loop:
                self.need_before(current)
                self.elements(current)
                self.store_elements(current)
                self.totals.add_elements(current)
                self.fold_elements(current.folds, turn)

    def forget_row(self) -> None:
        super().forget_row()
        self._loaded |= {value for value in self._held if self.is_at(value, Place.ROW)}

    # -- loads ahead

    def _hold_shared(self) -> None:
        """Operands that all rows share are loaded before the loop."""
        for port in self.stages.body.inputs:
            value = port.value
            is_element = value.name in self.pointer and self.is_at(value, Place.ELEMENT)
            if is_element and not any(self.nest.outer_strides(value.name)):
                self.hold(value)

    def _name_loads(self, following: str) -> Indexing:
        """Names for what each row brings; the index of the row that is loaded ahead."""
        self._held: dict[Value, str] = {}  # loaded one row ahead, into registers
        self._now: dict[Value, str] = {}  # loaded when its row comes
        self._in_ring: list[Value] = []
        for port in self.stages.body.inputs:
            value = port.value
            if value.name not in self.pointer or value in self.words:
                continue
            if self.is_at(value, Place.ROW):
                self._held[value] = self.register[value] = self.names.fresh(value.name)
            elif self.is_at(value, Place.ELEMENT) and self.holds_words(value):
                name = self.words[value] = self.names.fresh(f"{value.name}_words")
                if self.ring is not None:
                    self._in_ring.append(value)
                else:
                    (self._held if self.is_ahead else self._now)[value] = name
        return Indexing(self.nest, following, "")

    def _load(self, index: Indexing, prefix: str, *, now: bool = False) -> None:
        if index is not self.index:
            index.indices.clear()
            index.declare(self.lines, self.names, [value.name for value in self._held])
        for value, held in (self._now if now else self._held).items():
            dtype, pointer = value.type.dtype, self.pointer[value.name]
            if self.is_at(value, Place.ROW):
                text = f"load_{dtype}({pointer}, {index.at(value.name)})"
            else:
                text = f"tile.load_words_{dtype}({pointer}, {index.base(value.name)})"
            self.lines.add(f"{prefix}{held} = {text}")

    # -- the ring

    def _fill_ring(self, group: str) -> None:
        """The first rows, one slot less than there are."""
        assert self.ring is not None
        self._slot, self._free = self.names.fresh("slot"), self.names.fresh("free")
        last = self.ring.slots - 1
        for slot in range(last):
            self._fetch(str(slot), self.count(f"{group} + {slot * self.groups}") if slot else group)
        self.lines.add(f"{self._slot} = int32(0)", f"{self._free} = int32({last})")

    def _refill_ring(self, row: str) -> None:
        """Fetch into the slot that the last row has left, and wait for this row's."""
        assert self.ring is not None
        last = self.ring.slots - 1
        self._fetch(self._free, self.count(f"{row} + {last * self.groups}"))
        self.lines.add(f"ring.wait_{last}()")

    def _turn_ring(self) -> None:
        assert self.ring is not None
        slot, slots = self._slot, self.ring.slots
        following = f"int32({slot} + 1)"
        if slots & (slots - 1) == 0:
            following = f"int32({slot} + 1 & {slots - 1})"
        else:
            following = f"{following} if {slot} < {slots - 1} else int32(0)"
        self.lines.add(f"{self._free} = {slot}", f"{slot} = {following}")

    def _fetch(self, slot: str, row: str) -> None:
        fetched = self.names.fresh("fetched")
        self.lines.add(f"{fetched} = {row}")
        with self.lines.block(f"if {fetched} < {self.nest.rows}:"):
            index = Indexing(self.nest, fetched, "")
            index.declare(self.lines, self.names, [value.name for value in self._in_ring])
            for number, value in enumerate(self._in_ring):
                place = f"{self.pointer[value.name]}, {index.base(value.name)}"
                self.lines.add(f"ring.fetch_{value.type.dtype}({slot}, {number}, {place})")
        self.lines.add("ring.commit()")

    def take_operand(self, value: Value) -> None:
        if self.ring is None or value not in self._in_ring:
            super().take_operand(value)
            return
        number, dtype = self._in_ring.index(value), value.type.dtype
        words = self.words[value]
        self.lines.add(f"{words} = ring.load_words_{dtype}({self._slot}, {number})")
        self.assign(value, f"tile.unpack_{dtype}({words})")


class FlatSumKernel(FlatKernel):
    """Pointwise bodies with sums: `active` threads step over all elements together.

    Their step is a whole number of rows, so each thread meets the same columns every time, and
    thread p's partial column sums are those of columns p * length … of one long partial row.
    """

    def __init__(
        self, stages: Stages, length: int, active: int, partials: dict[int, Partial]
    ) -> None:
        super().__init__(stages, length)
        self.active = active
        self.totals = Totals(self, partials)

    @property
    def blocks(self) -> int:
        return -(-self.active // FLAT_THREADS)

    def setup(self) -> str:
        return f"{super().setup()}\nblock = Block(threads={FLAT_THREADS})"

    def write(self) -> None:
        (current,) = self.stages.passes
        self.declare_operands()
        self.declare_results(self.totals.partials)
        names, lines, nest = self.names, self.lines, self.nest
        thread, first, row, element = (names.fresh(n) for n in ("thread", "first", "row", "j"))
        self.index = Indexing(nest, row, element)
        lines.add(f"{thread} = block_index() * {FLAT_THREADS} + thread_index()")
        self.once()
        self.totals.start()
        start = f"{thread} * {self.length}"
        if self.active % FLAT_THREADS:
            start = f"({start} if {thread} < {self.active} else {nest.elements})"
        step = self.active * self.length
        with lines.block(f"for {first} in range({start}, {nest.elements}, {step}):"):
            self.locate(first, row, element)
            self.index.declare(lines, names, self.accesses())
            self.between(current)
            self.need_before(current)
            self.elements(current)
            self.store_elements(current)
            self.totals.add_elements(current)
            in_row = f"{element} == 0" if nest.inner > self.length else ""
            self.totals.add_rows(current, in_row)
        self._finish(thread)

    def _finish(self, thread: str) -> None:
        for index, partial in self.totals.partials.items():
            total, dtype = self.totals.register[index], partial.dtype
            if partial.is_column:
                per_row = partial.columns // self.length
                place = self.totals.place(index, f"({thread} // {per_row})")
                at = f"{thread} % {per_row} * {self.length}"
                store = f"vector.store_{dtype}({place}, {at}, {total})"
                if self.active % FLAT_THREADS == 0:
                    self.lines.add(store)
                    continue
                with self.lines.block(f"if {thread} < {self.active}:"):
                    self.lines.add(store)
                continue
            self.lines.add(
                f"{total} = block.across_{FOLD_NAMES[self.sum_op(index).opcode]}({total})"
            )
            place = self.totals.place(index, "block_index()")
            with self.lines.block("if thread_index() == 0:"):
                self.lines.add(f"store_{dtype}({place}, 0, {total})")
