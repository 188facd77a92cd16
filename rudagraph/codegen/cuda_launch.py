"""How a CUDA kernel is cut: threads, vectors, rows a block; the measured reason for each number.

Input: a row's length, element sizes, how much a thread holds. Output: frozen numbers. Invariant:
they depend on shapes, ops and the target alone, so the order of every sum is fixed. Measured on an
H200, percent of the bandwidth of a copy.
"""

from __future__ import annotations

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
# Longer rows: one block of 1024 fills a multiprocessor and all of it waits at each barrier; two of
# 512 do not. Softmax of f32 16384 gives 99 % with 512 threads × 8, 88 % with 1024 × 4.
LONG_ROW_THREADS = 512
# Elements a thread where they are loaded one by one: what is under way counts. Softmax of bf16 4097
# gives 80 % with 256 threads × 17, 72 % with 512 × 9, 42 % with 1024 × 5.
SINGLES_PER_THREAD = 24
# Threads of a block whose rows are shorter than a warp reads at once.
SMALL_ROW_THREADS = 128
# Rows of 16 bits that a warp holds beside what all rows share, which it then loads once: persistent
# blocks of so many, the next rows loaded while these are worked on, where rows make several turns
# and the last one is no waste. Of bf16 1024 LayerNorm takes 10.3 µs so and 11.6 with a block for
# every four rows, RMSNorm 10.0 and 10.3. Softmax gains nothing, its derivative and rows of f32 lose
# 2 to 30 %.
AHEAD_ROWS = 8
AHEAD_BUSY = 0.8
AHEAD_OTHER_REGISTERS = 16
# Threads of a pointwise block: 128 to 512 were within 1 %.
FLAT_THREADS = 256
# Vectors a thread, of blocks with as many threads less, where several rows read some operands alike
# and elements have 16 bits: rotary embeddings take 0.8 to 4 % less so, backward ones of bf16
# 4096 34.6 µs and 35.4; those of f32 take as much as before.
KEPT_VECTORS = 2
# Multiprocessors by target: persistent kernels put one or a few blocks on each.
MULTIPROCESSORS = {"sm_80": 108, "sm_86": 84, "sm_89": 142, "sm_90": 132, "sm_100": 148}
USUAL_MULTIPROCESSORS = 132
# Words that a thread may hold between passes: 64 registers less what arithmetic takes.
MOST_HELD_WORDS = 32
# Words up to which operands that all rows share are held as well: LayerNorm of bf16 4096 takes
# 45 µs where weight and bias leave no registers, 35 where they are loaded when they are used.
SHARED_HELD_WORDS = 16
LATE_VECTORS = 4
LATE_REGISTERS = 64
# Words of a long row's last parts that a thread of 1024 holds: 32 spill.
LONG_HELD_WORDS = 16
# Keys sorted by comparing each with all others of its chunk, and keys whose gradients are added in
# one go where they are all one row's; blocks that do so are small, there are few segments.
SORT_CHUNK = 1024
SEGMENT = 32
SORT_THREADS = 64
# Shared memory that a block can have by target, what static arrays take left aside; on a target
# that is not listed what every one of them has.
SHARED_BYTES = {"sm_80": 160 << 10, "sm_90": 224 << 10, "sm_100": 224 << 10}
USUAL_SHARED_BYTES = 96 << 10
# What L2 keeps for all rows that read it: a part of it.
KEPT_BYTES = 16 << 20
# Rows of one operand that are asked to come to L2 behind those that are loaded: RMSNorm of bf16
# 1024 takes 9.6 µs so and 10.0; with a residual it takes 1 % more.
ASKED_ROWS = 1
# Vectors a thread loads at once of a row in parts.
LONG_VECTORS = 4
LONG_THREADS = 1024
# Of rows under way that L2 keeps from one pass to the next.
L2_BYTES = 48 << 20


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
        threads = min(power_of_two(vectors), WARP)
        rows = SMALL_ROW_THREADS // threads
        return RowShape(threads, vector, -(-vectors // threads), rows, 0)
    per_thread = VECTORS_PER_THREAD if vector > 1 else SINGLES_PER_THREAD
    threads = max(power_of_two(-(-vectors // per_thread)), WARP)
    if threads > MOST_THREADS:
        chunks = -(-vectors // LONG_ROW_THREADS)
        return RowShape(LONG_ROW_THREADS, vector, chunks, 1, 1024 // LONG_ROW_THREADS)
    chunks = -(-vectors // threads)
    held = int(chunks * vector * words)
    # Guards of what is outside the row take registers too.
    is_whole = chunks * threads * vector == length
    return RowShape(threads, vector, chunks, 1, _resident(threads, held) if is_whole else 0)


def ahead_shape(
    shape: RowShape, rows: int, shared: float, words: float, target: str
) -> tuple[RowShape, int] | None:
    """A persistent shape for rows of one warp each, and how many warps; None where it does not pay.

    Args:
        shared: 32-bit words that an element takes of what all rows share.
        words: the same of everything, with the next row ahead.
    """
    if shape.threads != WARP or shape.vector != WIDEST_BYTES // 2 or not shared:
        return None
    threads = AHEAD_ROWS * shape.threads
    registers = int(words * shape.chunks * shape.vector) + AHEAD_OTHER_REGISTERS
    most = max(min(REGISTERS // (registers * threads), 2048 // threads), 1)
    best, best_share = None, AHEAD_BUSY
    for resident in range(most, most // 2, -1):
        groups = multiprocessors(target) * resident * AHEAD_ROWS
        turns = -(-rows // groups)
        share = rows / (turns * groups)  # of the warps' turns, those that have a row
        if turns > 1 and share > best_share:
            best, best_share = (replace(shape, rows=AHEAD_ROWS, resident=resident), groups), share
    return best


def late_shape(length: int, vector: int) -> RowShape:
    """The shape for rows that load what all of them share when it is used: more waits to hide.

    Four vectors a thread with 64 registers, so several rows on a multiprocessor. LayerNorm of bf16
    8192 gives 95 % with 256 threads × 4, 71 % with 512 × 2 where 48 registers are taken.
    """
    vectors = -(-length // vector)
    per_thread = LATE_VECTORS if vector > 1 else SINGLES_PER_THREAD
    threads = max(power_of_two(-(-vectors // per_thread)), WARP)
    threads = LONG_ROW_THREADS if threads > MOST_THREADS // 2 else threads
    resident = max(REGISTERS // (LATE_REGISTERS * threads), 1)
    return RowShape(threads, vector, -(-vectors // threads), 1, min(resident, 32))


def rows_behind(shape: RowShape, target: str) -> int:
    """How many rows behind its own a block asks for once it has loaded; 0 where it asks for none.

    Of the longest rows that registers hold two are on a multiprocessor, and memory waits while both
    add up or store. Half the rows that are under way come to L2 meanwhile: RMSNorm of f32 16384
    takes 255.4 µs so and 260.1. All of them took 299, twice as many 361, and half of them asked for
    when the sum is known 256.3.
    """
    is_longest = shape.chunks * shape.threads > MOST_THREADS * VECTORS_PER_THREAD
    is_usual = shape.vector > 1 and shape.threads == LONG_ROW_THREADS
    if not is_longest or not is_usual or not copies_in_bulk(target):
        return 0
    return multiprocessors(target) * shape.resident // 2


def widest_shape(length: int, vector: int) -> RowShape:
    """A row that all threads of a multiprocessor hold, 64 registers each."""
    chunks = -(-length // (vector * MOST_THREADS))
    return RowShape(MOST_THREADS, vector, chunks, 1, 1)


def fits(shape: RowShape, words: float) -> bool:
    """Whether a thread's part of the row fits its registers."""
    is_warp = shape.threads <= WARP  # of few vectors, with registers to spare
    return is_warp or shape.chunks * shape.vector * words <= MOST_HELD_WORDS


def clusters(target: str) -> tuple[int, ...]:
    """How many blocks may share a row on the target."""
    return CLUSTERS if int(target.removeprefix("sm_")) >= 90 else ()


def _resident(threads: int, held: int) -> int:
    """Blocks that should fit on a multiprocessor: as many as registers for what is held allow.

    Full occupancy is 2048 threads with 32 registers each, which a norm of two vectors a thread
    needs: left alone the compiler takes 39 to 48 and loses a quarter of the threads.
    """
    for wanted in (32, 40, 48, 64):
        if held + 16 <= wanted:
            return max(1, min(REGISTERS // (wanted * threads), 2048 // threads, 32))
    return 1


def power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def long_shape(length: int, vector: int, row_bytes: int, target: str) -> RowShape:
    """The shape for rows in parts: vectors in flight, a whole multiprocessor a row.

    Where the rows that are under way would not stay in L2 until their second pass, blocks share
    them: there are fewer at once. Of those two fit on a multiprocessor, so that one works while the
    other waits for its cluster: RMSNorm of bf16 262144 gives 85 % with 8 blocks of 512 threads a
    row, 77 with 4 of 1024.
    """
    chunks = LONG_VECTORS if vector > 1 else 2 * LONG_VECTORS
    cluster = 1
    for wider in clusters(target):
        under_way = row_bytes * multiprocessors(target)
        if under_way > L2_BYTES and under_way // cluster > L2_BYTES // 2:
            cluster = wider
    if cluster == 1:
        return RowShape(LONG_THREADS, vector, chunks, 1, 1024 // LONG_THREADS)
    cluster = min(2 * cluster, max(CLUSTERS))
    return RowShape(LONG_THREADS // 2, vector, chunks // 2, 1, 2, cluster)


CLUSTERS = (2, 4, 8)  # blocks that may share a row; more are not portable


def copies_in_bulk(target: str) -> bool:
    """Whether the target has a copy engine that threads can ask."""
    return int(target.removeprefix("sm_")) >= 90


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

    A cluster stays within a group of up to 18 multiprocessors, some of which may be switched off:
    with one cluster more than fit, all wait for it as long again. 32 clusters of 4 took twice the
    time that 66 of 2 took.
    """
    count = multiprocessors(target)
    return count // cluster if cluster <= 2 else count * 7 // 8 // cluster


def early_blocks(launch: CudaLaunch) -> int:
    """Blocks that may come while the kernel before still runs: at most what all have room for."""
    return multiprocessors(launch.target) * (2048 // launch.threads) if launch.overlaps else 0


def multiprocessors(target: str) -> int:
    return MULTIPROCESSORS.get(target, USUAL_MULTIPROCESSORS)


def shared_bytes(target: str) -> int:
    return SHARED_BYTES.get(target, USUAL_SHARED_BYTES)
