"""The loop shape of pointwise bodies on CUDA: one vector of neighbours per thread, no loop.

    first = (block_index() * 256 + thread_index()) * 8
    if first < 33554432:
        gate = vector.load_bf16(gate_pointer, first)
        …
        vector.store_bf16(y_pointer, first, y)

Input: the stages of a body of one pass without folds or sums. Output: lines of its kernel. A
vector lies within one row of the nest, so what a row shares is a number.
"""

from __future__ import annotations

from rudagraph.codegen.cuda_launch import FLAT_THREADS
from rudagraph.codegen.cuda_needs import kept_operands
from rudagraph.codegen.cuda_writer import Writer
from rudagraph.codegen.domain import result_access
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.stages import Pass, Source, Stages
from rudagraph.ir.graph import Value
from rudagraph.ir.types import DType


class FlatKernel(Writer):
    """Writes the kernel; `length` elements a thread."""

    def __init__(self, stages: Stages, length: int) -> None:
        super().__init__(stages, "vector")
        self.length = length
        self.kept = kept_operands(stages)

    @property
    def threads(self) -> int:
        """Of all blocks together that have work."""
        return self.nest.elements // self.length

    @property
    def blocks(self) -> int:
        return -(-self.threads // FLAT_THREADS)

    def setup(self) -> str:
        """The line that makes the vector."""
        return f"vector = Vector({self.length})"

    def write(self) -> None:
        (current,) = self.stages.passes
        self.declare_operands()
        self.declare_results()
        first, row, element = (self.names.fresh(name) for name in ("first", "row", "j"))
        self.index = Indexing(self.nest, row, element)
        lines = self.lines
        lines.add(f"{first} = (block_index() * {FLAT_THREADS} + thread_index()) * {self.length}")
        if self.threads % FLAT_THREADS:
            with lines.block(f"if {first} >= {self.nest.elements}:"):
                lines.add("return")
        self.locate(first, row, element)
        self.index.declare(lines, self.names, self.accesses())
        # Rotary embeddings take 1 % more where they ask early, other bodies 0.5 to 2 % less.
        self.wait(self.blocks, [] if self.kept else self._asked(current))
        self.once()
        self.between(current)
        self.need_before(current)
        self.elements(current)
        self.store_elements(current)

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
        text = super().load_text(access, dtype)
        return text.replace("load_", "load_kept_", 1) if access in self.kept else text

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
