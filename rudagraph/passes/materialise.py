"""Copies where memory must be row-major.

    %t = permute(%x) [axes=[1, 0]]            %t = permute(%x) [axes=[1, 0]]
    %f = reshape(%t) [shape=[6]]              %t.dense = copy(%t)
                                              %f = reshape(%t.dense) [shape=[6]]
A copy goes in front of a reshape that no strides can express, and of product and gather operands
that the library would copy each time. Runs on the joint graph, where every layout is known: a copy
made for forward can be saved for backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Op, Operand, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.strides import Strided, result_strides, row_major, view_strides
from rudagraph.passes.kernel_shapes import domain_of

Strides = Mapping[Value, Strided]


def materialise(graph: Graph, inputs: Strides | None = None) -> Graph:
    """`inputs` holds the layout of graph inputs that are not row-major."""
    writer = _Writer(graph, inputs or {})
    for op in graph.ops:
        writer.write(op)
    if not writer.copies:
        return graph
    return writer.builder.finish()


class _Writer:
    """Rewrites the graph in order, knowing where every value lies."""

    def __init__(self, graph: Graph, inputs: Strides) -> None:
        self.builder = GraphBuilder(graph.name)
        self.builder.inputs += graph.inputs
        self.builder.outputs += graph.outputs
        self.builder.reserve(value.name for value in graph.values())
        self.layouts: dict[Value, Strided] = {}
        self.copies: dict[Value, Value] = {}
        self.views: dict[Value, Op] = {}
        self.turned: dict[tuple[Value, Value], Value] = {}  # (matrix, its transpose) -> the view
        for port in graph.inputs:
            view = inputs.get(port.value) or row_major(port.value.type.shape)
            self.layouts[port.value] = view

    def write(self, op: Op) -> None:
        if has(op, Tag.VIEW):
            self._view(op)
            return
        if domain_of(op) is None:
            wanted = tuple(self._readable(op, operand) for operand in op.operands)
            op = op if wanted == op.operands else op.with_operands(wanted)
        self.builder.add(op)
        for result, strides in zip(op.results, result_strides(op), strict=True):
            self.layouts[result] = Strided(result.type.shape, strides)

    def _view(self, op: Op) -> None:
        base = op.inputs[0]
        view = view_strides(op, self.layouts[base])
        if view is None:
            base = self._copy(base)
            op = op.with_operands((base,))
            view = view_strides(op, self.layouts[base])
            assert view is not None
        self.builder.add(op)
        self.views[op.result] = op
        self.layouts[op.result] = view

    def _copy(self, value: Value) -> Value:
        """A row-major copy, the same one for every reader."""
        if value in self.copies:
            return self.copies[value]
        copy = self.builder.one("copy", value, name=f"{value.name}.dense")
        self.copies[value] = copy
        self.layouts[copy] = row_major(copy.type.shape)
        return copy

    def _readable(self, op: Op, operand: Operand) -> Operand:
        if not isinstance(operand, Value):
            return operand
        layout = self.layouts[operand]
        if not has(op, Tag.MATMUL):
            return operand if _fits_library(op, layout) else self._copy(operand)
        return operand if _fits_product(layout) else self._matrix(operand)

    def _matrix(self, value: Value) -> Value:
        """A copy that products read in place; both sides of a transpose share one."""
        view = self.views.get(value)
        if view is None or not _swaps_matrix(view):
            return self._copy(value)
        base = view.inputs[0]
        base = base if _fits_product(self.layouts[base]) else self._matrix(base)
        if (base, value) not in self.turned:
            name = f"{value.name}.turned"
            turned = self.builder.one("permute", base, name=name, **dict(view.attributes))
            strides = view_strides(view, self.layouts[base])
            assert strides is not None
            self.layouts[turned] = strides
            self.turned[base, value] = turned
        return self.turned[base, value]


def _swaps_matrix(op: Op) -> bool:
    """Whether the view transposes the last two axes and nothing else."""
    rank = op.result.type.rank
    return op.opcode == "permute" and op["axes"] == (*range(rank - 2), rank - 1, rank - 2)


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
    """Gathers and scatters index rows; other library ops take strides as PyTorch has them."""
    if not has(op, Tag.GATHER | Tag.SCATTER):
        return all(stride >= 0 for stride in layout.strides)
    return layout == row_major(layout.shape) or layout.strides == row_major(layout.shape).strides
