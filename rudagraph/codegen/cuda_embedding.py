"""Embedding and its derivative on CUDA: rows gathered, and rows added in order of index.

    embedding            each thread copies a vector of y[i] = weight[ids[i]]
    embedding_backward   1. key = id << 32 | i: unique, and in the order wanted
                         2. each chunk of keys sorted by counting the smaller ones
                         3. chunks merged: a key's place is the number of smaller keys in each
                         4. where each row's keys start
                         5. segments of keys that are all one row's are summed: a frequent id's
                            row is then not what all wait for
                         6. each thread adds a vector of its row's gradients, in f32

Input: the op and strides. Output: Lowered with an error flag. Invariant: no atomics, so the bits of
a sum depend on the ids alone; an id outside the table is reported and touches no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from rudagraph.codegen.cuda_launch import (
    FLAT_THREADS,
    SEGMENT,
    SORT_CHUNK,
    SORT_THREADS,
    WARP,
    cuda_launch,
    vector_length,
)
from rudagraph.codegen.cuda_writer import CUDA_PREAMBLE, CUDA_RESERVED
from rudagraph.codegen.domain import build_nest
from rudagraph.codegen.embedding import described
from rudagraph.codegen.expressions import REGISTER, literal
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.memory import aligned
from rudagraph.codegen.scalars import int_of
from rudagraph.codegen.source import Lines, Names, Parameters, kernel_call
from rudagraph.ir.graph import Op
from rudagraph.schedule.lowered import KernelArgument, KernelCall, Lowered, Strides

_KEY = 1 << 32
_SHIFT = SEGMENT.bit_length() - 1
# Gradients that a thread loads before it adds them: they lie far apart.
_AT_ONCE = 8


class _Kernel:
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


def lower_embedding(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    target: str,
    offsets: tuple[int, ...] = (0, 0),
) -> Lowered:
    """Rows of a table at ids."""
    weight, ids = op.inputs
    weight_strides, ids_strides = operand_strides
    assert weight_strides is not None and ids_strides is not None
    rows, width = weight.type.shape
    dtype = weight.type.dtype
    nest = build_nest(
        op.result.type.shape,
        {
            "ids": ((*ids.type.shape, 1), (*ids_strides, 0)),
            "weight": ((width,), weight_strides[1:]),
            "y": (op.result.type.shape, result_strides[0]),
        },
        rows=True,
    )
    if not nest.elements:
        return Lowered(())
    dense = weight_strides[1] == nest.inner_stride("y") == 1
    steps = (width, weight_strides[0], *nest.outer_strides("y"), *offsets[:1])
    length = vector_length([dtype.size], *steps) if dense else 1
    kernel = _Kernel("embedding", target, nest.elements // length, FLAT_THREADS)
    lines, names = kernel.lines, kernel.names
    weight_pointer = kernel.pointer("weight_pointer", KernelArgument("operand", 0))
    ids_pointer = kernel.pointer("ids_pointer", KernelArgument("operand", 1))
    y_pointer = kernel.pointer("y_pointer", KernelArgument("result", 0), written=True)
    error = kernel.pointer("error", KernelArgument("error", 0), written=True)
    first = kernel.start("vector_number")
    row, j, number = (names.fresh(name) for name in ("row", "j", "number"))
    lines.add(f"{row} = {first} // {width // length}")
    lines.add(f"{j} = {first} % {width // length} * {length}")
    index = Indexing(nest, row, j)
    index.declare(lines, names, ("ids", "y"))
    lines.add(f"{number} = int64(load_{ids.type.dtype}({ids_pointer}, {index.at('ids')}))")
    lines.add(f"report_index({error}, {number}, {rows}, 0)")
    at = f"{number} * {weight_strides[0]} + {index.at('weight')}"
    with lines.block(f"if {number} >= 0 and {number} < {rows}:"):
        lines.add(
            f"vector.store_words_{dtype}({y_pointer}, {index.at('y')},"
            f" vector.load_words_{dtype}({weight_pointer}, {at}))"
        )
    with lines.block("else:"):
        zero = f"vector.pack_{dtype}(vector.full({literal(0, dtype)}))"
        lines.add(f"vector.store_words_{dtype}({y_pointer}, {index.at('y')}, {zero})")
    docstring = [f"{nest.rows} rows of {width}.", "", described(op, "weight", "ids", "y")]
    return Lowered((kernel.call(docstring, f"vector = Vector({length})"),), errors=1)


def lower_embedding_backward(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    target: str,
    offsets: tuple[int, ...] = (0, 0),
) -> Lowered:
    """Sums of gradient rows by id."""
    ids = op.inputs[1]
    gradient_strides, ids_strides = operand_strides
    assert gradient_strides is not None and ids_strides is not None
    rows, count = int_of(op, "rows"), ids.type.numel
    if not op.result.type.numel:
        return Lowered(())
    if count == 0:
        calls = [_starts_call(0, rows, 0, target)]
        last = 0
    else:
        calls = [_keys_call(op, ids_strides, target), _sort_call(count, target)]
        last = 1
        if count > SORT_CHUNK:
            calls.append(_merge_call(count, target))
            last = 2
        calls.append(_starts_call(count, rows, last, target))
    adding = _Adding(op, gradient_strides, result_strides[0], last, target, sum(offsets[:1]))
    bytes_of_keys = aligned(8 * max(count, 1))
    workspaces = [bytes_of_keys] * 3 + [aligned(8 * (rows + 1))]
    if adding.segments:
        calls.append(adding.segments_call())
        workspaces.append(adding.segments * adding.width * adding.wide.size)
    calls.append(adding.rows_call())
    return Lowered(tuple(calls), tuple(workspaces), errors=1 if count else 0)


def _keys_call(op: Op, strides: Strides, target: str) -> KernelCall:
    _, ids = op.inputs
    rows, padding = int_of(op, "rows"), op.get("padding_index", -1)
    kernel = _Kernel("embedding_keys", target, ids.type.numel, FLAT_THREADS)
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
    lines.add(f"store_i64({keys}, {i}, {key} * {_KEY} + {i})")
    return kernel.call([f"Keys of {ids.type.numel} ids: row, then index."])


def _sort_call(count: int, target: str) -> KernelCall:
    """A warp per key: its lanes share the comparisons."""
    kernel = _Kernel("sort_keys", target, count * WARP, FLAT_THREADS)
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


def _merge_call(count: int, target: str) -> KernelCall:
    """A warp per key: each lane searches other chunks."""
    kernel = _Kernel("merge_keys", target, count * WARP, FLAT_THREADS)
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


def _starts_call(count: int, rows: int, workspace: int, target: str) -> KernelCall:
    kernel = _Kernel("embedding_starts", target, rows + 1, FLAT_THREADS)
    keys = kernel.pointer("keys", KernelArgument("workspace", workspace))
    starts = kernel.pointer("starts", KernelArgument("workspace", 3), written=True)
    row = kernel.start("row")
    low = _search(kernel.lines, kernel.names, keys, "0", str(count), f"{row} * {_KEY}")
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


@dataclass
class _Adding:
    """The kernels that add gradients of sorted keys."""

    op: Op
    strides: Strides
    result_strides: Strides
    sorted_keys: int  # workspace
    target: str
    begin: int = 0  # of the gradient in its buffer

    def __post_init__(self) -> None:
        gradient = self.op.inputs[0]
        self.rows, self.width = self.op.result.type.shape
        self.count = self.op.inputs[1].type.numel
        self.dtype, self.wide = gradient.type.dtype, gradient.type.dtype.compute
        shape = gradient.type.shape
        self.nest = build_nest(shape, {"gradient": (shape, self.strides)}, rows=True)
        steps = [self.width, *self.nest.outer_strides("gradient"), self.result_strides[0]]
        steps.append(self.begin)
        dense = self.nest.inner_stride("gradient") == self.result_strides[1] == 1
        self.length = vector_length([self.dtype.size], *steps) if dense else 1
        self.by_frequency = bool(self.op.get("scale_by_frequency", False))

    @property
    def segments(self) -> int:
        # A gradient divided by its row's frequency is only known where the whole row is.
        return 0 if self.by_frequency else self.count // SEGMENT

    def segments_call(self) -> KernelCall:
        """Sums of whole segments of keys that are all one row's."""
        per_row = self.width // self.length
        extent = self.segments * per_row
        kernel = _Kernel("embedding_segments", self.target, extent, SORT_THREADS)
        lines, names = kernel.lines, kernel.names
        gradient = kernel.pointer("gradient_pointer", KernelArgument("operand", 0))
        keys = kernel.pointer("keys", KernelArgument("workspace", self.sorted_keys))
        sums = kernel.pointer("segment_sums", KernelArgument("workspace", 4), written=True)
        own = kernel.start("vector_number")
        segment, j, first, total, k = (
            names.fresh(name) for name in ("segment", "j", "first", "total", "k")
        )
        lines.add(f"{segment} = {own} // {per_row}", f"{j} = {own} % {per_row} * {self.length}")
        lines.add(f"{first} = {segment} * {SEGMENT}")
        row_of = f"load_i64({keys}, {{}}) // {_KEY}"
        same = f"{row_of.format(first)} == {row_of.format(f'{first} + {SEGMENT - 1}')}"
        with lines.block(f"if {same} and {row_of.format(first)} < {self.rows}:"):
            lines.add(f"{total} = vector.full({literal(0, self.wide)})")
            with lines.block(f"for {k} in range({first}, {first} + {SEGMENT}, {_AT_ONCE}):"):
                self._add(kernel, gradient, keys, k, j, total, _AT_ONCE)
            lines.add(f"vector.store_{self.wide}({sums}, {segment} * {self.width} + {j}, {total})")
        docstring = [f"Sums of the segments of {SEGMENT} of {self.count} keys that are one row's."]
        return kernel.call(docstring, f"vector = Vector({self.length})")

    def rows_call(self) -> KernelCall:
        """Each row of the table: keys up to a segment, whole segments, keys after them."""
        per_row = self.width // self.length
        extent = self.rows * per_row
        kernel = _Kernel("embedding_backward", self.target, extent, FLAT_THREADS)
        lines, names = kernel.lines, kernel.names
        gradient = kernel.pointer("gradient_pointer", KernelArgument("operand", 0))
        keys = kernel.pointer("keys", KernelArgument("workspace", self.sorted_keys))
        starts = kernel.pointer("starts", KernelArgument("workspace", 3))
        sums = ""
        if self.segments:
            sums = kernel.pointer("segment_sums", KernelArgument("workspace", 4))
        result = kernel.pointer("table_pointer", KernelArgument("result", 0), written=True)
        own = kernel.start("vector_number")
        row, j, first, last, total, k = (
            names.fresh(name) for name in ("row", "j", "first", "last", "total", "k")
        )
        lines.add(f"{row} = {own} // {per_row}", f"{j} = {own} % {per_row} * {self.length}")
        lines.add(f"{first} = load_i64({starts}, {row})", f"{last} = load_i64({starts}, {row} + 1)")
        lines.add(f"{total} = vector.full({literal(0, self.wide)})")
        step = self.result_strides[1]
        at = f"{row} * {self.result_strides[0]} + {j}" + (f" * {step}" if step != 1 else "")
        store = f"vector.store_{self.dtype}({result}, {at}, {total})"
        # Most rows of a table have no gradient: nothing may stand between them and their zeros.
        with lines.block(f"if {first} == {last}:"):
            lines.add(store, "return")
        head, tail = names.fresh("head"), names.fresh("tail")
        frequency = f"{REGISTER[self.wide]}({last} - {first})" if self.by_frequency else ""
        if self.segments:
            lines.add(f"{head} = min(({first} + {SEGMENT - 1}) & {-SEGMENT}, {last})")
            lines.add(f"{tail} = max({last} & {-SEGMENT}, {head})")
        else:
            lines.add(f"{head} = {last}", f"{tail} = {last}")
        with lines.block(f"for {k} in range({first}, {head}):"):
            self._add(kernel, gradient, keys, k, j, total, 1, frequency)
        if self.segments:
            with lines.block(f"for {k} in range({head} >> {_SHIFT}, {tail} >> {_SHIFT}):"):
                part = f"vector.load_{self.wide}({sums}, {k} * {self.width} + {j})"
                lines.add(f"{total} = add({total}, {part})")
            with lines.block(f"for {k} in range({tail}, {last}):"):
                self._add(kernel, gradient, keys, k, j, total, 1)
        lines.add(store)
        docstring = [
            f"{self.rows} rows of {self.width}, each the sum of its gradients.",
            "",
            described(self.op, "gradient", "ids", "table"),
        ]
        return kernel.call(docstring, f"vector = Vector({self.length})")

    def _add(
        self,
        kernel: _Kernel,
        gradient: str,
        keys: str,
        k: str,
        j: str,
        total: str,
        count: int,
        frequency: str = "",
    ) -> None:
        """Lines that add the gradients of `count` keys from k on, all loaded before the first."""
        lines, names = kernel.lines, kernel.names
        parts = []
        for offset in range(count):
            i, part = names.fresh("i"), names.fresh("part")
            lines.add(f"{i} = load_i64({keys}, {f'{k} + {offset}' if offset else k}) & {_KEY - 1}")
            index = Indexing(self.nest, i, j)
            index.declare(lines, names, ("gradient",))
            text = f"vector.load_{self.dtype}({gradient}, {index.at('gradient')})"
            lines.add(f"{part} = {f'div({text}, {frequency})' if frequency else text}")
            parts.append(part)
        lines.add(*(f"{total} = add({total}, {part})" for part in parts))
