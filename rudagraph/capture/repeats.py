"""Equal layers of forward: all but a few are left out before backward is derived and lowered.

    layers.0 … layers.47   ->   layers.0, layers.1 | layers.2, layers.3, layers.4 (45 to 47 before)

Input: the nodes of a recorded forward. Output: fewer nodes, what the layers beyond the gap read of
those before it, and what brings the others back (LeftOut). Invariant: layers are left out that are
the same, node by node, as the one before: operator, numbers, operands, layouts, derivatives; and
that share nothing a gradient goes to. Otherwise it is NotRepeating, and they all stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rudagraph.capture.alike import draws, number_of_kind, renumber, stream_of
from rudagraph.capture.nodes import Node, map_nodes
from rudagraph.capture.shapes import Traced
from rudagraph.ir.graph import Location
from rudagraph.ir.layers import (
    KEPT,
    KEPT_BEFORE,
    LEAST,
    MOST_KINDS,
    LayerNames,
    LeftOut,
    NotRepeating,
    Streams,
    numbered_rows,
)


@dataclass(frozen=True)
class Cut:
    """Where layers were left out.

    `beyond` is the first node after them; `stand_ins` gives, for nodes of the last layers before,
    the nodes of the last layers left out, whose tensors those beyond have really read.
    """

    beyond: Node
    stand_ins: dict[Node, Node]


@dataclass
class Shortened:
    """Forward with fewer layers."""

    nodes: list[Node]
    targets: dict[Node, str]  # what parameters and buffers are called
    cuts: list[Cut] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    streams: dict[int, int] = field(default_factory=dict)  # random streams as recorded -> as now


def leave_out(nodes: list[Node], targets: dict[Node, str]) -> Shortened:
    """The nodes without most of their equal layers; `targets` names what modules hold of them.

    Nodes that stay are changed: operands, places, random streams.
    """
    short = Shortened(nodes, targets)
    rows = numbered_rows(list(targets.values()))
    if not rows:
        return short
    drawn = {node: stream_of(node) for node in nodes if draws(node)}
    numbers = number_of_kind(nodes)
    for prefix in rows:
        try:
            _Row(LayerNames(prefix), short, numbers).leave_out()
        except NotRepeating:
            continue
    if short.cuts:
        short.streams = {drawn[node]: stream_of(node) for node in short.nodes if node in drawn}
    short.cuts.sort(key=lambda cut: short.nodes.index(cut.beyond))
    return short


@dataclass(frozen=True)
class _Run:
    """Positions from `start` to `stop`, of which those `length` apart are the same."""

    start: int
    stop: int
    length: int

    @property
    def repeats(self) -> int:
        """How often all of `length` positions come."""
        return (self.stop - self.start) // self.length

    def since(self, start: int) -> _Run:
        """The part of the run from there on."""
        return _Run(start, self.stop, self.length)


class _Row:
    """One row of layers in forward."""

    def __init__(self, names: LayerNames, short: Shortened, number: dict[Node, int]) -> None:
        self.names, self.short, self.number = names, short, number
        self.nodes = short.nodes
        self.drawn = {node: stream_of(node) for node in self.nodes if draws(node)}
        self.position = {node: position for position, node in enumerate(self.nodes)}
        self.first_of: dict[int, int] = {}  # layer -> position of its first node
        for position, node in enumerate(self.nodes):
            index = None if node.op == "input" else names.index(node.location.module)
            if index is not None:
                self.first_of.setdefault(index, position)

    def index(self, node: Node) -> int | None:
        """The layer that a node belongs to."""
        return self.names.index(self.short.targets.get(node, node.location.module))

    def leave_out(self) -> None:
        """Take layers out of the middle of the row."""
        run, step, streams = self._longest_run()
        count = run.repeats - KEPT
        if count < LEAST or streams % step:
            raise NotRepeating(f"{self.names.prefix} does not repeat")
        gap = run.start + KEPT_BEFORE * run.length
        removed = range(gap, gap + count * run.length)
        self._refuse_what_is_not_put_back(run, gap)
        stand_ins = self._stand_ins(run, removed)
        first = self.names.index(self.nodes[gap].location.module)
        assert first is not None, "a repeat begins with a layer"
        before, beyond = self.nodes[:gap], self.nodes[removed.stop :]
        drawn = {
            **{self.drawn[node]: self.drawn[node] for node in before if node in self.drawn},
            **{
                self.drawn[node]: self.drawn[node] - count * streams
                for node in beyond
                if node in self.drawn
            },
        }
        moving = _Moving(self.names, first, count * step, drawn, stand_ins)
        nodes = [*before, *beyond]
        self.short.targets, self.short.nodes = moving.inputs(self.short.targets, nodes)
        for node in self.short.nodes:
            moving.node(node)
        row = LeftOut(self.names.prefix, first, count * step, step, self._streams(drawn))
        really = {stays: gone for gone, stays in stand_ins.items()}
        self.short.cuts.append(Cut(self.nodes[removed.stop], really))
        self.short.left_out.insert(0, row)

    def _streams(self, drawn: dict[int, int]) -> Streams:
        """Who draws from what streams, now that layers are left out."""
        drawing = [node for node in self.short.nodes if node in self.drawn]
        by = {stream_of(node): self.names.index(node.location.module) for node in drawing}
        outside = {now: before for before, now in drawn.items() if by[now] is None}
        return Streams({now: index for now, index in by.items() if index is not None}, outside)

    def _longest_run(self) -> tuple[_Run, int, int]:
        """The longest run from the beginning of a layer; layers and streams of one repeat."""
        places = sorted(self.first_of.items(), key=lambda item: item[1])
        for kinds in range(1, MOST_KINDS + 1):
            distances = Counter(
                (there - here, later - layer)
                for (layer, here), (later, there) in zip(places, places[kinds:], strict=False)
                if later > layer
            )
            for (length, step), _ in distances.most_common(1):
                run, streams = self._longest(length, step)
                starts = [p for p in self.first_of.values() if run.start <= p < run.stop - length]
                if starts and run.since(min(starts)).repeats >= KEPT + LEAST:
                    return run.since(min(starts)), step, streams
        raise NotRepeating(f"{self.names.prefix} does not repeat")

    def _longest(self, length: int, step: int) -> tuple[_Run, int]:
        begin = min(self.first_of.values())
        best = run = _Run(begin, begin, length)
        drawn = apart = 0
        for position in range(begin, len(self.nodes) - length):
            one, other = self.nodes[position], self.nodes[position + length]
            streams = self.drawn.get(other, 0) - self.drawn.get(one, 0)
            follows = self._follows(one, other, run.start, length, step)
            if not follows or (streams and drawn and streams != drawn):
                run, drawn = _Run(position + 1, position + 1, length), 0
                continue
            drawn = drawn or streams
            run = _Run(run.start, position + 1 + length, length)
            if run.stop - run.start > best.stop - best.start:
                best, apart = run, drawn
        return best, apart

    def _follows(self, one: Node, other: Node, start: int, length: int, step: int) -> bool:
        """Whether the other is the same one repeat on; both may read what is before the run."""
        if self.number[one] != self.number[other]:
            return False
        if self.names.later(one.location.module, step) != other.location.module:
            return False
        return all(
            self._is_later(a, b, start, length, step)
            for a, b in zip(one.operands, other.operands, strict=True)
        )

    def _is_later(self, one: Node, other: Node, start: int, length: int, step: int) -> bool:
        if one is other:
            return self.position[one] < start
        if one.op != "input" or other.op != "input":
            return self.position[other] - self.position[one] == length
        here, there = map(self.short.targets.get, (one, other))
        return (
            here is not None
            and self.names.later(here, step) == there
            and one.traced.form == other.traced.form
            and one.traced.requires_grad == other.traced.requires_grad
        )

    def _refuse_what_is_not_put_back(self, run: _Run, gap: int) -> None:
        """What `passes.fold` cannot put back, where that shows before backward is traced.

        A gradient with a part from every layer is a sum over all of them; and what the model does
        between its layers has names that do not tell for which.
        """
        for position in range(gap, gap + run.length):
            node = self.nodes[position]
            if self.names.index(node.location.module) is None and requires_grad(node.traced):
                raise NotRepeating(f"something between layers of {self.names.prefix} is in none")
            later = self.nodes[position + run.length].inputs
            for one, other in zip(node.inputs, later, strict=True):
                if one is other and requires_grad(one.traced):
                    raise NotRepeating(f"layers of {self.names.prefix} share a gradient")

    def _stand_ins(self, run: _Run, removed: range) -> dict[Node, Node]:
        """What nodes beyond the gap read of those left out, and what they are to read instead."""
        found: dict[Node, Node] = {}
        directly: set[Node] = set()
        for position in range(removed.stop, len(self.nodes)):
            for operand in self.nodes[position].inputs:
                place = self.position[operand]
                if place < removed.start:
                    directly.add(operand)
                    if position >= run.stop and self.index(operand) is not None:
                        raise NotRepeating(f"{self.names.prefix} is read from beyond its end")
                if place not in removed:
                    continue
                near = place >= removed.stop - KEPT_BEFORE * run.length
                if not near or position >= run.stop or not isinstance(operand.traced, Traced):
                    raise NotRepeating(f"a layer of {self.names.prefix} is read from far")
                found[operand] = self.nodes[place - len(removed)]
        if not directly.isdisjoint(found.values()):
            raise NotRepeating(f"a layer of {self.names.prefix} is read from near and from far")
        return found


@dataclass(frozen=True)
class _Moving:
    """What becomes of layers beyond the gap: they move down into the place of those left out."""

    names: LayerNames
    first: int  # of the layers left out
    removed: int
    drawn: dict[int, int]  # random streams of the nodes that stay -> as they will be
    stand_ins: dict[Node, Node]

    def inputs(
        self, targets: dict[Node, str], nodes: list[Node]
    ) -> tuple[dict[Node, str], list[Node]]:
        """Inputs of the layers that stay, by their new names; the nodes without the others."""
        gone = {node for node, target in targets.items() if self._is_gone(target)}
        if any(operand in gone for node in nodes for operand in node.inputs):
            raise NotRepeating(f"what a layer of {self.names.prefix} holds is read elsewhere")
        if len(set(self.drawn.values())) < len(self.drawn):
            raise NotRepeating("two random streams would become one")
        if any(self._is_gone(node.location.module) for node in nodes):
            raise NotRepeating(f"a layer of {self.names.prefix} runs apart from the others")
        stay = {n: self._name(target) for n, target in targets.items() if n not in gone}
        return stay, [node for node in nodes if node not in gone]

    def node(self, node: Node) -> None:
        """Change a node that stays."""
        location = node.location
        node.location = Location(self._name(location.module), location.line)
        if not self.stand_ins.keys().isdisjoint(node.inputs):
            node.args = map_nodes(node.args, self._operand)
            node.kwargs = map_nodes(node.kwargs, self._operand)
            node.operands = list(map(self._operand, node.operands))
            node.inputs = tuple(dict.fromkeys(node.operands))
        renumber(node, self.drawn)

    def _operand(self, node: Node) -> Node:
        return self.stand_ins.get(node, node)

    def _is_gone(self, name: str) -> bool:
        index = self.names.index(name)
        return index is not None and self.first <= index < self.first + self.removed

    def _name(self, name: str) -> str:
        index = self.names.index(name)
        return self.names.later(name, -self.removed) if (index or 0) >= self.first else name


def requires_grad(traced: Any) -> bool:
    """Whether a gradient goes to a traced result, or to one of several."""
    if isinstance(traced, (tuple, list)):
        return any(map(requires_grad, traced))
    return traced is not None and bool(traced.requires_grad)
