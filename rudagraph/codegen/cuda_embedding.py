"""Embedding and its derivative on CUDA: rows gathered, and rows added in order of index.

    embedding            each thread copies a vector of y[i] = weight[ids[i]]
    embedding_backward   1. key = id << 32 | i: unique, and in the order wanted
                         2. each chunk of keys sorted by counting the smaller ones
                         3. chunks merged: a key's place is the number of smaller keys in each
                         4. where each row's keys start
                         5. rows without a key are zeroed: most of a table
                         6. segments of keys that are all one row's are summed: a frequent id's
                            row is then not what all wait for
                         7. the threads of each row's first key add its gradients, in f32

Input: the op and strides. Output: Lowered with an error flag. Invariant: no atomics, so the bits of
a sum depend on the ids alone; an id outside the table is reported and touches no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from rudagraph.codegen.cuda_keys import (
    KEY,
    IndexKernel,
    keys_call,
    merge_call,
    sort_call,
    starts_call,
)
from rudagraph.codegen.cuda_launch import (
    FLAT_THREADS,
    SEGMENT,
    SORT_CHUNK,
    SORT_THREADS,
    vector_length,
)
from rudagraph.codegen.domain import build_nest
from rudagraph.codegen.embedding import described
from rudagraph.codegen.expressions import REGISTER, literal
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.memory import aligned
from rudagraph.codegen.scalars import int_of
from rudagraph.ir.graph import Op
from rudagraph.schedule.lowered import KernelArgument, KernelCall, Lowered, Strides

_SHIFT = SEGMENT.bit_length() - 1
# Gradients that a thread loads before it adds them: they lie far apart.
_AT_ONCE = 8
# The same where registers decide how many rows are under way.
_LATER = 4
# Vectors of zeros that a thread stores: with one, 33 million threads load where their row starts.
_ZEROS = 4


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
    kernel = IndexKernel("embedding", target, nest.elements // length, FLAT_THREADS)
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
        calls = [starts_call(0, rows, 0, target)]
        last = 0
    else:
        calls = [keys_call(op, ids_strides, target), sort_call(count, target)]
        last = 1
        if count > SORT_CHUNK:
            calls.append(merge_call(count, target))
            last = 2
        calls.append(starts_call(count, rows, last, target))
    adding = _Adding(op, gradient_strides, result_strides[0], last, target, sum(offsets[:1]))
    bytes_of_keys = aligned(8 * max(count, 1))
    workspaces = [bytes_of_keys] * 3 + [aligned(8 * (rows + 1))]
    calls.append(adding.zeros_call())
    if adding.segments:
        calls.append(adding.segments_call())
        workspaces.append(adding.segments * adding.width * adding.wide.size)
    if count:
        calls.append(adding.rows_call())
    return Lowered(tuple(calls), tuple(workspaces), errors=1 if count else 0)


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
        kernel = IndexKernel("embedding_segments", self.target, extent, SORT_THREADS)
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
        row_of = f"load_i64({keys}, {{}}) // {KEY}"
        same = f"{row_of.format(first)} == {row_of.format(f'{first} + {SEGMENT - 1}')}"
        with lines.block(f"if {same} and {row_of.format(first)} < {self.rows}:"):
            lines.add(f"{total} = vector.full({literal(0, self.wide)})")
            with lines.block(f"for {k} in range({first}, {first} + {SEGMENT}, {_AT_ONCE}):"):
                parts = self._load(kernel, gradient, keys, k, j, _AT_ONCE)
                lines.add(*(f"{total} = add({total}, {part})" for part in parts))
            lines.add(f"vector.store_{self.wide}({sums}, {segment} * {self.width} + {j}, {total})")
        docstring = [f"Sums of the segments of {SEGMENT} of {self.count} keys that are one row's."]
        return kernel.call(docstring, f"vector = Vector({self.length})")

    def zeros_call(self) -> KernelCall:
        """Rows of the table that no key is of."""
        per_row = self.width // self.length
        threads = min(1 << (max(-(-per_row // _ZEROS) - 1, 0)).bit_length(), FLAT_THREADS)
        turns = -(-per_row // threads)
        kernel = IndexKernel("embedding_zeros", self.target, self.rows * threads, FLAT_THREADS)
        lines, names = kernel.lines, kernel.names
        starts = kernel.pointer("starts", KernelArgument("workspace", 3))
        result = kernel.pointer("table_pointer", KernelArgument("result", 0), written=True)
        own = kernel.start("thread")
        row, lane, zero = (names.fresh(name) for name in ("row", "lane", "zero"))
        lines.add(f"{row} = {own} // {threads}", f"{lane} = {own} % {threads}")
        with lines.block(f"if load_i64({starts}, {row}) != load_i64({starts}, {row} + 1):"):
            lines.add("return")
        lines.add(f"{zero} = vector.pack_{self.dtype}(vector.full({literal(0, self.wide)}))")
        for turn in range(turns):
            j = f"({lane} + {turn * threads}) * {self.length}"
            store = f"{self._store_words}({result}, {self._at(row, j)}, {zero})"
            if (turn + 1) * threads <= per_row:
                lines.add(store)
                continue
            with lines.block(f"if {lane} < {per_row - turn * threads}:"):
                lines.add(store)
        docstring = [f"Zeros in those of {self.rows} rows of {self.width} that have no gradient."]
        return kernel.call(docstring, f"vector = Vector({self.length})")

    def rows_call(self) -> KernelCall:
        """Each row with a key: keys up to a segment, whole segments, keys after them."""
        per_row = self.width // self.length
        kernel = IndexKernel("embedding_backward", self.target, self.count * per_row, FLAT_THREADS)
        lines, names = kernel.lines, kernel.names
        gradient = kernel.pointer("gradient_pointer", KernelArgument("operand", 0))
        keys = kernel.pointer("keys", KernelArgument("workspace", self.sorted_keys))
        starts = kernel.pointer("starts", KernelArgument("workspace", 3))
        sums = ""
        if self.segments:
            sums = kernel.pointer("segment_sums", KernelArgument("workspace", 4))
        result = kernel.pointer("table_pointer", KernelArgument("result", 0), written=True)
        own = kernel.start("vector_number")
        first, j, before, row, last, total, k = (
            names.fresh(name) for name in ("first", "j", "before", "row", "last", "total", "k")
        )
        lines.add(f"{first} = {own} // {per_row}", f"{j} = {own} % {per_row} * {self.length}")
        lines.add(f"{before} = load_i64({keys}, max({first} - 1, 0)) // {KEY}")
        lines.add(f"{row} = load_i64({keys}, {first}) // {KEY}")
        with lines.block(f"if {row} >= {self.rows} or ({first} > 0 and {before} == {row}):"):
            lines.add("return")
        lines.add(f"{last} = load_i64({starts}, {row} + 1)")
        head, tail = names.fresh("head"), names.fresh("tail")
        frequency = f"{REGISTER[self.wide]}({last} - {first})" if self.by_frequency else ""
        # Most rows have one gradient: it is loaded before the row's end is known.
        (single,) = self._load(kernel, gradient, keys, first, j, 1, frequency)
        zero = literal(0, self.wide)
        if self.segments:
            lines.add(f"{head} = min(({first} + {SEGMENT - 1}) & {-SEGMENT}, {last})")
            lines.add(f"{tail} = max({last} & {-SEGMENT}, {head})")
            single = f"where({head} > {first}, {single}, {zero})"
        else:
            lines.add(f"{head} = {last}")
        lines.add(f"{total} = add(vector.full({zero}), {single})")
        rest = (k, f"{first} + 1", head)
        self._add_all(kernel, gradient, keys, rest, j, total, frequency)
        if self.segments:
            self._add_segments(kernel, sums, k, (head, tail), j, total)
            self._add_all(kernel, gradient, keys, (k, tail, last), j, total, "")
        lines.add(f"{self._store}({result}, {self._at(row, j)}, {total})")
        docstring = [
            f"Rows of {self.width}, each the sum of its gradients.",
            "",
            described(self.op, "gradient", "ids", "table"),
        ]
        return kernel.call(docstring, f"vector = Vector({self.length})")

    @property
    def _store(self) -> str:
        return f"vector.store_{self.dtype}"

    @property
    def _store_words(self) -> str:
        return f"vector.store_words_{self.dtype}"

    def _at(self, row: str, j: str) -> str:
        step = self.result_strides[1]
        return f"{row} * {self.result_strides[0]} + {j}" + (f" * {step}" if step != 1 else "")

    def _add_segments(
        self, kernel: IndexKernel, sums: str, k: str, span: tuple[str, str], j: str, total: str
    ) -> None:
        """Lines that add the sums of whole segments of keys, several loaded at once."""
        lines, names = kernel.lines, kernel.names
        first, last = (f"({end} >> {_SHIFT})" for end in span)
        parts = [names.fresh("part") for _ in range(_LATER)]
        with lines.block(f"for {k} in range({first}, {last}, {_LATER}):"):
            for offset, part in enumerate(parts):
                at = f"min({k} + {offset}, {last} - 1)"
                lines.add(f"{part} = vector.load_{self.wide}({sums}, {at} * {self.width} + {j})")
            self._add_those(kernel, k, parts, last, total)

    def _add_all(
        self,
        kernel: IndexKernel,
        gradient: str,
        keys: str,
        span: tuple[str, str, str],
        j: str,
        total: str,
        frequency: str,
    ) -> None:
        """Lines that add the gradients of keys, several loaded at once and none counted twice."""
        k, first, last = span
        with kernel.lines.block(f"for {k} in range({first}, {last}, {_LATER}):"):
            parts = self._load(kernel, gradient, keys, k, j, _LATER, frequency, last)
            self._add_those(kernel, k, parts, last, total)

    def _add_those(
        self, kernel: IndexKernel, k: str, parts: list[str], last: str, total: str
    ) -> None:
        """Add the parts that there are; a sum that began with 0 stays as it is when 0 is added."""
        zero = literal(0, self.wide)
        for offset, part in enumerate(parts):
            counted = f"where({k} + {offset} < {last}, {part}, {zero})" if offset else part
            kernel.lines.add(f"{total} = add({total}, {counted})")

    def _load(
        self,
        kernel: IndexKernel,
        gradient: str,
        keys: str,
        k: str,
        j: str,
        count: int,
        frequency: str = "",
        last: str = "",
    ) -> list[str]:
        """Lines that load the gradients of `count` keys from k on; behind `last` the last again."""
        lines, names = kernel.lines, kernel.names
        parts = []
        for offset in range(count):
            i, part = names.fresh("i"), names.fresh("part")
            at = f"{k} + {offset}" if offset else k
            at = f"min({at}, {last} - 1)" if offset and last else at
            lines.add(f"{i} = load_i64({keys}, {at}) & {KEY - 1}")
            index = Indexing(self.nest, i, j)
            index.declare(lines, names, ("gradient",))
            text = f"vector.load_{self.dtype}({gradient}, {index.at('gradient')})"
            lines.add(f"{part} = {f'div({text}, {frequency})' if frequency else text}")
            parts.append(part)
        return parts
