"""Graphs for networkx: the view of an IR graph, built once, and cuts of flow networks.

    ("value", "x") -> ("op", 0) -> ("value", "y")        edges carry the value's bytes

Input: a Graph. Output: answers in terms of its ops (by place) and values. Invariant: the view is
never changed. Where one pass over `graph.ops` or a dict answers, that is faster than this view:
`Graph.users`, `Graph.producers`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import Any

import networkx

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Graph, Op, Value

Node = tuple[str, str | int]

# More than any sum of tensor sizes: an edge that no cut may take.
UNCUTTABLE = 1 << 62


def value_node(value: Value) -> Node:
    return ("value", value.name)


def op_node(place: int) -> Node:
    return ("op", place)


class Dag:
    """The dependencies of a graph's ops and values; ops are named by their place in the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.view: Any = networkx.DiGraph()
        self.view.add_nodes_from(value_node(value) for value in graph.values())
        for place, op in enumerate(graph.ops):
            self.view.add_node(op_node(place), opcode=op.opcode)
            for value in op.inputs:
                self.view.add_edge(value_node(value), op_node(place), bytes=value.type.bytes)
            for value in op.results:
                self.view.add_edge(op_node(place), value_node(value), bytes=value.type.bytes)

    @cached_property
    def places(self) -> dict[Value, int]:
        """The place of the op that defines each non-input value."""
        return {value: place for place, op in enumerate(self.graph.ops) for value in op.results}

    @cached_property
    def _ops_only(self) -> Any:
        """Op nodes alone: an edge where one op reads a result of another, bytes summed."""
        view: Any = networkx.DiGraph()
        view.add_nodes_from(range(len(self.graph.ops)))
        for place, op in enumerate(self.graph.ops):
            for value in dict.fromkeys(op.inputs):
                if (source := self.places.get(value)) is None:
                    continue
                known = view.get_edge_data(source, place, {"bytes": 0})["bytes"]
                view.add_edge(source, place, bytes=known + value.type.bytes)
        return view

    def users(self, value: Value) -> tuple[Op, ...]:
        """The ops that read the value, in order."""
        places = sorted(place for _, place in self.view.successors(value_node(value)))
        return tuple(self.graph.ops[place] for place in places)

    def generations(self) -> list[list[int]]:
        """Places of ops by depth: those of one generation do not depend on one another."""
        return [sorted(layer) for layer in networkx.topological_generations(self._ops_only)]

    def ancestors(self, places: Iterable[int]) -> set[int]:
        """The ops that any of these depends on, themselves left out unless others need them."""
        return {found for place in places for found in networkx.ancestors(self._ops_only, place)}

    def descendants(self, places: Iterable[int]) -> set[int]:
        """The ops that depend on any of these."""
        return {found for place in places for found in networkx.descendants(self._ops_only, place)}

    def reaches(self, first: int, last: int) -> bool:
        """Whether op `last` depends on op `first`."""
        return bool(networkx.has_path(self._ops_only, first, last)) and first != last

    def is_convex(self, places: Iterable[int]) -> bool:
        """Whether no path leaves the set and comes back, so that one op can stand for it."""
        members = set(places)
        left: set[int] = set()
        for place in sorted(members):
            left.update(user for user in self._ops_only.successors(place) if user not in members)
        stack, end = list(left), max(members, default=-1)
        while stack:
            for user in self._ops_only.successors(stack.pop()):
                if user in members:
                    return False
                if user not in left and user <= end:
                    left.add(user)
                    stack.append(user)
        return True

    def crossing_bytes(self, places: Iterable[int]) -> tuple[int, int]:
        """Bytes of the values that enter the set of ops and of those that leave it."""
        members = set(places)
        entering: dict[Value, None] = {}
        leaving: dict[Value, None] = {}
        outputs = self.graph.output_values()
        for place in sorted(members):
            op = self.graph.ops[place]
            entering |= {v: None for v in op.inputs if self.places.get(v, -1) not in members}
            for value in op.results:
                users = (user for _, user in self.view.successors(value_node(value)))
                if value in outputs or any(user not in members for user in users):
                    leaving[value] = None
        return (
            sum(value.type.bytes for value in entering),
            sum(value.type.bytes for value in leaving),
        )


def source_side(
    edges: Iterable[tuple[Hashable, Hashable, int]], source: Hashable, sink: Hashable
) -> set[Hashable]:
    """The nodes that a minimum cut leaves with the source; every other node is with the sink.

    Args:
        edges: (tail, head, capacity); edges between the same nodes add up.

    Of equal cuts it is the one nearest to the sink, which is unique whatever the flow behind it.
    Raises VerifyError where a path of uncuttable edges joins source and sink.
    """
    network: Any = networkx.DiGraph()
    network.add_nodes_from((source, sink))
    for tail, head, capacity in edges:
        known = network.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        network.add_edge(tail, head, capacity=known + capacity)
    # Of networkx's algorithms the one that grows least with the number of layers.
    flow = networkx.algorithms.flow.boykov_kolmogorov
    size, (left, _) = networkx.minimum_cut(network, source, sink, flow_func=flow)
    if size >= UNCUTTABLE:
        raise VerifyError(
            "the flow network has a path that may not be cut", hint="a fault of a pass"
        )
    return set(left)
