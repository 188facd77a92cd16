"""Keys of table rows on CUDA: made, sorted without atomics, and where each row's begin.

    1. key = id << 32 | i: unique, and in the order wanted
    2. each chunk of keys sorted by counting the smaller ones
    3. chunks merged: a key's place is the number of smaller keys in each
    4. where each row's keys start

Input: the op with the ids. Output: kernel calls. Invariant: an id outside the table is reported
and sorts behind all rows.
"""

from __future__ import annotations

from rudagraph.codegen.cuda_launch import (
    FLAT_THREADS,
    SORT_CHUNK,
    WARP,
    cuda_launch,
)
from rudagraph.codegen.cuda_writer import CUDA_PREAMBLE, CUDA_RESERVED
from rudagraph.codegen.domain import build_nest
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.scalars import int_of
from rudagraph.codegen.source import Lines, Names, Parameters, kernel_call
from rudagraph.ir.graph import Op
from rudagraph.schedule.lowered import KernelArgument, KernelCall, Strides

KEY = 1 << 32


class IndexKernel:
    """Names, pointers and lines of one kernel whose threads share out `extent` things."""

    def __init__(self, title: str, target: str, extent: int, threads: int) -> None:
        self.title, self.target, self.extent, self.threads = title, target, extent, threads
        self.lines, self.names = Lines(depth=1), Names(CUDA_RESERVED)
        self.parameters = Parameters()

    def pointer(self, hint: str, argument: KernelArgument, *, written: bool = False) -> str:
        return self.parameters.add(self.names.fresh(hint), argument, written=written)

    def start(self, name: str) -> str:
        """The line that gives each thread its own, and sends the surplus ones home."""
        own = self.names.fresh(name)
        self.lines.add(f"{own} = block_index() * {self.threads} + thread_index()")
        if self.extent % self.threads:
            with self.lines.block(f"if {own} >= {self.extent}:"):
                self.lines.add("return")
        return own

    def call(self, docstring: list[str], *setup: str) -> KernelCall:
        return kernel_call(
            self.title,
            docstring,
            self.lines,
            self.parameters,
            self.extent,
            -(-self.extent // self.threads),
            preamble="\n".join([CUDA_PREAMBLE, *([""] if setup else []), *setup]),
            cuda=cuda_launch(self.target, self.threads),
        )


def keys_call(op: Op, strides: Strides, target: str) -> KernelCall:
    _, ids = op.inputs
    rows, padding = int_of(op, "rows"), op.get("padding_index", -1)
    kernel = IndexKernel("embedding_keys", target, ids.type.numel, FLAT_THREADS)
    lines, names = kernel.lines, kernel.names
    ids_pointer = kernel.pointer("ids_pointer", KernelArgument("operand", 1))
    keys = kernel.pointer("keys", KernelArgument("workspace", 0), written=True)
    error = kernel.pointer("error", KernelArgument("error", 0), written=True)
    i = kernel.start("i")
    number, key = names.fresh("number"), names.fresh("key")
    nest = build_nest(
        (*ids.type.shape, 1), {"ids": ((*ids.type.shape, 1), (*strides, 0))}, rows=True
    )
    index = Indexing(nest, i, "0")
    index.declare(lines, names, ("ids",))
    lines.add(f"{number} = int64(load_{ids.type.dtype}({ids_pointer}, {index.at('ids')}))")
    lines.add(f"report_index({error}, {number}, {rows}, 0)")
    counted = f"{number} >= 0 and {number} < {rows}"
    counted += "" if padding == -1 else f" and {number} != {padding}"
    # What counts for no row sorts behind all rows.
    lines.add(f"{key} = {number} if {counted} else {rows}")
    lines.add(f"store_i64({keys}, {i}, {key} * {KEY} + {i})")
    return kernel.call([f"Keys of {ids.type.numel} ids: row, then index."])


def sort_call(count: int, target: str) -> KernelCall:
    """A warp per key: its lanes share the comparisons."""
    kernel = IndexKernel("sort_keys", target, count * WARP, FLAT_THREADS)
    lines, names = kernel.lines, kernel.names
    keys = kernel.pointer("keys", KernelArgument("workspace", 0))
    chunked = kernel.pointer("chunked", KernelArgument("workspace", 1), written=True)
    own = kernel.start("thread")
    i, lane, mine, first, last, below, j = (
        names.fresh(name) for name in ("i", "lane", "mine", "first", "last", "below", "j")
    )
    length = 2 if count % 2 == 0 else 1
    lines.add(f"{i} = {own} // {WARP}", f"{lane} = {own} % {WARP}")
    lines.add(f"{mine} = load_i64({keys}, {i})", f"{first} = {i} // {SORT_CHUNK} * {SORT_CHUNK}")
    lines.add(f"{last} = min({first} + {SORT_CHUNK}, {count})", f"{below} = 0")
    step = WARP * length
    with lines.block(f"for {j} in range({first} + {lane} * {length}, {last}, {step}):"):
        smaller = f"int64(lt(vector.load_i64({keys}, {j}), {mine}))"
        lines.add(f"{below} = {below} + vector.within_sum({smaller})")
    lines.add(f"{below} = warp.across_sum({below})")
    with lines.block(f"if {lane} == 0:"):
        lines.add(f"store_i64({chunked}, {first} + {below}, {mine})")
    docstring = [f"Sorts chunks of {SORT_CHUNK} of {count} keys by counting the smaller ones."]
    return kernel.call(docstring, f"vector = Vector({length})", f"warp = Block(threads={WARP})")


def merge_call(count: int, target: str) -> KernelCall:
    """A warp per key: each lane searches other chunks."""
    kernel = IndexKernel("merge_keys", target, count * WARP, FLAT_THREADS)
    lines, names = kernel.lines, kernel.names
    chunked = kernel.pointer("chunked", KernelArgument("workspace", 1))
    merged = kernel.pointer("merged", KernelArgument("workspace", 2), written=True)
    own = kernel.start("thread")
    i, lane, mine, place, chunk, first = (
        names.fresh(name) for name in ("i", "lane", "mine", "place", "chunk", "first")
    )
    lines.add(f"{i} = {own} // {WARP}", f"{lane} = {own} % {WARP}")
    lines.add(f"{mine} = load_i64({chunked}, {i})", f"{place} = 0")
    with lines.block(f"for {chunk} in range({lane}, {-(-count // SORT_CHUNK)}, {WARP}):"):
        lines.add(f"{first} = {chunk} * {SORT_CHUNK}")
        last = f"min({first} + {SORT_CHUNK}, {count})"
        low = _search(lines, names, chunked, first, last, mine)
        lines.add(f"{place} = {place} + {low} - {first}")
    lines.add(f"{place} = warp.across_sum({place})")
    with lines.block(f"if {lane} == 0:"):
        lines.add(f"store_i64({merged}, {place}, {mine})")
    return kernel.call([f"Merges sorted chunks of {count} keys."], f"warp = Block(threads={WARP})")


def starts_call(count: int, rows: int, workspace: int, target: str) -> KernelCall:
    kernel = IndexKernel("embedding_starts", target, rows + 1, FLAT_THREADS)
    keys = kernel.pointer("keys", KernelArgument("workspace", workspace))
    starts = kernel.pointer("starts", KernelArgument("workspace", 3), written=True)
    row = kernel.start("row")
    low = _search(kernel.lines, kernel.names, keys, "0", str(count), f"{row} * {KEY}")
    kernel.lines.add(f"store_i64({starts}, {row}, {low})")
    return kernel.call([f"Where the keys of each of {rows} rows start among {count}."])


def _search(lines: Lines, names: Names, keys: str, first: str, last: str, wanted: str) -> str:
    """Lines that find the first of the sorted keys that is not below the one wanted."""
    low, high, middle = (names.fresh(name) for name in ("low", "high", "middle"))
    lines.add(f"{low} = {first}", f"{high} = {last}")
    with lines.block(f"while {low} < {high}:"):
        lines.add(f"{middle} = ({low} + {high}) // 2")
        with lines.block(f"if load_i64({keys}, {middle}) < {wanted}:"):
            lines.add(f"{low} = {middle} + 1")
        with lines.block("else:"):
            lines.add(f"{high} = {middle}")
    return low
