"""A topological order that keeps the peak of live bytes low.

Four orders are measured with the same formula and the best is taken, the earlier one on a tie, so
scheduling never makes a step larger and the result depends on the graph alone:

    given     capture's own: good in forward, where values are used soon
    on demand what depends on no upstream gradient, values computed again above all, waits until
              the op that reads it comes up
    greedy    of the ready ops the one that leaves fewest live bytes (what it makes minus what it
              frees last); ties to the op that came first in the given order, or in that on demand
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.ops import Tag, has

_Order = Sequence[int]


@dataclass(frozen=True, slots=True)
class _Table:
    """The graph in numbers: each op is its place in the graph, each root value has a number.

    A root is what views lie in. Graph inputs are none: nothing an order does frees them.
    """

    makers: list[tuple[int, ...]]  # the ops that make what each op reads, once each
    reads: list[tuple[int, ...]]  # the roots that each op reads, once each
    makes: list[tuple[int, ...]]  # and those of its results
    made_bytes: list[int]  # new with each op
    freed_bytes: list[int]  # with the last reader of each root; 0 where an output keeps it


def order(graph: Graph) -> Graph:
    """The graph with its ops in an order of low peak; the same object where it is that already."""
    table = _table(graph)
    given = range(len(graph.ops))
    lazy = _on_demand(graph, table)
    starts: list[_Order] = [given] if lazy == list(given) else [given, lazy]
    candidates = [*starts, *(_greedy(start, table) for start in starts)]
    best = min(candidates, key=lambda candidate: _peak(candidate, table))
    places = _with_late_views(best, graph, table)
    if places == list(given):
        return graph
    return graph.with_ops(tuple([graph.ops[place] for place in places]))


def _table(graph: Graph) -> _Table:
    table = _Table([], [], [], [], [])
    maker: dict[Value, int] = {}
    roots: dict[Value, int] = {}
    for place, op in enumerate(graph.ops):
        made_bytes = 0
        if has(op, Tag.VIEW):
            viewed = roots.get(op.inputs[0])
            if viewed is not None:
                roots.update(dict.fromkeys(op.results, viewed))
        else:
            for result in op.results:
                roots[result] = len(table.freed_bytes)
                table.freed_bytes.append(result.type.bytes)
                made_bytes += result.type.bytes
        inputs, results = op.inputs, op.results
        table.makers.append(tuple(dict.fromkeys([maker[v] for v in inputs if v in maker])))
        table.reads.append(tuple({roots[v] for v in inputs if v in roots}))
        table.makes.append(tuple([roots[v] for v in results if v in roots]))
        table.made_bytes.append(made_bytes)
        maker.update(dict.fromkeys(results, place))
    for port in graph.outputs:
        if port.value in roots:
            table.freed_bytes[roots[port.value]] = 0
    return table


def _with_late_views(best: _Order, graph: Graph, table: _Table) -> list[int]:
    """Views take no memory and no time; a reader finds them in front of who reads them first."""
    placed = [False] * len(best)
    ordered: list[int] = []

    def put(place: int) -> None:
        for maker in table.makers[place]:
            if not placed[maker]:
                put(maker)
        placed[place] = True
        ordered.append(place)

    for place in best:
        if not has(graph.ops[place], Tag.VIEW):
            put(place)
    for place in best:  # what only outputs read
        if not placed[place]:
            put(place)
    return ordered


def _on_demand(graph: Graph, table: _Table) -> list[int]:
    """Ops that no tangent reaches move down to their first reader."""
    tangents = {port.value for port in graph.inputs if port.role is Role.TANGENT}
    if not tangents:
        return list(range(len(graph.ops)))
    placed = [False] * len(graph.ops)
    reached = [False] * len(graph.ops)
    ordered: list[int] = []

    def put(place: int) -> None:
        stack = [place]
        while stack:
            top = stack[-1]
            if placed[top]:
                stack.pop()
                continue
            missing = [maker for maker in table.makers[top] if not placed[maker]]
            if missing:
                stack.extend(reversed(missing))
            else:
                placed[top] = True
                ordered.append(stack.pop())

    for place, op in enumerate(graph.ops):
        makers = table.makers[place]
        if any(reached[maker] for maker in makers) or not tangents.isdisjoint(op.inputs):
            reached[place] = True
            put(place)
    for place in range(len(graph.ops)):  # what only outputs read
        put(place)
    return ordered


def _peak(candidate: _Order, table: _Table) -> int:
    """The most bytes that are live at once."""
    last_met = [False] * len(table.freed_bytes)
    dying = [0] * len(candidate)
    for place in reversed(candidate):
        for root in table.reads[place] + table.makes[place]:
            if not last_met[root]:
                last_met[root] = True
                dying[place] += table.freed_bytes[root]
    live = peak = 0
    for place in candidate:
        live += table.made_bytes[place]
        peak = max(peak, live)
        live -= dying[place]
    return peak


def _greedy(start: _Order, table: _Table) -> list[int]:
    rank = [0] * len(start)
    for position, place in enumerate(start):
        rank[place] = position
    users: list[list[int]] = [[] for _ in start]
    readers: list[list[int]] = [[] for _ in table.freed_bytes]
    for place in start:
        for maker in table.makers[place]:
            users[maker].append(place)
        for root in table.reads[place]:
            readers[root].append(place)
    waiting = [len(makers) for makers in table.makers]  # for so many ops
    unread = [len(reading) for reading in readers]  # by so many ops
    # What an op adds to the live bytes; less from when it is the last to read something.
    cost = list(table.made_bytes)
    for root, reading in enumerate(readers):
        if len(reading) == 1:
            cost[reading[0]] -= table.freed_bytes[root]

    ready = [(cost[place], rank[place]) for place in start if not waiting[place]]
    heapq.heapify(ready)
    ordered: list[int] = []
    done = [False] * len(start)
    while ready:
        place = start[heapq.heappop(ready)[1]]
        if done[place]:  # has been cheaper since
            continue
        done[place] = True
        ordered.append(place)
        changed = list(users[place])
        for user in changed:
            waiting[user] -= 1
        for root in table.reads[place]:
            unread[root] -= 1
            if unread[root] == 1:
                (last,) = [reader for reader in readers[root] if not done[reader]]
                cost[last] -= table.freed_bytes[root]
                changed.append(last)
        for other in changed:
            if not waiting[other]:
                heapq.heappush(ready, (cost[other], rank[other]))
    return ordered
