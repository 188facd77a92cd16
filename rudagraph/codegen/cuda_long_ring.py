"""Long rows that fit a multiprocessor on CUDA: the next one arrives while this one is stored.

    while row < 4096:
        ring.wait_2()
        x_words = ring.load_words_bf16(0, 0)        pass 0: a slot of shared memory a part
        …
        x = last.unpack_again_bf16(last_x_words)    the last part: registers
        …
        x_words = ring.load_words_bf16(0, 0)        last pass
        tile.store_bf16(y_pointer, at, y)
        ring.fetch_bf16(0, 0, x_pointer, following_at)
        …
        row = following

Input: the stages of a body with one operand that each row brings, whose parts but the last fit
shared memory. Output: lines of its kernel. Invariant: a slot is filled again only after the last
pass has read it; each thread reads what it has fetched itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rudagraph.codegen.cuda_launch import (
    L2_BYTES,
    WIDEST_BYTES,
    RowShape,
    multiprocessors,
    shared_bytes,
)
from rudagraph.codegen.cuda_long import LongKernel, LongStages
from rudagraph.codegen.cuda_needs import stepping_operands
from rudagraph.codegen.cuda_sum_shapes import RingShape
from rudagraph.codegen.domain import result_access
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.memory import Partial
from rudagraph.codegen.stages import Pass
from rudagraph.ir.graph import Value

# Rows a block from which the next one's arrival hides behind the one before it. Rows of which L2
# holds all that are under way gain nothing: the loss with its gradient takes 554 µs so and 603
# without at bf16 4096 x 128256, but 598 and 584 at 8192 x 65536.
FEWEST_TURNS = 4
# Blocks that begin at different times, and bytes of a row for each nanosecond between two of them:
# they all begin within the time of a row.
STAGGERED = 8
STAGGER_BYTES = 128
# Vectors of a part: with four, what a thread unpacks beside the last part fits no registers.
CHUNKS = 2


def find_long_ring(
    stages: LongStages, shape: RowShape, target: str
) -> tuple[RowShape, RingShape] | None:
    """Slots for all parts but the last; None where rows do not fit or are too few."""
    shape = replace(shape, chunks=CHUNKS)
    nest, operands = stages.nest, stepping_operands(stages)
    if len(operands) != 1 or shape.cluster > 1:
        return None
    size = operands[0].type.dtype.size
    part = shape.threads * shape.vector * shape.chunks
    slots = -(-nest.inner // part) - 1
    fits = slots >= 1 and slots * part * size <= shared_bytes(target)
    is_whole = size * shape.vector % WIDEST_BYTES == 0
    stored = set(stages.results) & {v for each in stages.passes for v in each.sources}
    if not fits or not is_whole or stored & set(operands):
        return None
    count = multiprocessors(target)
    if nest.rows < FEWEST_TURNS * count or nest.inner * size * count < L2_BYTES // 2:
        return None
    return shape, RingShape(slots, slots * part * size)


def ring_blocks(rows: int, target: str) -> int:
    """One for each multiprocessor. The loss of 4096 × 128256 takes 553 µs with 132 blocks, four of
    which have a row more, and 558 with 128 that have as many each."""
    return min(rows, multiprocessors(target))


class LongRingKernel(LongKernel):
    """Writes the kernel of one row at a time per multiprocessor; `count` blocks."""

    def __init__(
        self,
        stages: LongStages,
        shape: RowShape,
        partials: dict[int, Partial],
        ring: RingShape,
        count: int,
    ) -> None:
        super().__init__(stages, shape, partials)
        self.ring = ring
        self.count = count
        (self.operand,) = stepping_operands(stages)
        reads = [each for each in self.loops() if self.operand in each.sources]
        self.first_read, self.last_read = reads[0], reads[-1]

    @property
    def blocks(self) -> int:
        return self.count

    def setup(self) -> str:
        size = self.operand.type.dtype.size
        return (
            f"{super().setup()}\nring = Ring(tile=tile, slots={self.ring.slots}, sizes=({size},))"
        )

    def write(self) -> None:
        lines, rows = self.lines, self.nest.rows
        self.declare_operands()
        self.declare_results(self.totals.partials)
        block, row, self.following = (self.names.fresh(n) for n in ("block", "row", "following"))
        self.held = self.names.fresh(f"last_{self.operand.name}_words")
        self.index = Indexing(self.nest, row, "")
        lines.add(f"{block} = tile.row()")
        lines.add(f"{row} = {block}")
        index = self._index_of(row)
        self.wait(self.count, self._ask_first(index))
        self.once()
        self.totals.start()
        self._fetch_row(index)
        self._stagger()
        with lines.block(f"while {row} < {rows}:"):
            self.index.declare(lines, self.names, self.accesses())
            lines.add(f"{self.following} = min({row} + {self.count}, {rows - 1})")
            self.next_index = self._index_of(self.following)
            self.load_picks()
            self.passes()
            self.store_picks()
            # The next row's sums take the same shared memory.
            lines.add("synchronise()")
            lines.add(f"{row} = {row} + {self.count}")
        self.totals.finish_rows(block, 1)

    def _index_of(self, row: str) -> Indexing:
        index = Indexing(self.nest, row, "")
        index.declare(self.lines, self.names, [self.operand.name])
        return index

    def _ask_first(self, index: Indexing) -> list[str]:
        """Ask for the first row's parts before the kernel before has ended."""
        dtype, pointer = self.operand.type.dtype, self.pointer[self.operand.name]
        at = index.base(self.operand.name)
        return [
            f"{'tile' if number < self.ring.slots else 'last'}.prefetch_{dtype}"
            f"({pointer}, {at} + {number * self.part})"
            for number in range(self.parts)
        ]

    def _stagger(self) -> None:
        """Blocks begin one after another, so that some store and load while others compute.

        The loss of 4096 × 128256 takes 547 µs so and 553 where all begin at once; with half the
        time between them, or a quarter, it takes 552.
        """
        if self.early_blocks and self.nest.rows > self.count:
            step = self.nest.inner * self.operand.type.dtype.size // STAGGER_BYTES
            self.lines.add(f"sleep(block_index() % {STAGGERED} * {step})")

    def _fetch_row(self, index: Indexing) -> None:
        """The first row, before the loop."""
        for number in range(self.ring.slots):
            self._fetch(number, index)
        self._load_last(index)

    def _fetch(self, number: int, index: Indexing) -> None:
        place = f"{self.pointer[self.operand.name]}, {index.base(self.operand.name)}"
        start = f" + {number * self.part}" if number else ""
        self.lines.add(f"ring.fetch_{self.operand.type.dtype}({number}, 0, {place}{start})")
        self.lines.add("ring.commit()")

    def _load_last(self, index: Indexing) -> None:
        dtype, pointer = self.operand.type.dtype, self.pointer[self.operand.name]
        at = f"{index.base(self.operand.name)} + {self.ring.slots * self.part}"
        self.lines.add(f"{self.held} = last.load_words_{dtype}({pointer}, {at})")

    def visit_parts(self, current: Pass, backwards: bool, work: Callable[[], None]) -> None:
        slots = self.ring.slots
        for number in range(self.parts):
            self.lanes = "last" if number == slots else "tile"
            self.start, self.number = str(number * self.part), number
            if current is self.first_read and number < slots:
                # Behind this part come those of this row, or as many of the next one's.
                newer = slots - 1 - (0 if self.first_read is self.last_read else number)
                self.lines.add(f"ring.wait_{newer}()")
            work()
            if current is self.last_read and number < slots:
                self._fetch(number, self.next_index)
        if current is self.last_read:
            self._load_last(self.next_index)

    def take_part(self, value: Value, access: str) -> None:
        if value != self.operand:
            self.assign(value, self.load_text(access, value.type.dtype))
            return
        dtype = value.type.dtype
        if self.number == self.ring.slots:
            self.assign(value, f"last.unpack_again_{dtype}({self.held})")
            return
        words = self.names.fresh(f"{value.name}_words")
        self.lines.add(f"{words} = ring.load_words_{dtype}({self.number}, 0)")
        self.assign(value, f"tile.unpack_{dtype}({words})")

    def store_elements(self, current: Pass) -> None:
        for index in current.stores:
            self.lines.add(self.store_text(result_access(index), self.stages.results[index]))
