"""A topological order that keeps the peak of live bytes low.

Three orders are measured with the same formula and the best is taken, the earlier one on a tie, so
scheduling never makes a step larger and the result depends on the graph alone:

    given     capture's own: good in forward, where values are used soon
    on demand what depends on no upstream gradient, values computed again above all, waits until
              the op that reads it comes up
    greedy    of the ready ops the one that leaves fewest live bytes (what it makes minus what it
              frees last); ties to the op that came first in the given order
"""

from __future__ import annotations

import heapq
from dataclasses import replace

from rudagraph.ir.graph import Graph, Op, Role, Value
from rudagraph.ir.ops import Tag, has


def order(graph: Graph) -> Graph:
    """The graph with its ops in an order of low peak; the same object where it is that already."""
    roots = _roots(graph)
    lazy = _on_demand(graph)
    starts = [graph] if lazy is graph.ops else [graph, replace(graph, ops=lazy)]
    candidates = (*starts, *(replace(start, ops=_greedy(start, roots)) for start in starts))
    best = min(candidates, key=lambda candidate: _peak(candidate, roots))
    ops = _with_late_views(best)
    return graph if ops == graph.ops else replace(graph, ops=ops)


def _with_late_views(graph: Graph) -> tuple[Op, ...]:
    """Views take no memory and no time; a reader finds them in front of who reads them first."""
    producers = graph.producers()
    ordered: dict[int, Op] = {}

    def place(op: Op) -> None:
        for value in op.inputs:
            maker = producers.get(value)
            if maker is not None and id(maker) not in ordered:
                place(maker)
        ordered[id(op)] = op

    for op in graph.ops:
        if not has(op, Tag.VIEW):
            place(op)
    for op in graph.ops:  # what only outputs read
        if id(op) not in ordered:
            place(op)
    return tuple(ordered.values())


def _on_demand(graph: Graph) -> tuple[Op, ...]:
    """Ops that no tangent reaches move down to their first reader."""
    producers = graph.producers()
    reached = {port.value for port in graph.inputs if port.role is Role.TANGENT}
    if not reached:
        return graph.ops
    ordered: dict[int, Op] = {}
    waiting: list[Op] = []

    def place(op: Op) -> None:
        stack = [op]
        while stack:
            top = stack[-1]
            if id(top) in ordered:
                stack.pop()
                continue
            missing = [
                producers[value]
                for value in top.inputs
                if value in producers and id(producers[value]) not in ordered
            ]
            if missing:
                stack.extend(reversed(missing))
            else:
                ordered[id(stack.pop())] = top

    for op in graph.ops:
        if reached.isdisjoint(op.inputs):
            waiting.append(op)
        else:
            reached.update(op.results)
            place(op)
    for op in waiting:
        place(op)
    return tuple(ordered.values())


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
