"""Minimum cut of a flow network: Dinic's algorithm on integer capacities.

Input: edges (tail, head, capacity), a source and a sink. Output: the nodes on the source's side of
the minimum cut that lies nearest to the sink. Invariant: the same edges in the same order give the
same cut. Networks here are long and thin, where this is far faster than a general library.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import TypeVar

from rudagraph.errors import VerifyError

Node = TypeVar("Node", bound=Hashable)

# More than any sum of tensor sizes: an edge that no cut may take.
UNCUTTABLE = 1 << 62


def source_side(edges: Iterable[tuple[Node, Node, int]], source: Node, sink: Node) -> set[Hashable]:
    """The nodes that a minimum cut leaves with the source; every other node is with the sink."""
    network = _Network(source, sink)
    for tail, head, capacity in edges:
        network.connect(tail, head, capacity)
    if network.saturate() >= UNCUTTABLE:
        raise VerifyError(
            "the flow network has a path that may not be cut", hint="a fault of a pass"
        )
    with_sink = network.reaching_sink()
    return {node for node, number in network.numbers.items() if number not in with_sink}


class _Network:
    """Arcs in pairs: arc i and its reverse i ^ 1; `room` is what an arc can still carry."""

    def __init__(self, source: Hashable, sink: Hashable) -> None:
        self.numbers: dict[Hashable, int] = {source: 0, sink: 1}
        self.leaving: list[list[int]] = [[], []]
        self.head: list[int] = []
        self.room: list[int] = []

    def number(self, node: Hashable) -> int:
        if node not in self.numbers:
            self.numbers[node] = len(self.leaving)
            self.leaving.append([])
        return self.numbers[node]

    def connect(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        start, end = self.number(tail), self.number(head)
        self.leaving[start].append(len(self.head))
        self.leaving[end].append(len(self.head) + 1)
        self.head += [end, start]
        self.room += [capacity, 0]

    def saturate(self) -> int:
        """Push all the flow there is; return how much."""
        total = 0
        while True:
            depth = self._depths()
            if depth[1] < 0:
                return total
            cursor = [0] * len(self.leaving)
            while pushed := self._augment(depth, cursor):
                total += pushed
                if total >= UNCUTTABLE:
                    return total

    def _depths(self) -> list[int]:
        depth = [-1] * len(self.leaving)
        depth[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for arc in self.leaving[node]:
                if self.room[arc] and depth[self.head[arc]] < 0:
                    depth[self.head[arc]] = depth[node] + 1
                    queue.append(self.head[arc])
        return depth

    def _augment(self, depth: list[int], cursor: list[int]) -> int:
        """One path from source to sink along increasing depth, filled; 0 where there is none."""
        path: list[int] = []
        node = 0
        while node != 1:
            arc = self._next_arc(node, depth, cursor)
            if arc is None:
                if not path:
                    return 0
                node = self.head[path.pop() ^ 1]
                cursor[node] += 1
                continue
            path.append(arc)
            node = self.head[arc]
        amount = min(self.room[arc] for arc in path)
        for arc in path:
            self.room[arc] -= amount
            self.room[arc ^ 1] += amount
        return amount

    def _next_arc(self, node: int, depth: list[int], cursor: list[int]) -> int | None:
        leaving = self.leaving[node]
        while cursor[node] < len(leaving):
            arc = leaving[cursor[node]]
            if self.room[arc] and depth[self.head[arc]] == depth[node] + 1:
                return arc
            cursor[node] += 1
        return None

    def reaching_sink(self) -> set[int]:
        """Nodes from which more could still flow to the sink."""
        found, queue = {1}, deque([1])
        while queue:
            for arc in self.leaving[queue.popleft()]:
                tail = self.head[arc]
                if self.room[arc ^ 1] and tail not in found:
                    found.add(tail)
                    queue.append(tail)
        return found
