"""What a caller gets has memory of its own.

    %y = neg(%x)                                  %y = neg(%x)
    %head = slice(%y) [axis=0, stop=1, ...]       %head = slice(%y) [axis=0, stop=1, ...]
    output result "x" = %x                        %x.own, %head.own = copy(%x), copy(%head)
    output result "y" = %y                        output result "x" = %x.own
    output result "head" = %head                  output result "y" = %y
                                                  output result "head" = %head.own
A copy goes in front of results and gradients that are inputs, parts or broadcasts of a larger
value, or second names of another output; in front of updates that are inputs, which might change
first; and of parts that are saved. What backward saves may share memory with a result.
"""

from __future__ import annotations

from dataclasses import replace

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Port, Role, Value
from rudagraph.ir.ops import Tag, has


def own_outputs(graph: Graph) -> Graph:
    """The graph with copies in front of outputs that would share memory."""
    roots, turned = _roots(graph)
    inputs = {port.value for port in graph.inputs}
    taken: set[Value] = set()
    builder = GraphBuilder(graph.name)
    builder.inputs += graph.inputs
    builder.ops += graph.ops
    builder.reserve(value.name for value in graph.values())
    for port in graph.outputs:
        root = roots[port.value]
        if port.value in turned or _needs_copy(port, root, inputs, taken):
            copy = builder.one("copy", port.value, name=f"{port.value.name}.own")
            port, root = replace(port, value=copy), copy
        if port.role in (Role.RESULT, Role.GRADIENT):
            taken.add(root)
        builder.outputs.append(port)
    return graph if len(builder.ops) == len(graph.ops) else builder.finish()


def _needs_copy(port: Port, root: Value, inputs: set[Value], taken: set[Value]) -> bool:
    whole = port.value.type.bytes == root.type.bytes
    match port.role:
        case Role.RESIDUAL:
            return not whole
        case Role.UPDATE:
            return root in inputs
    return root in inputs or root in taken or not whole


def _roots(graph: Graph) -> tuple[dict[Value, Value], set[Value]]:
    """The value whose memory each value lies in, and those that PyTorch has no strides for."""
    roots = {port.value: port.value for port in graph.inputs}
    turned: set[Value] = set()
    for op in graph.ops:
        is_view = has(op, Tag.VIEW)
        for result in op.results:
            roots[result] = roots[op.inputs[0]] if is_view else result
        if op.opcode == "flip" or (is_view and op.inputs[0] in turned):
            turned.add(op.results[0])
    return roots, turned
