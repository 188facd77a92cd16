"""A topological order that keeps the peak of live bytes low.

Capture's own order is good in forward (values are used soon) and in most of backward. A greedy
list scheduler can do better where independent gradients wait for each other:

    ready ops -> the one that leaves fewest live bytes (what it makes minus what it frees last)
                 ties: the op that came first in the given order

Both orders are measured with the same formula and the better one is taken, the given one on a tie:
so scheduling never makes a step larger, and the result depends on the graph alone.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from rudagraph.ir.graph import Graph, Op, Value
from rudagraph.ir.ops import Tag, has


def order(graph: Graph) -> Graph:
    """The graph with its ops in an order of low peak; the same object where none is better."""
    roots = _roots(graph)
    greedy = replace(graph, ops=_greedy(graph, roots))
    return greedy if _peak(greedy, roots) < _peak(graph, roots) else graph


def _roots(graph: Graph) -> dict[Value, Value]:
    """The value whose memory each value lies in."""
    table = {port.value: port.value for port in graph.inputs}
    for op in graph.ops:
        for result in op.results:
            table[result] = table[op.inputs[0]] if has(op, Tag.VIEW) else result
    return table


def _own_bytes(op: Op) -> int:
    return 0 if has(op, Tag.VIEW) else sum(result.type.bytes for result in op.results)


def _peak(graph: Graph, roots: dict[Value, Value]) -> int:
    last: dict[Value, int] = {}
    for position, op in enumerate(graph.ops):
        for value in (*op.inputs, *op.results):
            last[roots[value]] = position
    kept = {roots[port.value] for port in graph.outputs}
    inputs = {port.value for port in graph.inputs}
    live = peak = 0
    freed: list[list[Value]] = [[] for _ in graph.ops]
    for root, position in last.items():
        if root not in kept and root not in inputs:
            freed[position].append(root)
    for op, dying in zip(graph.ops, freed, strict=True):
        live += _own_bytes(op)
        peak = max(peak, live)
        live -= sum(root.type.bytes for root in dying)
    return peak


def _greedy(graph: Graph, roots: dict[Value, Value]) -> tuple[Op, ...]:
    position = {id(op): index for index, op in enumerate(graph.ops)}
    producers = graph.producers()
    inputs = {port.value for port in graph.inputs}
    kept = {roots[port.value] for port in graph.outputs} | inputs
    readers: dict[Value, set[int]] = {}  # root -> ops that still have to read it
    waiting: dict[int, int] = {}
    users: dict[int, list[int]] = {index: [] for index in range(len(graph.ops))}
    for index, op in enumerate(graph.ops):
        makers = {position[id(producers[v])] for v in op.inputs if v in producers}
        waiting[index] = len(makers)
        for maker in makers:
            users[maker].append(index)
        for value in op.inputs:
            readers.setdefault(roots[value], set()).add(index)

    def cost(index: int) -> int:
        op = graph.ops[index]
        freed = sum(
            root.type.bytes
            for root in {roots[value] for value in op.inputs}
            if root not in kept and readers[root] == {index}
        )
        return _own_bytes(op) - freed

    ready = [(cost(index), index) for index, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[Op] = []
    done: set[int] = set()
    while ready:
        _, index = heapq.heappop(ready)
        if index in done:
            continue
        done.add(index)
        op = graph.ops[index]
        ordered.append(op)
        changed = list(users[index])
        for user in changed:
            waiting[user] -= 1
        for root in {roots[value] for value in op.inputs}:
            readers[root].discard(index)
            if len(readers[root]) == 1:  # its last reader has become cheaper
                changed.extend(readers[root])
        for other in dict.fromkeys(changed):
            if waiting[other] == 0 and other not in done:
                heapq.heappush(ready, (cost(other), other))
    return tuple(ordered)
