"""Embedding and its derivative as kernels: rows gathered, and rows added in order of index.

    embedding            y[i] = weight[ids[i]]
    embedding_backward   1. ids are sorted by counting, stable, on one thread: O(rows + ids)
                         2. each row of the table adds its gradients in order of i, in f32

Input: the op and strides. Output: Lowered with an error flag. Invariant: no atomics, so the bits of
a sum depend on the ids alone; an id outside the table is reported and touches no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rudagraph.codegen.domain import Nest, build_nest
from rudagraph.codegen.expressions import REGISTER, RESERVED, literal
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.launch import cut
from rudagraph.codegen.memory import Scratch, aligned
from rudagraph.codegen.scalars import int_of
from rudagraph.codegen.source import Lines, Names, Parameters, kernel_call
from rudagraph.ir.graph import Location, Op, Value
from rudagraph.ir.text import print_op
from rudagraph.schedule.lowered import KernelArgument, KernelCall, Lowered, Strides

# Elements are copied as integers of their size, so that no NaN changes.
_BITS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
_COPY_COST, _ADD_COST = 4.0, 8.0  # in additions, for launch.cut


@dataclass
class _Kernel:
    """What both kernels share: names, pointers, the loop over ids."""

    lines: Lines = field(default_factory=lambda: Lines(depth=1))
    names: Names = field(default_factory=lambda: Names(RESERVED))
    parameters: Parameters = field(default_factory=Parameters)

    def pointer(self, hint: str, argument: KernelArgument, *, written: bool = False) -> str:
        return self.parameters.add(self.names.fresh(hint), argument, written=written)

    def report(self, error: str, number: str) -> None:
        """Set the flag; its index is there before it."""
        self.lines.add(f"store_i64({error}, 1, {number})", f"store_i64({error}, 0, 1)")


def lower_embedding(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    shared: tuple[tuple[int, int], ...],
) -> Lowered:
    """Rows of a table at ids."""
    weight, ids = op.inputs
    weight_strides, ids_strides = operand_strides
    assert weight_strides is not None and ids_strides is not None
    rows, width = weight.type.shape
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
    kernel = _Kernel()
    lines, bits = kernel.lines, _BITS[weight.type.dtype.size]
    weight_pointer = kernel.pointer("weight_pointer", KernelArgument("operand", 0))
    ids_pointer = kernel.pointer("ids_pointer", KernelArgument("operand", 1))
    y_pointer = kernel.pointer("y_pointer", KernelArgument("result", 0), written=True)
    error = kernel.pointer("error", KernelArgument("error", 0), written=True)
    row, number, j = (kernel.names.fresh(name) for name in ("row", "number", "j"))
    index = Indexing(nest, row, j)
    cutting = cut(nest, _COPY_COST)
    with lines.block(f"for {row} in range(begin, end):"):
        index.declare(lines, kernel.names, ("ids", "y"))
        lines.add(f"{number} = int64(load_{ids.type.dtype}({ids_pointer}, {index.at('ids')}))")
        with lines.block(f"if {number} < 0 or {number} >= {rows}:"):
            kernel.report(error, number)
            with lines.block(f"for {j} in range({width}):"):
                lines.add(f"store_{bits}({y_pointer}, {index.at('y')}, int{bits[1:]}(0))")
        with lines.block("else:"):
            first = f"{number} * {weight_strides[0]}"
            with lines.block(f"for {j} in range({width}):"):
                element = f"load_{bits}({weight_pointer}, {first} + {index.at('weight')})"
                lines.add(f"store_{bits}({y_pointer}, {index.at('y')}, {element})")
    docstring = [f"{nest.rows} rows of {width}.", "", described(op, "weight", "ids", "y")]
    call = kernel_call("embedding", docstring, lines, kernel.parameters, nest.rows, cutting.blocks)
    return Lowered((call,), errors=1)


def lower_embedding_backward(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    shared: tuple[tuple[int, int], ...],
) -> Lowered:
    """Sums of gradient rows by id."""
    ids = op.inputs[1]
    gradient_strides, ids_strides = operand_strides
    assert gradient_strides is not None and ids_strides is not None
    rows = int_of(op, "rows")
    if not op.result.type.numel:
        return Lowered(())
    sorting = _sort_call(op, ids_strides)
    adding, scratch = _add_call(op, gradient_strides)
    starts, order = aligned(4 * rows), aligned(4 * max(ids.type.numel, 1))
    workspaces = (starts, order, scratch) if scratch else (starts, order)
    return Lowered((sorting, adding), workspaces, errors=1)


def _sort_call(op: Op, strides: Strides) -> KernelCall:
    """After it, the indices of the ids equal to r are order[starts[r - 1] : starts[r]]."""
    _, ids = op.inputs
    rows, padding = int_of(op, "rows"), op.get("padding_index", -1)
    kernel = _Kernel()
    lines = kernel.lines
    ids_pointer = kernel.pointer("ids_pointer", KernelArgument("operand", 1))
    starts = kernel.pointer("starts", KernelArgument("workspace", 0), written=True)
    order = kernel.pointer("order", KernelArgument("workspace", 1), written=True)
    error = kernel.pointer("error", KernelArgument("error", 0), written=True)
    i, number, total, count = (kernel.names.fresh(n) for n in ("i", "number", "total", "count"))
    nest = build_nest(
        (*ids.type.shape, 1), {"ids": ((*ids.type.shape, 1), (*strides, 0))}, rows=True
    )

    def over_ids() -> None:
        index = Indexing(nest, i, "0")
        index.declare(lines, kernel.names, ("ids",))
        lines.add(f"{number} = int64(load_{ids.type.dtype}({ids_pointer}, {index.at('ids')}))")

    is_row = f"{number} >= 0 and {number} < {rows}"
    is_counted = is_row if padding == -1 else f"{is_row} and {number} != {padding}"
    with lines.block(f"for {i} in range({rows}):"):
        lines.add(f"store_i32({starts}, {i}, int32(0))")
    with lines.block(f"for {i} in range({ids.type.numel}):"):
        over_ids()
        with lines.block(f"if {is_counted}:"):
            lines.add(f"store_i32({starts}, {number}, add(load_i32({starts}, {number}), int32(1)))")
        with lines.block(f"if {number} < 0 or {number} >= {rows}:"):
            kernel.report(error, number)
    lines.add(f"{total} = int32(0)")
    with lines.block(f"for {i} in range({rows}):"):
        lines.add(f"{count} = load_i32({starts}, {i})")
        lines.add(f"store_i32({starts}, {i}, {total})", f"{total} = add({total}, {count})")
    place = kernel.names.fresh("place")
    with lines.block(f"for {i} in range({ids.type.numel}):"):
        over_ids()
        with lines.block(f"if {is_counted}:"):
            lines.add(f"{place} = load_i32({starts}, {number})")
            lines.add(f"store_i32({order}, {place}, int32({i}))")
            lines.add(f"store_i32({starts}, {number}, add({place}, int32(1)))")
    docstring = [
        f"Sorts {ids.type.numel} ids by counting; equal ones stay in order.",
        "",
        "`order` gets their places. `starts` has how many ids a row has, then where they begin in",
        "`order`; filling that moves it on to where they end, which is where the next row's begin.",
    ]
    return kernel_call("sort_ids", docstring, lines, kernel.parameters, 1, 1)


def _add_call(op: Op, strides: Strides) -> tuple[KernelCall, int]:
    """The kernel that adds each row's gradients, and the bytes of its scratch rows."""
    gradient = op.inputs[0]
    rows, width = op.result.type.shape
    dtype, wide = gradient.type.dtype, gradient.type.dtype.compute
    kernel = _Kernel()
    lines = kernel.lines
    gradient_pointer = kernel.pointer("gradient_pointer", KernelArgument("operand", 0))
    starts = kernel.pointer("starts", KernelArgument("workspace", 0))
    order = kernel.pointer("order", KernelArgument("workspace", 1))
    result = kernel.pointer("table_pointer", KernelArgument("result", 0), written=True)
    row, first, last, k, i, j, sums = (
        kernel.names.fresh(name) for name in ("row", "first", "last", "k", "i", "j", "sums")
    )
    nest = build_nest(gradient.type.shape, {"gradient": (gradient.type.shape, strides)}, rows=True)
    index = Indexing(nest, i, j)
    cutting = cut(Nest((rows,), width, {}), _ADD_COST)
    scratch = Scratch(2)
    if dtype is not wide:
        scratch.add(sums, width * wide.size)
        scratch.declare(lines, kernel.names, kernel.parameters)
    with lines.block(f"for {row} in range(begin, end):"):
        if dtype is wide:
            lines.add(f"{sums} = advance({result}, {row} * {width * dtype.size})")
        lines.add(f"{first} = int64(0)")
        with lines.block(f"if {row} > 0:"):
            lines.add(f"{first} = int64(load_i32({starts}, {row} - 1))")
        lines.add(f"{last} = int64(load_i32({starts}, {row}))")
        with lines.block(f"for {j} in range({width}):"):
            lines.add(f"store_{wide}({sums}, {j}, {literal(0, wide)})")
        with lines.block(f"for {k} in range({first}, {last}):"):
            lines.add(f"{i} = int64(load_i32({order}, {k}))")
            index.declare(lines, kernel.names, ("gradient",))
            element = f"load_{dtype}({gradient_pointer}, {index.at('gradient')})"
            if op.get("scale_by_frequency", False):
                element = f"div({element}, {REGISTER[wide]}({last} - {first}))"
            with lines.block(f"for {j} in range({width}):"):
                lines.add(f"store_{wide}({sums}, {j}, add(load_{wide}({sums}, {j}), {element}))")
        if dtype is not wide:
            with lines.block(f"for {j} in range({width}):"):
                at = f"{row} * {width} + {j}"
                lines.add(f"store_{dtype}({result}, {at}, load_{wide}({sums}, {j}))")
    docstring = [
        f"{rows} rows of {width}, each the sum of its gradients, in the order of the batch.",
        "`order` has the places of a row's ids, up to `starts` of the row; sort_ids has left them.",
        "",
        described(op, "gradient", "ids", "table"),
    ]
    call = kernel_call(
        "embedding_backward", docstring, lines, kernel.parameters, rows, cutting.blocks
    )
    return call, scratch.block_bytes * cutting.blocks


def described(op: Op, *names: str) -> str:
    """The op under names of its own, so that equal tables share a kernel."""
    *operands, result = (
        Value(name, value.type) for name, value in zip(names, (*op.inputs, op.result), strict=True)
    )
    named = replace(op, operands=tuple(operands), results=(result,), location=Location())
    return print_op(named)
