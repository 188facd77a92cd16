"""How rows with sums are cut on CUDA: threads, how rows are loaded, rings; the measured reasons.

Input: a row's length, element sizes, what a thread holds. Output: shapes, the best first.
Invariant: they depend on shapes, ops and the target alone, so the order of every sum is fixed.
Measured on an H200, percent of the bandwidth of a copy.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from rudagraph.codegen.cuda_launch import (
    FLAT_THREADS,
    REGISTERS,
    SMALL_ROW_THREADS,
    WARP,
    WIDEST_BYTES,
    RowShape,
    clusters,
    copies_in_bulk,
    multiprocessors,
    power_of_two,
    shared_bytes,
    together,
)

# Threads that add partial sums: 32 warps share the parts of 32 columns, and each thread loads 8 of
# them before it adds: what takes time is waiting, about 2 µs for 264 parts. Parts of several sums
# are loaded together, as far as so many registers hold them.
FINISH_THREADS = 1024
FINISH_LOADS = 8
FINISH_REGISTERS = 32
# Blocks of a pointwise kernel with sums on each multiprocessor: enough loads in flight, few parts.
FLAT_SUM_BLOCKS = 4
# Threads on a multiprocessor of a row kernel with sums: what partial sums and the row loaded ahead
# leave room for, and of one of its blocks.
SUM_THREADS = 1024
SUM_BLOCK_THREADS = 512
# Rows of up to two vectors a lane are a warp's; threads of their blocks. A block of several rows
# adds their partial sums itself.
SUM_WARP_VECTORS = 2
SUM_WARP_THREADS = 256
# Threads of a row whose elements are loaded one by one: RMSNorm backward of bf16 4097 gives 73 %,
# and 65 % with 512.
SUM_SINGLES_THREADS = 256
# Vectors of a row from which a ring of rows pays.
RING_VECTORS = 512
# Registers that addresses, loop counters and arithmetic take beside what a thread holds.
OTHER_REGISTERS = 20
# Two rows ahead are enough, and with more of them blocks drift apart: LayerNorm backward of bf16
# 4096 takes 53.0 µs with three slots and 53.6 with four, 8192 103.6 and 104.3.
MOST_SLOTS = 3
# Rows that are asked to come to L2 where elements are loaded one by one, and none is loaded ahead:
# RMSNorm backward of bf16 4097 takes 57.7 µs so and 66.0 with the next row ahead.
ASKED_SINGLES = 2


class Loads(enum.Enum):
    """How a persistent kernel loads its rows."""

    AHEAD = "ahead"  # the next row into registers
    RING = "ring"  # several rows into shared memory
    PLAIN = "plain"  # when their turn comes


# For rows with sums, the best first: whether values are held between passes, how rows are loaded.
# LayerNorm backward at bf16 4096 is short of arithmetic, so what is held saves time.
SUM_CHOICES = (
    (True, Loads.RING),
    (False, Loads.RING),
    (True, Loads.AHEAD),
    (False, Loads.AHEAD),
)


def sums_fit(shape: RowShape, words: float) -> bool:
    """Whether an element's words in a row kernel with sums fit a thread's registers."""
    registers = min(REGISTERS // (shape.block_threads * shape.resident), 255)
    return shape.chunks * shape.vector * words <= registers - OTHER_REGISTERS


@dataclass(frozen=True, slots=True)
class RingShape:
    """Slots of a ring of rows in shared memory, and what they take.

    In bulk the copy engine fills them.
    """

    slots: int
    bytes: int
    in_bulk: bool = False


def ring_shape(
    shape: RowShape, sizes: tuple[int, ...], target: str, *, is_held: bool = True
) -> RingShape | None:
    """A ring for operands of these element sizes; None where it cannot be or does not pay.

    Copies by each thread wait in one queue with what it reads of the ring. Where it holds nothing
    between passes and reads all of it twice, the copy engine is faster: LayerNorm backward of bf16
    16384 takes 207 µs so and 225. Where it holds what it needs again it is not: 8192 takes 106 and
    104, RMSNorm's of 16384 209 and 198. RMSNorm backward at bf16 4096 takes 52.2 µs with a ring
    and 52.7 with the next row ahead, at 8192 it takes 99.4 and 102.6, at 1024 the reverse: 17.7
    and 17.2.
    """
    is_whole = all(size * shape.vector % WIDEST_BYTES == 0 for size in sizes)
    row_bytes = shape.chunks * shape.block_threads * shape.vector * sum(sizes)
    slots = min(MOST_SLOTS, shared_bytes(target) // (max(row_bytes, 1) * shape.resident))
    if not is_whole or not sizes or slots < 2 or shape.threads * shape.chunks < RING_VECTORS:
        return None
    return RingShape(slots, slots * row_bytes, not is_held and copies_in_bulk(target))


def sum_row_shapes(length: int, vector: int) -> tuple[RowShape, ...]:
    """Shapes for rows with sums, the best first.

    Few threads with many registers; where a row leaves threads over, two rows in a block rather
    than two blocks, which is half the partial sums. At bf16 4096 256 threads × 2 vectors and two
    rows give RMSNorm backward 94 % and LayerNorm's 89; 512 × 1 and two blocks 92 and 74. At 16384
    1024 × 2 give RMSNorm 96, 512 × 4 93; LayerNorm does not fit the former.
    """
    vectors, block = -(-length // vector), SUM_BLOCK_THREADS
    if vectors <= WARP * SUM_WARP_VECTORS:
        return _sum_shapes(vectors, vector, WARP, SUM_WARP_THREADS, SUM_THREADS // SUM_WARP_THREADS)
    if vectors <= 2 * WARP * SUM_WARP_VECTORS:
        return _sum_shapes(vectors, vector, 2 * WARP, SUM_WARP_THREADS, 2)
    if vector == 1 and vectors > block:
        return _sum_shapes(vectors, vector, SUM_SINGLES_THREADS, SUM_SINGLES_THREADS, 2)
    if vectors <= block // 2:
        return _sum_shapes(vectors, vector, power_of_two(vectors), block, 2)
    if vectors <= block:
        return _sum_shapes(vectors, vector, block // 2, block, 1)
    one = _sum_shapes(vectors, vector, block, block, 1)
    wide = _sum_shapes(vectors, vector, SUM_THREADS, SUM_THREADS, 1)
    is_narrow = vector <= 4  # elements of 32 bits: no time goes into unpacking them
    if vectors <= SUM_THREADS if is_narrow else vectors > SUM_THREADS:
        return (*wide, *one)
    return one


def _sum_shapes(
    vectors: int, vector: int, threads: int, block: int, most: int
) -> tuple[RowShape, ...]:
    chunks, rows = -(-vectors // threads), block // threads
    residents = range(most, 0, -1)
    return tuple(RowShape(threads, vector, chunks, rows, resident) for resident in residents)


Choices = tuple[tuple[RowShape, ...], tuple[tuple[bool, Loads], ...]]


def sum_choices(length: int, vector: int, target: str) -> tuple[Choices, ...]:
    """Shapes for rows with sums and how to load them, the best first.

    Where no block holds a row beside its sums, 2, 4 or 8 blocks do; at last rows are loaded when
    their turn comes.
    """
    one = sum_row_shapes(length, vector)
    plain: tuple[Choices, ...] = ()
    if asks_ahead(vector, one[0], target):
        plain = ((one, ((True, Loads.PLAIN), (False, Loads.PLAIN))),)
    shared: list[Choices] = []
    for cluster in clusters(target):
        shapes = sum_row_shapes(-(-length // cluster), vector)
        whole = tuple(
            replace(shape, cluster=cluster)
            for shape in shapes
            if shape.rows == 1 and shape.threads <= SUM_BLOCK_THREADS
        )
        shared.append((whole, SUM_CHOICES))
    return (*plain, (one, SUM_CHOICES), *shared, (one, ((False, Loads.PLAIN),)))


def asks_ahead(vector: int, shape: RowShape, target: str) -> bool:
    """Whether rows whose elements are loaded one by one come to L2 before their turn."""
    return vector == 1 and shape.threads > WARP and copies_in_bulk(target)


def sum_groups(shape: RowShape, rows: int, target: str) -> tuple[RowShape, int]:
    """Groups that share the rows, a whole number of blocks; the shape may change for them.

    Groups of less than a warp run in step, so all must have the same number of rows; where no
    number of groups near the one wanted gives that, a row takes a whole warp.
    """
    most = min(together(target, shape.cluster) * shape.resident * shape.rows, rows)
    if shape.threads < WARP:
        for groups in range(most - most % shape.rows, most // 4, -shape.rows):
            if rows % groups == 0:
                return shape, groups
        count = SMALL_ROW_THREADS // WARP
        shape = RowShape(WARP, shape.vector, shape.chunks, count, shape.resident)
        most = min(multiprocessors(target) * shape.resident * count, rows)
    return shape, -(-most // shape.rows) * shape.rows


def active_threads(threads: int, per_row: int, target: str) -> int:
    """Threads of a pointwise kernel with sums: whole rows of `per_row`, about one wave."""
    wanted = min(multiprocessors(target) * FLAT_SUM_BLOCKS * FLAT_THREADS, threads)
    return max(wanted // per_row, 1) * per_row


def finish_vector(columns: int, size: int, target: str) -> int:
    """Columns a thread of the kernel that adds partial sums: so many that blocks come at once.

    Rather two than a second block on each multiprocessor: at 8192 columns RMSNorm backward of bf16
    takes 98.1 µs so and 98.6, LayerNorm's 102.9 and 103.7; with four it takes 103.6.

    Args:
        size: bytes of a partial sum.
    """
    vector = 1
    most = multiprocessors(target) * WARP  # with one block on each
    while columns > most * vector and columns % (2 * vector) == 0:
        if 2 * vector * size > WIDEST_BYTES:
            break
        vector *= 2
        most = multiprocessors(target) * (2048 // FINISH_THREADS) * WARP
    return vector
