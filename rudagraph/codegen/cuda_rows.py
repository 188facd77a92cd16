"""The loop shape of row reductions on CUDA: a row per block, held in registers between passes.

    row = tile.row()
    x_words = tile.load_words_bf16(x_pointer, row * 4096)
    x = tile.unpack_bf16(x_words)
    …                                          pass 0
    square_total = tile.sum(square)            one barrier
    x = tile.unpack_again_bf16(x_words)        pass 1
    tile.store_bf16(y_pointer, row * 4096, y)

Input: the stages of a body whose row fits the registers of a block. Output: lines of its kernel.
Elements of 16 bits are held as they lie in memory and unpacked in each pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from rudagraph.codegen.cuda_launch import WARP, RowShape
from rudagraph.codegen.cuda_needs import is_shared, stepping_operands
from rudagraph.codegen.cuda_writer import Writer
from rudagraph.codegen.domain import Nest, result_access
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.stages import Pass, Source, Stages
from rudagraph.ir.graph import Graph, Value

# What holding a value between passes costs, in additions. A register for each element is dear:
# sums and products are computed again, only exponentials are held. Where registers are left over,
# whatever takes more than an instruction is held.
DEAR_REGISTERS = 10.0
SPARE_REGISTERS = 1.5


class TileStages(Stages):
    """Passes over rows in registers."""

    def __init__(self, body: Graph, nest: Nest, hold_cost: float = DEAR_REGISTERS) -> None:
        self.hold_cost = hold_cost
        super().__init__(body, nest)

    def _keep_cost(self) -> float:
        return self.hold_cost


class TileKernel(Writer):
    """Writes the kernel of one row per group of threads."""

    def __init__(
        self, stages: Stages, shape: RowShape, *, holds_shared: bool = True, behind: int = 0
    ) -> None:
        super().__init__(stages, "tile")
        self.shape = shape
        self.behind = behind  # the row so many behind its own that a block asks for
        self.holds_shared = holds_shared  # what all rows read is loaded before anything waits
        self._unpacked: set[Value] = set()  # values unpacked once already in this row

    @property
    def blocks(self) -> int:
        return -(-self.nest.rows // self.shape.rows) * self.shape.cluster

    def setup(self) -> str:
        """The line that makes the tile."""
        shape = self.shape
        rows = f", rows={shape.rows}" if shape.rows > 1 else ""
        rows += f", cluster={shape.cluster}" if shape.cluster > 1 else ""
        return (
            f"tile = Tile(length={self.nest.inner}, vector={shape.vector}, chunks={shape.chunks},"
            f" threads={shape.threads}, extent={self.nest.rows}{rows})"
        )

    def write(self) -> None:
        self.declare_operands()
        self.declare_results()
        row = self.names.fresh("row")
        self.index = Indexing(self.nest, row, "")
        self.lines.add(f"{row} = tile.row()")
        self.index.declare(self.lines, self.names, self.accesses())
        operands = stepping_operands(self.stages)
        is_asked = len(operands) == 1 and self.shape.threads > WARP
        self.wait(self.blocks, self.asked(self.index, operands) if is_asked else [])
        self.once()
        self.load_first()
        if is_asked and 0 < self.behind < self.nest.rows:
            self.ask_behind(row, operands)
        if self.shape.cluster > 1:
            self.lines.add("tile.meet()")
        self.passes()

    def ask_behind(self, row: str, operands: list[Value]) -> None:
        with self.lines.block(f"if {row} < {self.nest.rows - self.behind}:"):
            asked = self.names.fresh("asked")
            self.lines.add(f"{asked} = {row} + {self.behind}")
            index = Indexing(self.nest, asked, "")
            index.declare(self.lines, self.names, [value.name for value in operands])
            self.lines.add(*self.asked(index, operands))

    def asked(self, index: Indexing, operands: Iterable[Value]) -> list[str]:
        """Lines that ask for a row to come to L2.

        Before anything else that takes norms and softmax of one operand 0.5 to 3 % less (LayerNorm
        of bf16 4096 35.6 to 34.3 µs); short rows of a warp each and those of two operands it takes
        up to 5 % more.
        """
        return [
            f"tile.prefetch_{value.type.dtype}({self.pointer[name]}, {index.base(name)})"
            for value in operands
            for name in (value.name,)
        ]

    def passes(self, in_turn: str = "") -> None:
        for current in self.stages.passes:
            self.between(current)
            if current.has_loop:
                self.need_before(current)
                self.elements(current)
                self.store_elements(current)
                self.fold_elements(current.folds, in_turn)

    def load_first(self) -> None:
        """Every element operand, before anything waits: their latencies overlap."""
        for current in self.stages.passes:
            for value in self.ordered(current):
                if current.sources[value] is not Source.OPERAND:
                    continue
                if self.holds_shared or not is_shared(self.stages, value):
                    self.hold(value)

    def hold(self, value: Value) -> None:
        """Load an operand's words, unless they are held already or cannot be held packed."""
        if value in self.words or not self.holds_words(value):
            return
        name = self.names.fresh(f"{value.name}_words")
        pointer, at = self.pointer[value.name], self.offset(value.name)
        self.lines.add(f"{name} = tile.load_words_{value.type.dtype}({pointer}, {at})")
        self.words[value] = name

    def holds_words(self, value: Value) -> bool:
        return self.nest.inner_stride(value.name) == 1

    def take_operand(self, value: Value) -> None:
        if value not in self.words:
            if value not in self.register or is_shared(self.stages, value):
                super().take_operand(value)
            return
        again = "_again" if value in self._unpacked else ""
        if again and not self.is_packed(value):
            return
        dtype = value.type.dtype
        self.assign(value, f"tile.unpack{again}_{dtype}({self.words[value]})")
        self._unpacked.add(value)

    def take_stored(self, value: Value) -> None:
        if value in self.words and self.is_packed(value):
            dtype = value.type.dtype
            self.assign(value, f"tile.unpack_again_{dtype}({self.words[value]})")

    def store_elements(self, current: Pass) -> None:
        for index in current.stores:
            value, access = self.stages.results[index], result_access(index)
            if not self._is_held(value, current, access):
                self.lines.add(self.store_text(access, value))
                continue
            words, dtype = self.names.fresh(f"{value.name}_words"), value.type.dtype
            self.lines.add(f"{words} = tile.pack_{dtype}({self.register[value]})")
            pointer, at = self.pointer[access], self.offset(access)
            self.lines.add(f"tile.store_words_{dtype}({pointer}, {at}, {words})")
            self.words[value] = words

    def _is_held(self, value: Value, current: Pass, access: str) -> bool:
        """Whether a later pass wants a stored result, at half the registers."""
        is_plain = self.nest.inner_stride(access) == 1
        is_tile = value in current.sources and value not in self.words
        later = self.stages.passes[self.stages.passes.index(current) + 1 :]
        wanted = any(each.sources.get(value) is Source.STORED for each in later)
        return is_plain and is_tile and wanted and self.is_packed(value)

    def store_row(self, index: int) -> None:
        value, access = self.stages.results[index], result_access(index)
        self.need((value,))
        guard = self.index.guard(access)
        at, dtype = self.index.at(access), value.type.dtype
        store = f"tile.store_row_{dtype}({self.pointer[access]}, {at}, {self.register[value]})"
        if not guard:
            self.lines.add(store)
            return
        with self.lines.block(f"if {guard}:"):
            self.lines.add(store)
