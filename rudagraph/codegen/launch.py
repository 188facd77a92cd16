"""How a CPU kernel is cut: blocks, pieces, columns, tiles; the measured reason beside each number.

Input: a nest and what one element costs. Output: a Cut. Invariant: it depends on shapes, strides
and ops alone, never on the machine's thread count, so the order of every sum is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rudagraph.codegen.domain import Nest

# A fork-join of the thread team takes 2 µs, so a block below 4 µs does not pay.
BLOCK_NANOSECONDS = 4000
# One vector addition, and the least an element costs however little is computed: memory.
ADDITION_NANOSECONDS = 0.02
ELEMENT_NANOSECONDS = 0.1
# Sums are cut by shape alone, at this price an element: what else a kernel computes changes with
# the memory budget, and the bits of a sum must not.
SUMMED_COST = 10.0
# More blocks than any team has members are of no use; partial rows of column sums cost memory and a
# second kernel for each block, and 16 were measured to cost 0.01 ms at 1024 columns.
MOST_BLOCKS = 64
MOST_PARTIALS = 16
# Scratch of all blocks together counts into the step's peak; 16 blocks may pass this.
MOST_SCRATCH = 4 * 1024 * 1024
# Elements of a piece: its random words stay in L1, its loop overhead is nothing.
PIECE = 4096
# Whole rows are as good as pieces once there are this many to share out.
FEW_ROWS = 64
# Column sums of few long rows: a block takes columns through all rows, so there are no partial rows
# (4 x 1M: 12.5 ms with them, 1.4 ms so). A page of each row at a time.
COLUMN_PIECE = 1024
FEW_SUMMED_ROWS = 256
# A transposed operand is read in tiles whose cache lines all stay in L1. Eight elements along the
# row, since strides that are powers of two put their lines in one set of eight; 64 rows: a square
# of 1024 took 0.7 ms so, 2.9 in squares of 32, 5.7 without tiles. Small tensors are in L1 anyway.
TILE_LENGTH = 8
TILE_ROWS = 64
SMALLEST_TILED = 16384
# Short rows over several axes: a row's index costs divisions, loops over the last axes cost none.
# Rotary embeddings of 16 to 64 elements a row take 15 to 50 % less.
SHORT_ROW = 512
# An exponential and what follows is a chain longer than the core's window: four vectors at a time
# take 20 to 35 % less (GELU, SiLU, the block of norms and loss). Cheap loops gain nothing and lose
# a tail; short rows of odd length would spend their time in it.
LONG_CHAIN = 15.0
INTERLEAVED_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Cut:
    """What the kernel's index counts, and in how many blocks.

    rows      whole rows, or groups of them: the last `grouped` outer axes of a group are loops
    pieces    pieces of `length` elements, `pieces` to a row
    columns   pieces of `length` elements, each through all rows, which are added up in `groups`
              as the blocks of a cut into rows would
    tiles     TILE_ROWS rows along outer axis `axis`, taken TILE_LENGTH elements at a time
    """

    kind: Literal["rows", "pieces", "columns", "tiles"]
    extent: int
    blocks: int
    length: int
    pieces: int = 1
    axis: int = -1
    grouped: int = 0
    groups: int = 1

    def notes(self) -> Iterator[str]:
        """Why the loops are what they are, in a sentence for the kernel's docstring."""
        if self.kind == "pieces":
            yield f"In pieces of {self.length} elements: work for all threads, and each fits L1."
        elif self.kind == "columns":
            yield f"In pieces of {self.length} columns through all rows: their sums are whole."
        elif self.kind == "tiles":
            yield f"In tiles of {TILE_ROWS} rows by {self.length}: an operand lies turned."
        if self.grouped:
            yield "The last axes are loops of their own: rows are short, and divisions cost more."
        if self.groups > 1:
            yield f"Rows are added in {self.groups} groups, as blocks of rows would add them."


def cut(
    nest: Nest,
    element_cost: float,
    *,
    divisible: bool = False,
    totals: bool = False,
    columns: bool = False,
    tile_axis: int | None = None,
    scratch: int = 0,
) -> Cut:
    """The cut of a nest.

    Args:
        divisible: a row may be cut into pieces: nothing needs all of it at once.
        totals, columns: each block costs partial sums, of one number or of a row.
        scratch: bytes that a whole row keeps for itself.
        tile_axis: the outer axis along which a transposed operand is contiguous.
    """
    sums = totals or columns
    wanted = wanted_blocks(nest.elements, SUMMED_COST if sums else element_cost)

    def of(most: int, extent: int) -> int:
        return max(1, min(wanted, most, extent))

    long = divisible and nest.inner >= 2 * PIECE
    if long and columns and nest.rows <= FEW_SUMMED_ROWS:
        pieces = -(-nest.inner // COLUMN_PIECE)
        most = MOST_PARTIALS if totals else MOST_BLOCKS
        groups = of(MOST_PARTIALS, nest.rows)
        # A group of one row is the row.
        groups = 1 if groups == nest.rows else groups
        return Cut("columns", pieces, of(most, pieces), COLUMN_PIECE, pieces, groups=groups)
    most = MOST_PARTIALS if sums else MOST_BLOCKS
    if long and nest.rows < FEW_ROWS:
        pieces = -(-nest.inner // PIECE)
        extent = nest.rows * pieces
        return Cut("pieces", extent, of(most, extent), PIECE, pieces)
    if divisible and not sums and tile_axis is not None and nest.elements >= SMALLEST_TILED:
        along = nest.outer[tile_axis]
        tiles = -(-along // TILE_ROWS)
        extent = nest.rows // along * tiles
        return Cut("tiles", extent, of(most, extent), TILE_LENGTH, tiles, tile_axis)
    most = min(most, max(MOST_PARTIALS, MOST_SCRATCH // max(scratch, 1)))
    blocks = of(most, nest.rows)
    grouped = _grouped_axes(nest, blocks)
    extent = math.prod(nest.outer[: len(nest.outer) - grouped])
    return Cut("rows", extent, blocks, nest.inner, grouped=grouped)


def _grouped_axes(nest: Nest, blocks: int) -> int:
    """As many of the last outer axes as leave the blocks equal, or nearly so."""
    if nest.inner >= SHORT_ROW or len(nest.outer) < 2:
        return 0
    for grouped in range(len(nest.outer) - 1, 0, -1):
        groups = math.prod(nest.outer[: len(nest.outer) - grouped])
        if groups % blocks == 0 or groups >= 4 * blocks:
            return grouped
    return 0


def wanted_blocks(elements: int, element_cost: float) -> int:
    """As many blocks as take long enough to be worth a member of the team."""
    nanoseconds = max(ELEMENT_NANOSECONDS, ADDITION_NANOSECONDS * element_cost)
    return int(elements * nanoseconds / BLOCK_NANOSECONDS)


def interleaving(length: int, dearest: float) -> int:
    """Vectors in flight in a loop whose dearest op costs `dearest`; 0 leaves it to the compiler."""
    if dearest < LONG_CHAIN:
        return 0
    return 4 if length >= INTERLEAVED_LENGTH or length % 32 == 0 else 2
