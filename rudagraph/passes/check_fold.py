"""Whether layers can be put back into a graph, and whether what comes of that is whole.

Input: a graph without most of its equal layers and what brings them back. Output: nothing, or
NotRepeating: the graph has to be made with all layers. Invariant: a step reads and gives what the
captured model does, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from rudagraph.ir.graph import Graph, Port, Role
from rudagraph.ir.layers import LeftOut, NotRepeating, origin
from rudagraph.passes.fold import Folding, Ports, named, ports


def check_unfolds(graph: Graph, foldings: Sequence[Folding]) -> None:
    """NotRepeating where `unfold` would be."""
    for folding in foldings:
        folding.check(graph)
        if folding is not foldings[-1]:  # to the next row this one is there, with some layers
            graph = replace(folding, removed=folding.step).unfold(graph)


def check_whole(captured: Ports, entries: Sequence[Graph]) -> None:
    """NotRepeating unless forward and backward read and give what the captured graph does."""
    inputs, outputs = captured
    known = set(named(inputs))
    read = {port for entry in entries for port in named(entry.inputs)}
    given = Counter(port for entry in entries for port in named(entry.outputs))
    saved = {target for role, target in given if role is Role.RESIDUAL}
    for role, target in read - known:
        if role is not Role.RESIDUAL or target not in saved:
            raise NotRepeating(f"there is no {role.value} {target}")
    kept = Counter({port: count for port, count in given.items() if port[0] is not Role.RESIDUAL})
    if kept != Counter(named(outputs)):
        raise NotRepeating("not all that was captured is given")


def check_ports(
    graph: Graph,
    foldings: Sequence[Folding],
    left_out: Sequence[LeftOut],
    held: Sequence[tuple[Role, str]],
) -> None:
    """NotRepeating unless `ports` are those of a capture of all layers, in that order.

    `held` is what the module holds: its layers may register things in another order than they use
    them, or under one name a parameter here and a buffer there.
    """
    origins = [(role, name, origin(name, left_out)) for role, name in held]
    whole = ports(graph, foldings)
    for short, found in zip((graph.inputs, graph.outputs), whole, strict=True):
        if _ports_of_all(short, origins) != named(found):
            raise NotRepeating("what layers hold does not repeat as they do")


def _ports_of_all(
    short: Sequence[Port], origins: Sequence[tuple[Role, str, str]]
) -> list[tuple[Role, str]]:
    """Ports of all layers: what the module holds has one where its origin has one in `short`."""
    found: list[tuple[Role, str]] = []
    for role, group in groupby(short, key=lambda port: port.role):
        given = [port.target for port in group]
        known = [
            (_target(role, kind, name), _target(role, kind, source))
            for kind, name, source in origins
            if role in (kind, Role.UPDATE, Role.GRADIENT)
        ]
        sources = {source for _, source in known}
        there = sources.intersection(given)
        found += [(role, name) for name, source in known if source in there]
        found += [(role, target) for target in given if target not in sources]
    return found


def _target(role: Role, kind: Role, name: str) -> str:
    """What a port of this role calls something that the module holds."""
    return f"{kind.value}:{name}" if role is Role.UPDATE else name
