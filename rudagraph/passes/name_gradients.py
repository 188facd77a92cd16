"""The value that an output of backward hands out is called after what it is the gradient of.

    %grad.t.mm = matmul(%turned, %x)             %grad.fc.weight = matmul(%turned, %x)
    output gradient "fc.weight" = %grad.t.mm     output gradient "fc.weight" = %grad.fc.weight
Rewriting leaves such values the names of what they were made from. Nothing else changes, and a
name that another value has stays with it.
"""

from __future__ import annotations

from dataclasses import replace

from rudagraph.ir.builder import cleaned
from rudagraph.ir.graph import Graph, Op, Role, Value


def name_gradients(graph: Graph) -> Graph:
    """The graph with its gradients called `grad.<target>`."""
    given = {port.value for port in graph.inputs}
    others = {port.value for port in graph.outputs if port.role is not Role.GRADIENT}
    taken = {value.name for value in graph.values()}
    renamed: dict[Value, Value] = {}
    for port in graph.outputs:
        value = port.value
        name = cleaned(f"grad.{port.target.removeprefix('argument:')}")
        fixed = value in given or value in others or value in renamed
        if port.role is Role.GRADIENT and not fixed and name not in taken:
            taken.add(name)
            renamed[value] = Value(name, value.type)
    if not renamed:
        return graph
    ops = tuple(_renamed(op, renamed) for op in graph.ops)
    outputs = tuple(
        replace(port, value=renamed.get(port.value, port.value)) for port in graph.outputs
    )
    return replace(graph, ops=ops, outputs=outputs)


def _renamed(op: Op, renamed: dict[Value, Value]) -> Op:
    op = op.reading(renamed)
    if renamed.keys().isdisjoint(op.results):
        return op
    return replace(op, results=tuple(renamed.get(value, value) for value in op.results))
