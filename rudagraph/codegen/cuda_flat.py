"""The loop shape of pointwise bodies on CUDA: one vector of neighbours per thread, no loop.

    first = (block_index() * 256 + thread_index()) * 8
    if first < 33554432:
        gate = vector.load_bf16(gate_pointer, first)
        …
        vector.store_bf16(y_pointer, first, y)

Input: the stages of a body of one pass without folds or sums. Output: lines of its kernel. A
vector lies within one row of the nest, so what a row shares is a number. Where rows share operands
beside their own, a thread may have several vectors, all loaded before the first is worked on.
"""

from __future__ import annotations

from rudagraph.codegen.cuda_launch import FLAT_THREADS, KEPT_VECTORS, MOST_HELD_WORDS
from rudagraph.codegen.cuda_needs import held_words, kept_operands
from rudagraph.codegen.cuda_writer import Writer
from rudagraph.codegen.domain import result_access
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.stages import Pass, Source, Stages
from rudagraph.ir.graph import Value
from rudagraph.ir.types import DType

_WIDE = 4  # bytes of an element from which reads are streamed, and no thread has several vectors


class FlatKernel(Writer):
    """Writes the kernel; `length` elements a thread."""

    def __init__(self, stages: Stages, length: int) -> None:
        super().__init__(stages, "vector")
        self.length = length
        self.kept = kept_operands(stages)
        self.vectors = self._vectors()

    @property
    def block_threads(self) -> int:
        return FLAT_THREADS // self.vectors

    @property
    def threads(self) -> int:
        """Of all blocks together that have work."""
        return self.nest.elements // (self.length * self.vectors)

    @property
    def blocks(self) -> int:
        return -(-self.threads // self.block_threads)

    def _vectors(self) -> int:
        """Vectors a thread: several where that pays, registers hold them and no block has less."""
        held = KEPT_VECTORS * self.length * held_words(self.stages)
        is_whole = self.nest.elements % (FLAT_THREADS * self.length) == 0
        checks = any(op.opcode == "check_index" for op in self.stages.body.ops)
        if self._is_wide() or not self.kept or not is_whole or checks or held > MOST_HELD_WORDS:
            return 1
        return KEPT_VECTORS

    def _is_wide(self) -> bool:
        """Whether elements that a row has for itself have 32 bits or more."""
        return any(
            value.type.dtype.size >= _WIDE
            for access, value in self.stages.in_memory()
            if access not in self.kept and self._is_plain(access)
        )

    def setup(self) -> str:
        """The line that makes the vector."""
        return f"vector = Vector({self.length})"

    def write(self) -> None:
        (current,) = self.stages.passes
        self.declare_operands()
        self.declare_results()
        indices = [self._locate_vector(number) for number in range(self.vectors)]
        self.index = indices[0]
        # Rotary embeddings take up to 2 % more where they ask early, other bodies 0.5 to 2 % less.
        self.wait(self.blocks, [] if self.kept else self._asked(current))
        self.once()
        shared = dict(self.register)
        registers = [self._load_vector(current, index, dict(shared)) for index in indices]
        for self.index, self.register in zip(indices, registers, strict=True):
            self.forget_row()
            self.between(current)
            self.need_before(current)
            self.elements(current)
            self.store_elements(current)

    def _locate_vector(self, number: int) -> Indexing:
        """Where one of the thread's vectors is: as far from the one before as a block is wide."""
        first, row, element = (self.names.fresh(name) for name in ("first", "row", "j"))
        lines, behind = self.lines, f" + {number * self.block_threads}" if number else ""
        vector = f"block_index() * {FLAT_THREADS} + thread_index(){behind}"
        lines.add(f"{first} = ({vector}) * {self.length}")
        if self.threads % self.block_threads:
            with lines.block(f"if {first} >= {self.nest.elements}:"):
                lines.add("return")
        self.locate(first, row, element)
        index = Indexing(self.nest, row, element)
        index.declare(lines, self.names, self.accesses())
        return index

    def _load_vector(
        self, current: Pass, index: Indexing, register: dict[Value, str]
    ) -> dict[Value, str]:
        """Load what rows share before anything else: it comes from L2. The registers then."""
        self.index, self.register = index, register
        if not self.kept:
            return register  # each is loaded where it is first used
        operands = [v for v in self.ordered(current) if current.sources[v] is Source.OPERAND]
        for value in sorted(operands, key=lambda value: value.name not in self.kept):
            super().take_operand(value)
        return register

    def take_operand(self, value: Value) -> None:
        if value not in self.register:
            super().take_operand(value)

    def _asked(self, current: Pass) -> list[str]:
        """Lines that ask for the thread's operands to come to L2."""
        return [
            f"vector.prefetch_{value.type.dtype}"
            f"({self.pointer[value.name]}, {self.offset(value.name)})"
            for value in self.ordered(current)
            if current.sources[value] is Source.OPERAND and self._is_plain(value.name)
        ]

    def _is_plain(self, access: str) -> bool:
        return self.nest.inner_stride(access) == 1

    def load_text(self, access: str, dtype: DType) -> str:
        """Of what rows read alone L2 may keep nothing.

        That takes 0.4 to 1 % of f32 4096 and more of longer rows; of 16 bits it takes 1 to 3 more.
        """
        text = super().load_text(access, dtype)
        if access in self.kept:
            return text.replace("load_", "load_kept_", 1)
        is_streamed = bool(self.kept) and dtype.size >= _WIDE and self._is_plain(access)
        return text.replace("load_", "load_streamed_", 1) if is_streamed else text

    def store_text(self, access: str, value: Value) -> str:
        text = super().store_text(access, value)
        is_streamed = bool(self.kept) and self._is_plain(access)
        return text.replace("store_", "store_streamed_", 1) if is_streamed else text

    def locate(self, first: str, row: str, element: str) -> None:
        """Row and column of the thread's first element."""
        if not self.nest.outer:
            self.lines.add(f"{element} = {first}")
            return
        self.lines.add(f"{row} = {first} // {self.nest.inner}")
        self.lines.add(f"{element} = {first} % {self.nest.inner}")

    def offset(self, access: str) -> str:
        return self.index.at(access)

    def store_row(self, index: int) -> None:
        value, access = self.stages.results[index], result_access(index)
        self.need((value,))
        conditions = [self.index.guard(access)] if self.index.guard(access) else []
        if self.nest.inner > self.length:
            conditions.append(f"{self.index.element} == 0")
        at = self.index.at(access)
        store = f"store_{value.type.dtype}({self.pointer[access]}, {at}, {self.register[value]})"
        if not conditions:
            self.lines.add(store)
            return
        with self.lines.block(f"if {' and '.join(conditions)}:"):
            self.lines.add(store)
