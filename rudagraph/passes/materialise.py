"""Copies where memory must be row-major or of its own.

    %t = permute(%x) [axes=[1, 0]]            %t = permute(%x) [axes=[1, 0]]
    %f = reshape(%t) [shape=[6]]              %t.dense = copy(%t)
    output result "out" = %x                  %f = reshape(%t.dense) [shape=[6]]
                                              %x.own = copy(%x)
                                              output result "out" = %x.own
A copy goes in front of a reshape that no strides can express, of product and library operands that
the library would copy each time, and of outputs that are inputs, parts of a larger value, or share
memory with another output. What backward saves may share memory with a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Op, Operand, Port, Role, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.strides import Strided, result_strides, row_major, view_strides

Strides = Mapping[Value, Strided]


def materialise(graph: Graph, inputs: Strides | None = None) -> Graph:
    """`inputs` holds the layout of graph inputs that are not row-major."""
    writer = _Writer(graph, inputs or {})
    for op in graph.ops:
        writer.write(op)
    for port in graph.outputs:
        writer.output(port)
    if not writer.copies:
        return graph
    return writer.builder.finish()


class _Writer:
    """Rewrites the graph in order, knowing where every value lies."""

    def __init__(self, graph: Graph, inputs: Strides) -> None:
        self.builder = GraphBuilder(graph.name)
        self.builder.inputs += graph.inputs
        self.builder.reserve(value.name for value in graph.values())
        self.layouts: dict[Value, Strided] = {}
        self.roots: dict[Value, Value] = {}
        self.copies: dict[Value, Value] = {}
        self.views: dict[Value, Op] = {}
        self.turned: dict[tuple[Value, Value], Value] = {}  # (matrix, its transpose) -> the view
        self.inputs = {port.value for port in graph.inputs}
        self.owned: set[Value] = set()  # roots that an output has taken
        for port in graph.inputs:
            view = inputs.get(port.value) or row_major(port.value.type.shape)
            self._place(port.value, port.value, view)

    def write(self, op: Op) -> None:
        if has(op, Tag.VIEW):
            self._view(op)
            return
        if has(op, Tag.MATMUL | Tag.LIBRARY | Tag.GATHER | Tag.SCATTER):
            wanted = tuple(self._readable(op, operand) for operand in op.operands)
            op = op if wanted == op.operands else replace(op, operands=wanted)
        self.builder.add(op)
        for result, strides in zip(op.results, result_strides(op), strict=True):
            self._place(result, result, Strided(result.type.shape, strides))

    def output(self, port: Port) -> None:
        if self._must_own(port):
            value = self._copy(port.value, "own", again=True)
            port = replace(port, value=value)
        if port.role is not Role.RESIDUAL:
            self.owned.add(self.roots[port.value])
        self.builder.outputs.append(port)

    def _view(self, op: Op) -> None:
        base = op.inputs[0]
        view = view_strides(op, self.layouts[base])
        if view is None:
            base = self._copy(base, "dense")
            op = replace(op, operands=(base,))
            view = view_strides(op, self.layouts[base])
            assert view is not None
        self.builder.add(op)
        self.views[op.result] = op
        self._place(op.result, self.roots[base], view)

    def _place(self, value: Value, root: Value, view: Strided) -> None:
        self.roots[value] = root
        self.layouts[value] = view

    def _copy(self, value: Value, suffix: str, *, again: bool = False) -> Value:
        """A row-major copy; the same one for every reader unless each needs its own."""
        if value in self.copies and not again:
            return self.copies[value]
        copy = self.builder.one("copy", value, name=f"{value.name}.{suffix}")
        self.copies[value] = copy
        self._place(copy, copy, row_major(copy.type.shape))
        return copy

    def _readable(self, op: Op, operand: Operand) -> Operand:
        if not isinstance(operand, Value):
            return operand
        layout = self.layouts[operand]
        if not has(op, Tag.MATMUL):
            return operand if _fits_library(op, layout) else self._copy(operand, "dense")
        return operand if _fits_product(layout) else self._matrix(operand)

    def _matrix(self, value: Value) -> Value:
        """A copy that products read in place; both sides of a transpose share one."""
        view = self.views.get(value)
        if view is None or not _swaps_matrix(view):
            return self._copy(value, "dense")
        base = view.inputs[0]
        base = base if _fits_product(self.layouts[base]) else self._matrix(base)
        if (base, value) not in self.turned:
            name = f"{value.name}.turned"
            turned = self.builder.one("permute", base, name=name, **dict(view.attributes))
            strides = view_strides(view, self.layouts[base])
            assert strides is not None
            self._place(turned, self.roots[base], strides)
            self.turned[base, value] = turned
        return self.turned[base, value]

    def _must_own(self, port: Port) -> bool:
        root, value = self.roots[port.value], port.value
        if port.role is Role.RESIDUAL:
            return value != root and value.type.bytes < root.type.bytes
        if port.role is Role.UPDATE:
            # Written back at the end: only another input's memory could change before that.
            return root in self.inputs
        return (
            root in self.inputs
            or root in self.owned
            or value.type.bytes != root.type.bytes
            or 0 in _live_strides(self.layouts[value])
        )


def _swaps_matrix(op: Op) -> bool:
    """Whether the view transposes the last two axes and nothing else."""
    rank = op.result.type.rank
    return op.opcode == "permute" and op["axes"] == (*range(rank - 2), rank - 1, rank - 2)


def _live_strides(layout: Strided) -> list[int]:
    """Strides of the axes that have more than one element."""
    pairs = zip(layout.shape, layout.strides, strict=True)
    return [stride for extent, stride in pairs if extent > 1]


def _fits_product(layout: Strided) -> bool:
    """Whether a matrix library reads the operand in place.

    One of the last two axes is dense and the other at least as far as its length; axes before are
    one batch axis, so they must be mergeable.
    """
    shape, strides = layout.shape, layout.strides
    if 0 in shape or len(shape) < 2:
        return True
    rows, columns = shape[-2:]
    row_step, column_step = strides[-2:]
    matrix = _leading(columns, column_step, rows, row_step) or _leading(
        rows, row_step, columns, column_step
    )
    return matrix and _mergeable(shape[:-2], strides[:-2])


def _leading(inner: int, inner_step: int, outer: int, outer_step: int) -> bool:
    dense = inner == 1 or inner_step == 1
    return dense and (outer == 1 or outer_step >= max(inner, 1))


def _mergeable(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    axes = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    return all(
        step == inner_n * inner_step
        for (_, step), (inner_n, inner_step) in itertools.pairwise(axes)
    )


def _fits_library(op: Op, layout: Strided) -> bool:
    """Gathers and scatters index rows; other library ops take strides as PyTorch does."""
    if not has(op, Tag.GATHER | Tag.SCATTER):
        return True
    return layout == row_major(layout.shape) or layout.strides == row_major(layout.shape).strides
