"""How a CUDA kernel is cut: threads, vectors, rows a block; the measured reason for each number.

Input: a row's length, element sizes, how much a thread holds. Output: frozen numbers. Invariant:
they depend on shapes, ops and the target alone, so the order of every sum is fixed. Measured on an
H200, percent of the bandwidth of a copy.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from rudagraph.schedule.kernel import CudaLaunch

WARP = 32
MOST_THREADS = 1024
REGISTERS = 65536  # of a multiprocessor
# 16-byte accesses are the widest; wider, narrower or with cache hints all took 3 to 12 % longer.
WIDEST_BYTES = 16
# A warp for a row of up to 128 vectors, with no barrier: softmax of bf16 1024 takes 9.4 µs with 4
# vectors a thread, 10.5 with two warps a row.
WARP_VECTORS = 4
# Two vectors a thread: RMSNorm at bf16 4096 gives 93 % with 256 threads × 2, 8192 gives 96 % with
# 512 × 2, 16384 gives 98 % with 1024 × 2; one or four are 2 to 5 % slower.
VECTORS_PER_THREAD = 2
# Threads of a block whose rows are shorter than a warp reads at once.
SMALL_ROW_THREADS = 128
# Threads of a pointwise block: 128 to 512 were within 1 %.
FLAT_THREADS = 256
# Threads that add partial sums: 32 warps share the parts of 32 columns, and each thread loads 8 of
# them before it adds: what takes time is waiting, about 2 µs for 264 parts.
FINISH_THREADS = 1024
FINISH_LOADS = 8
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
# Threads of a row from which a ring of rows pays.
RING_THREADS = 512
# Registers that addresses, loop counters and arithmetic take beside what a thread holds.
OTHER_REGISTERS = 16
# Multiprocessors by target: persistent kernels put one or a few blocks on each.
MULTIPROCESSORS = {"sm_80": 108, "sm_86": 84, "sm_89": 142, "sm_90": 132, "sm_100": 148}
USUAL_MULTIPROCESSORS = 132
# Words of operands that a thread of 1024 may hold between passes: 64 registers less what arithmetic
# takes.
MOST_HELD_WORDS = 32
# Keys sorted by comparing each with all others of its chunk, and keys whose gradients are added in
# one go where they are all one row's; blocks that do so are small, there are few segments.
SORT_CHUNK = 1024
SEGMENT = 32
SORT_THREADS = 64
# Shared memory of a multiprocessor that blocks can have, what static arrays take left aside.
SHARED_BYTES = 224 * 1024
MOST_SLOTS = 4
# Vectors a thread loads at once of a row in parts.
LONG_VECTORS = 4
LONG_THREADS = 1024


@dataclass(frozen=True, slots=True)
class RowShape:
    """A row in a thread's `chunks` vectors of `vector` elements times `threads`; `rows` a block.

    With a cluster, a row is that of so many blocks.
    """

    threads: int
    vector: int
    chunks: int
    rows: int
    resident: int
    cluster: int = 1

    @property
    def block_threads(self) -> int:
        return self.threads * self.rows


def vector_length(sizes: list[int], *multiples: int) -> int:
    """Elements of an access: 16 bytes of the smallest type, as far as all multiples allow.

    Args:
        sizes: bytes of an element of each operand and result that steps along the row.
        multiples: what vectors must divide: lengths and steps of rows.
    """
    vector = WIDEST_BYTES // max(min(sizes, default=4), 2)
    while vector > 1 and any(multiple % vector for multiple in multiples):
        vector //= 2
    return vector


def row_shape(length: int, vector: int, words: float) -> RowShape:
    """The shape for rows held in registers.

    Args:
        words: 32-bit words an element needs while its row is held, over all operands.
    """
    vectors = -(-length // vector)
    if vectors <= WARP * WARP_VECTORS:
        threads = min(_power_of_two(vectors), WARP)
        rows = SMALL_ROW_THREADS // threads
        return RowShape(threads, vector, -(-vectors // threads), rows, 0)
    per_thread = VECTORS_PER_THREAD if vector > 1 else 8
    threads = min(_power_of_two(-(-vectors // per_thread)), MOST_THREADS)
    chunks = -(-vectors // threads)
    held = int(chunks * vector * words)
    # Guards of what is outside the row take registers too.
    is_whole = chunks * threads * vector == length
    return RowShape(threads, vector, chunks, 1, _resident(threads, held) if is_whole else 0)


def fits(shape: RowShape, words: float) -> bool:
    """Whether a thread's part of the row fits its registers."""
    budget = MOST_HELD_WORDS * MOST_THREADS // max(shape.block_threads, MOST_THREADS // 4)
    return shape.chunks * shape.vector * words <= budget


def _resident(threads: int, held: int) -> int:
    """Blocks that should fit on a multiprocessor: as many as registers for what is held allow.

    Full occupancy is 2048 threads with 32 registers each, which a norm of two vectors a thread
    needs: left alone the compiler takes 39 to 48 and loses a quarter of the threads.
    """
    for wanted in (32, 40, 48, 64):
        if held + 16 <= wanted:
            return max(1, min(REGISTERS // (wanted * threads), 2048 // threads, 32))
    return 1


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def long_shape(length: int, vector: int) -> RowShape:
    """The shape for rows in parts: four vectors a thread in flight, a whole multiprocessor a row.

    Cross-entropy in place over 128256 at bf16: 527 µs for 4096 rows, 94 %; clusters that hold the
    row took 553.
    """
    chunks = LONG_VECTORS if vector > 1 else 2 * LONG_VECTORS
    return RowShape(LONG_THREADS, vector, chunks, 1, 1024 // LONG_THREADS)


class Loads(enum.Enum):
    """How a persistent kernel loads its rows."""

    AHEAD = "ahead"  # the next row into registers
    RING = "ring"  # several rows into shared memory
    PLAIN = "plain"  # when their turn comes


CLUSTERS = (2, 4, 8)  # blocks that may share a row; more are not portable
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
    """Slots of a ring of rows in shared memory, and what they take."""

    slots: int
    bytes: int


def ring_shape(shape: RowShape, sizes: tuple[int, ...]) -> RingShape | None:
    """A ring for operands of these element sizes; None where it cannot be or does not pay.

    RMSNorm backward at bf16 4096 takes 52.2 µs with a ring and 52.7 with the next row ahead, at
    8192 it takes 99.4 and 102.6, at 1024 the reverse: 17.7 and 17.2.
    """
    is_whole = all(size * shape.vector % WIDEST_BYTES == 0 for size in sizes)
    row_bytes = shape.chunks * shape.block_threads * shape.vector * sum(sizes)
    slots = min(MOST_SLOTS, SHARED_BYTES // (max(row_bytes, 1) * shape.resident))
    if not is_whole or not sizes or slots < 2 or shape.threads < RING_THREADS:
        return None
    return RingShape(slots, slots * row_bytes)


def sum_row_shapes(length: int, vector: int) -> tuple[RowShape, ...]:
    """Shapes for rows with sums, the best first.

    Few threads with many registers: RMSNorm backward at bf16 4096 takes 53.5 µs with two blocks of
    512 on a multiprocessor and 63 with one; at 16384 one block of 512 takes 202, one of 1024 takes
    223; at f32 8192 the same 196 and 204.
    """
    vectors = -(-length // vector)
    is_warp = vectors <= WARP * SUM_WARP_VECTORS
    block = SUM_WARP_THREADS if is_warp else SUM_BLOCK_THREADS
    threads = min(_power_of_two(vectors), WARP if is_warp else block)
    chunks, most = -(-vectors // threads), SUM_THREADS // block
    if chunks > 1 and not is_warp:
        most = 1
    return tuple(
        RowShape(threads, vector, chunks, block // threads, resident)
        for resident in range(most, 0, -1)
    )


Choices = tuple[tuple[RowShape, ...], tuple[tuple[bool, Loads], ...]]


def sum_choices(length: int, vector: int, target: str) -> tuple[Choices, ...]:
    """Shapes for rows with sums and how to load them, the best first.

    Where no block holds a row beside its sums, 2, 4 or 8 blocks do; at last rows are loaded when
    their turn comes.
    """
    one = sum_row_shapes(length, vector)
    clusters = CLUSTERS if int(target.removeprefix("sm_")) >= 90 else ()
    shared: list[Choices] = []
    for cluster in clusters:
        shapes = sum_row_shapes(-(-length // cluster), vector)
        whole = tuple(replace(shape, cluster=cluster) for shape in shapes if shape.rows == 1)
        shared.append((whole, SUM_CHOICES))
    return ((one, SUM_CHOICES), *shared, (one, ((False, Loads.PLAIN),)))


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


def cuda_launch(
    target: str, threads: int, resident: int = 0, shared_bytes: int = 0, cluster: int = 1
) -> CudaLaunch:
    """How a kernel is launched; from sm_90 on its blocks come while those before it leave.

    RMSNorm at bf16 takes 35.0 µs without that at 4096, and 34.0 with it.
    """
    overlaps = int(target.removeprefix("sm_")) >= 90
    return CudaLaunch(target, threads, resident, shared_bytes, overlaps, cluster)


def together(target: str, cluster: int) -> int:
    """Blocks, or clusters of them, that run at once, one block on each multiprocessor.

    A cluster stays within a group of 16 or 18 multiprocessors.
    """
    count = multiprocessors(target)
    return count // cluster if cluster <= 2 else count // 16 * 16 // cluster


def multiprocessors(target: str) -> int:
    return MULTIPROCESSORS.get(target, USUAL_MULTIPROCESSORS)
