"""How a CPU kernel is cut: blocks, pieces of long rows; with the measured reason for each number.

Input: a nest and what one element costs. Output: frozen numbers. Invariant: they depend on shapes
and ops alone, never on the machine's thread count, so the order of every sum is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from rudagraph.codegen.domain import Nest

# A fork-join of the thread team takes 2 µs, so a block below 4 µs does not pay.
BLOCK_NANOSECONDS = 4000
# One vector addition, and the least an element costs however little is computed: memory.
ADDITION_NANOSECONDS = 0.02
ELEMENT_NANOSECONDS = 0.1
# More blocks than any team has members are of no use; partial rows of column sums cost memory and a
# second kernel for each block, and 16 were measured to cost 0.01 ms at 1024 columns.
MOST_BLOCKS = 64
MOST_PARTIALS = 16
# Elements of a piece: its random words and partial sums stay in L1, its loop overhead is nothing.
PIECE = 4096
# Whole rows are as good as pieces once there are this many to share out.
FEW_ROWS = 64


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows in pieces of `length` elements, and all pieces in `blocks`."""

    pieces: int
    length: int
    blocks: int


def cut(nest: Nest, element_cost: float, *, divisible: bool, partials: bool) -> Cut:
    """The cut of a nest.

    Args:
        divisible: a row may be cut into pieces: nothing needs all of it at once.
        partials: each block costs a partial row.
    """
    pieces, length = 1, nest.inner
    if divisible and nest.rows < FEW_ROWS and nest.inner >= 2 * PIECE:
        pieces, length = -(-nest.inner // PIECE), PIECE
    nanoseconds = max(ELEMENT_NANOSECONDS, ADDITION_NANOSECONDS * element_cost)
    most = MOST_PARTIALS if partials else MOST_BLOCKS
    wanted = int(nest.elements * nanoseconds / BLOCK_NANOSECONDS)
    return Cut(pieces, length, max(1, min(wanted, most, nest.rows * pieces)))
