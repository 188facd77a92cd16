"""A kernel before and after the build: source text and machine code, pure data.

`KernelSource` is what the code generator emits, `MachineCode` what `build` makes of it and what an
artifact holds. Invariant: neither holds anything but text, numbers and bytes, so both travel
between processes and to disk as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

# Python names of the arguments every CPU kernel takes before its pointers.
LEADING_PARAMETERS = ("begin", "end", "block")

# What machine code may leave undefined; the loader resolves these and nothing else.
THREAD_SYMBOLS = frozenset({"omp_get_thread_num", "omp_get_num_threads"})
MEMORY_SYMBOLS = frozenset({"memcpy", "memmove", "memset"})
# Doubles of libm under names of our own: LLVM knows the plain ones and would turn calls into
# others (`exp2`, `sincos`) that are not in this list. "rudagraph_sin" is `double sin(double)`.
LIBM_PREFIX = "rudagraph_"
LIBM_NAMES = (
    *("exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "pow", "atan2", "fmod"),
)
LIBM_SYMBOLS = frozenset(LIBM_PREFIX + name for name in LIBM_NAMES)
EXTERNAL_SYMBOLS = THREAD_SYMBOLS | MEMORY_SYMBOLS | LIBM_SYMBOLS


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """How a CUDA kernel is launched, beside its number of blocks.

    `target` is the GPU it is for, "sm_90". `resident` blocks must fit on one multiprocessor at a
    time, which bounds the registers; 0 leaves that to the compiler.
    """

    target: str
    threads: int
    resident: int = 0
    # Dynamic shared memory of a block.
    shared_bytes: int = 0
    # Blocks may start while the kernel before still runs; the text waits for it first of all.
    overlaps: bool = False
    # So many neighbouring blocks run together and reach each other's shared memory.
    cluster: int = 1


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Python text that defines `kernel(begin, end, block, *parameters)`, and how it is launched.

    The rows [0, extent) are cut into `blocks` fixed ranges; the kernel is called once for each.
    Parameters are raw pointers, but for `numbers`, which are 64-bit integers. Two pointers may
    overlap only if the kernel writes through neither: an in-place kernel takes its buffer once.

    With `cuda`, the text defines `kernel(*parameters)` for a GPU, run by the threads of `blocks`
    blocks; `extent` is then only what the kernel works on. There parameters may overlap where each
    thread reads an element before it writes it.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    extent: int
    blocks: int
    # Parameters the kernel only reads; the others are written, or read and written.
    read_only: tuple[str, ...] = ()
    cuda: CudaLaunch | None = None
    # Parameters that are no pointers but integers.
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineCode:
    """One relocatable ELF object whose `entry` runs a team member's share of the blocks.

    `entry` has the C type `void entry(int64_t *arguments)`; arguments are pointers and numbers in
    the order of `parameters`. `target` is "triple cpu feature,feature…", the features it needs.

    With `cuda`, `code` is a cubin for the GPU `target`, `entry` a kernel that takes the pointers
    themselves, and `ptx` the text it was made from.
    """

    name: str
    target: str
    code: bytes
    entry: str
    parameters: tuple[str, ...]
    extent: int
    blocks: int
    cuda: CudaLaunch | None = None
    ptx: str = ""
