"""Scratch and partial sums of one kernel, laid out in a workspace per purpose.

Input: what each block needs. Output: pointers into the block's own part. Invariant: rows start at
64 bytes, no two blocks share a cache line, and the long rows of a block start at different places
of a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rudagraph.codegen.source import Lines, Names, Parameters
from rudagraph.ir.types import DType
from rudagraph.schedule.lowered import KernelArgument

_LINE = 64


# Rows at the same place of a page put equal elements into one set of the first cache, and make a
# load wait for a store to another row: a block's backward with ten of them takes a tenth longer.
_PAGE = 4096
_STEP = 3 * _LINE
_LONG_ROW = _PAGE // 2


def aligned(bytes: int) -> int:
    return -(-bytes // _LINE) * _LINE


def place_row(end: int, bytes: int, number: int) -> int:
    """Where row `number` of a block goes, after what ends at `end`."""
    start = aligned(end)
    if bytes < _LONG_ROW:
        return start
    return start + (number * _STEP - start) % _PAGE


@dataclass
class Scratch:
    """Rows that a block writes and reads again, in the kernel's workspace number `index`."""

    index: int
    block_bytes: int = 0
    rows: list[tuple[str, int]] = field(default_factory=list)  # pointer name, offset

    def add(self, name: str, bytes: int) -> None:
        start = place_row(self.block_bytes, bytes, len(self.rows))
        self.rows.append((name, start))
        self.block_bytes = start + aligned(bytes)

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
    sums: Sequence[tuple[int, DType, int, bool]], workspace: int, *, apart: bool = False
) -> tuple[list[Partial], int]:
    """Partials of (result, dtype, columns, is_column), and the bytes of one block.

    `apart` keeps them at different places of a page, for a cache with few ways.
    """
    end, offsets = 0, list[int]()
    for _, dtype, columns, _ in sums:
        bytes = columns * dtype.size
        offsets.append(place_row(end, bytes, len(offsets)) if apart else end)
        end = offsets[-1] + aligned(bytes)
    partials = [
        Partial(*sum, workspace, start, end) for sum, start in zip(sums, offsets, strict=True)
    ]
    return partials, end
