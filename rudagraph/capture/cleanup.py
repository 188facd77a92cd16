"""Remove ops and constant inputs that nothing reads."""

from __future__ import annotations

from dataclasses import replace

from rudagraph.ir.graph import Graph, Op, Role, Value


def remove_dead(graph: Graph) -> Graph:
    """The graph without ops none of whose results is used; inputs other than constants stay."""
    needed: set[Value] = set(graph.output_values())
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if any(value in needed for value in op.results):
            kept.append(op)
            needed.update(op.inputs)
    inputs = tuple(
        port for port in graph.inputs if port.role is not Role.CONSTANT or port.value in needed
    )
    return replace(graph, inputs=inputs, ops=tuple(reversed(kept)))
