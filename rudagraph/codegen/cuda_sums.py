"""Sums over rows on CUDA: persistent threads keep partial sums in registers, a second kernel adds.

    row = group                                  group: the rows of one block (or part of one)
    while row < 8192:
        …                                        the passes over a row, as in cuda_rows
        dweight_sum = accumulate_add(dweight_sum, weighted)
        row = int32(row + 264)
    tile.store_f32(advance(partials, group * 16384), 0, dweight_sum)

Input: the stages of a body with sums, or of short rows without. Output: lines of the first kernel.
Invariant: which rows a partial sum takes, and in which order, follows from shapes alone. The next
row is loaded while this one is worked on: a block has few threads to hide a load behind.
"""

from __future__ import annotations

from contextlib import nullcontext

from rudagraph.codegen.cuda_launch import WARP, WIDEST_BYTES, RowShape
from rudagraph.codegen.cuda_needs import is_shared, stepping_operands
from rudagraph.codegen.cuda_rows import TileKernel
from rudagraph.codegen.cuda_sum_shapes import MOST_SLOTS, Loads, RingShape
from rudagraph.codegen.cuda_totals import Totals
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.source import Lines
from rudagraph.codegen.stages import Place, Stages
from rudagraph.ir.graph import Value


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
        asks: int = 0,
    ) -> None:
        super().__init__(stages, shape)
        self.asks = asks  # rows behind those that are loaded, which should come to L2
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
        kind = "BulkRing" if self.ring.in_bulk else "Ring"
        sizes = "".join(f"{value.type.dtype.size}, " for value in self._in_ring)
        return f"{tile}\nring = {kind}(tile=tile, slots={self.ring.slots}, sizes=({sizes[:-1]}))"

    def write(self) -> None:
        self.declare_operands()
        self.declare_results(self.totals.partials)
        group, row, following = (self.names.fresh(n) for n in ("group", "row", "following"))
        self.index = Indexing(self.nest, row, "")
        lines, last = self.lines, self.count(self.nest.rows - 1)
        lines.add(f"{group} = {self.count('tile.row()')}")
        self.wait(self.blocks, self._early(group) if self.early_blocks else [])
        lines.add("tile.meet()") if self.shape.cluster > 1 else None
        self.once()
        self._hold_shared()
        self.totals.start()
        ahead = self._name_loads(following)
        # A block may have more groups than there are rows.
        spare = self.groups > self.nest.rows
        lines.add(f"{following} = " + (f"min({group}, {last})" if spare else group))
        self._load(ahead, "next_")
        for later in range(1, self.is_ahead + self.asks):
            self._ask(lines, group, later, exists=(later + 1) * self.groups <= self.nest.rows)
        if self.ring is not None:
            self._fill_ring(group)
        turn, turns = self._turn()
        self._settle()
        lines.add(f"{row} = {group}")
        with lines.block(f"while {row} < {self.nest.rows}:"):
            self.index.declare(lines, self.names, self.accesses())
            if self.ring is not None:
                self._take_slot(row)
            lines.add(*(f"{held} = next_{held}" for held in self._held.values()))
            after = self.count(f"{row} + {self.groups}")
            lines.add(f"{following} = min({after}, {last})")
            self._load(ahead, "next_")
            if self.asks:
                self._ask(lines, row, self.is_ahead + self.asks)
            self._load(self.index, "", now=True)
            self._work(turn, row)
            if self.ring is not None:
                self._turn_ring()
            lines.add(*turns)
            lines.add(f"{row} = {after}")
        self.totals.finish_rows(group, self.shape.rows)

    def _settle(self) -> None:
        """The loop may wait for none of the loads before it."""
        names = [self.register[value] for value in self._loaded if self.is_at(value, Place.ONCE)]
        names += [words for value, words in self.words.items() if is_shared(self.stages, value)]
        names += [f"next_{held}" for held in self._held.values()]
        if names:
            self.lines.add(f"tile.settle_{len(names)}({', '.join(names)})")

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
        if self.ring is not None and self.ring.in_bulk:
            return f"({self._slot} ^ {self._phase})", []
        turn = self.names.fresh("turn")
        self.lines.add(f"{turn} = int32(0)")
        return turn, [f"{turn} = int32({turn} + 1)"]

    def _work(self, turn: str, row: str) -> None:
        self._unpacked.clear()
        self.forget_row()
        refills = self.ring is not None and self.ring.in_bulk
        for current in self.stages.passes:
            self.between(current)
            self.totals.add_rows(current)
            if current.has_loop:
                self.need_before(current)
                self.elements(current)
                self.store_elements(current)
                self.totals.add_elements(current)
                self.fold_elements(current.folds, turn)
            if refills and current.folds:
                # All threads of the row have met, so they are done with the row before.
                self._refill_ring(row)
                refills = False

    def forget_row(self) -> None:
        super().forget_row()
        self._loaded |= {value for value in self._held if self.is_at(value, Place.ROW)}

    # -- loads ahead

    def _hold_shared(self) -> None:
        """Operands that all rows share are loaded before the loop."""
        for port in self.stages.body.inputs:
            value = port.value
            is_element = value.name in self.pointer and self.is_at(value, Place.ELEMENT)
            if is_element and is_shared(self.stages, value):
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

    def _asks_early(self) -> bool:
        """Whether the first row is asked for before the kernel before has ended.

        RMSNorm backward of bf16 1024 takes 14.8 µs so and 15.5, that of f32 29.1 and 27.2. Of a
        ring the blocks come too late for it, and LayerNorm backward of f32 8192 takes 5 % more.
        """
        return self.asks > 0 or (self.is_ahead and self.shape.vector == WIDEST_BYTES // 2)

    def _early(self, group: str) -> list[str]:
        lines = Lines()
        if self._asks_early():
            self._ask(lines, group, 0, exists=self.groups <= self.nest.rows)
        return lines.lines

    def _ask(self, lines: Lines, row: str, turns: int, *, exists: bool = False) -> None:
        """Ask for the row that comes so many turns behind this one to come to L2."""
        behind = turns * self.groups
        if behind >= self.nest.rows:
            return
        asked, operands = self.names.fresh("asked"), stepping_operands(self.stages)
        lines.add(f"{asked} = " + (self.count(f"{row} + {behind}") if behind else row))
        with nullcontext() if exists else lines.block(f"if {asked} < {self.nest.rows}:"):
            index = Indexing(self.nest, asked, "")
            index.declare(lines, self.names, [value.name for value in operands])
            lines.add(*self.asked(index, operands))

    # -- the ring

    def _fill_ring(self, group: str) -> None:
        """The first rows, one slot less than there are."""
        assert self.ring is not None
        self._slot, self._free = self.names.fresh("slot"), self.names.fresh("free")
        if self.ring.in_bulk:
            self._phase = self.names.fresh("phase")
            self.lines.add("ring.open()", f"{self._phase} = int32(0)")
        last = self.ring.slots - 1
        for slot in range(last):
            self._fetch(str(slot), self.count(f"{group} + {slot * self.groups}") if slot else group)
        self.lines.add(f"{self._slot} = int32(0)", f"{self._free} = int32({last})")

    def _take_slot(self, row: str) -> None:
        """Wait for this row's."""
        assert self.ring is not None
        if self.ring.in_bulk:
            self.lines.add(f"ring.arrived({self._slot}, {self._phase})")
            return
        self._refill_ring(row)
        self.lines.add(f"ring.wait_{self.ring.slots - 1}()")

    def _refill_ring(self, row: str) -> None:
        """Fetch into the slot that the last row has left."""
        assert self.ring is not None
        last = self.ring.slots - 1
        self._fetch(self._free, self.count(f"{row} + {last * self.groups}"))

    def _turn_ring(self) -> None:
        assert self.ring is not None
        slot, slots = self._slot, self.ring.slots
        following = f"int32({slot} + 1)"
        if slots & (slots - 1) == 0:
            following = f"int32({slot} + 1 & {slots - 1})"
        else:
            following = f"{following} if {slot} < {slots - 1} else int32(0)"
        self.lines.add(f"{self._free} = {slot}", f"{slot} = {following}")
        if self.ring.in_bulk:
            phase = self._phase
            self.lines.add(f"{phase} = {phase} if {slot} else int32({phase} ^ 1)")

    def _fetch(self, slot: str, row: str) -> None:
        fetched = self.names.fresh("fetched")
        self.lines.add(f"{fetched} = {row}")
        with self.lines.block(f"if {fetched} < {self.nest.rows}:"):
            index = Indexing(self.nest, fetched, "")
            index.declare(self.lines, self.names, [value.name for value in self._in_ring])
            for number, value in enumerate(self._in_ring):
                place = f"{self.pointer[value.name]}, {index.base(value.name)}"
                self.lines.add(f"ring.fetch_{value.type.dtype}({slot}, {number}, {place})")
        if self.ring is None or not self.ring.in_bulk:
            self.lines.add("ring.commit()")

    def take_operand(self, value: Value) -> None:
        if self.ring is None or value not in self._in_ring:
            super().take_operand(value)
            return
        number, dtype = self._in_ring.index(value), value.type.dtype
        words = self.words[value]
        self.lines.add(f"{words} = ring.load_words_{dtype}({self._slot}, {number})")
        self.assign(value, f"tile.unpack_{dtype}({words})")
