"""Where each value lies in memory: a view of a root value, computed without running anything.

A value produced by a launch is a root; results of view ops are other shapes and strides of the
same root. A reshape that no strides can express is refused here: the pass `materialise` has put a
copy in front of it.
"""

from __future__ import annotations

from typing import NamedTuple

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.strides import Strided, result_strides, row_major, view_strides


class Layout(NamedTuple):
    """Element (i0, i1, …) of a value lies at offset + sum(i * stride) elements into `root`."""

    root: Value
    view: Strided


def layouts(graph: Graph, inputs: dict[Value, Strided] | None = None) -> dict[Value, Layout]:
    """The layout of every value; `inputs` holds those of graph inputs that are not row-major."""
    given = inputs or {}
    table: dict[Value, Layout] = {}
    for port in graph.inputs:
        view = given.get(port.value) or row_major(port.value.type.shape)
        table[port.value] = Layout(port.value, view)
    for op in graph.ops:
        if not has(op, Tag.VIEW):
            for result, strides in zip(op.results, result_strides(op), strict=True):
                table[result] = Layout(result, Strided(result.type.shape, strides))
            continue
        base = table[op.inputs[0]]
        view_of_base = view_strides(op, base.view)
        if view_of_base is None:
            raise VerifyError(
                f"%{op.result.name} reshapes {op.inputs[0]}, which no strides can express",
                f"graph {graph.name}",
                "the pass materialise must copy the operand first",
            )
        table[op.result] = Layout(base.root, view_of_base)
    return table


def residual_layouts(forward: Graph) -> dict[str, Strided]:
    """How what forward saves lies in memory, by residual: backward reads it as it is."""
    table = layouts(forward)
    return {
        port.target: table[port.value].view
        for port in forward.outputs
        if port.role is Role.RESIDUAL
    }
