"""Scratch and partial sums of one kernel, laid out in a workspace per purpose.

Input: what each block needs. Output: pointers into the block's own part. Invariant: rows start at
64 bytes, and no two blocks share a cache line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rudagraph.codegen.source import Lines, Names, Parameters
from rudagraph.ir.types import DType
from rudagraph.schedule.lowered import KernelArgument

_LINE = 64


def aligned(bytes: int) -> int:
    return -(-bytes // _LINE) * _LINE


@dataclass
class Scratch:
    """Rows that a block writes and reads again, in the kernel's workspace number `index`."""

    index: int
    block_bytes: int = 0
    rows: list[tuple[str, int]] = field(default_factory=list)  # pointer name, offset

    def add(self, name: str, bytes: int) -> None:
        self.rows.append((name, self.block_bytes))
        self.block_bytes += aligned(bytes)

    def declare(self, lines: Lines, names: Names, parameters: Parameters) -> None:
        """Lines that point each row's name at this block's own."""
        if not self.rows:
            return
        argument = KernelArgument("workspace", self.index)
        pointer = parameters.add(names.fresh("scratch"), argument, written=True)
        for name, offset in self.rows:
            start = f"block * {self.block_bytes}" + (f" + {offset}" if offset else "")
            lines.add(f"{name} = advance({pointer}, {start})")


@dataclass(frozen=True, slots=True)
class Partial:
    """Partial results of the sum `result`: `columns` numbers for each block of rows.

    They lie at `offset` of workspace `workspace`, `step` bytes from block to block.
    """

    result: int
    dtype: DType
    columns: int
    is_column: bool
    workspace: int
    offset: int
    step: int

    def place(self, block: str) -> str:
        """Byte offset of a block's numbers, as text."""
        if block == "0":
            return str(self.offset)
        return f"{block} * {self.step}" + (f" + {self.offset}" if self.offset else "")


def lay_out_partials(
    sums: Sequence[tuple[int, DType, int, bool]], workspace: int
) -> tuple[list[Partial], int]:
    """Partials of (result, dtype, columns, is_column), and the bytes of one block."""
    offset, offsets = 0, []
    for _, dtype, columns, _ in sums:
        offsets.append(offset)
        offset += aligned(columns * dtype.size)
    partials = [
        Partial(*sum, workspace, start, offset) for sum, start in zip(sums, offsets, strict=True)
    ]
    return partials, offset
