"""Equal layers are compiled once: most are taken out, and put back into what the passes have made.

    layers.0 … layers.47   fold   layers.0 … layers.4   passes    layers.0 … layers.4
                          ----->                       ------->                       unfold
                                                          layers.0 … layers.47        <-----

A pass looks at an op and its neighbours: what it makes of a layer between two equal ones it makes
of every such layer. Input: the joint graph as captured, then any graph that passes have made of the
folded one. Output: the graph with fewer layers, the graph with all of them. Invariant: only layers
are taken out that are the same, op by op, but for their index, and they come back only where two
neighbours have come out the same. Otherwise it is NotRepeating, and the graph is compiled as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Graph, Location, Op, Port, Role, Value
from rudagraph.ir.layers import (
    KEPT,
    LEAST,
    LeftOut,
    NotRepeating,
    Streams,
    numbered_rows,
)
from rudagraph.ir.verify import verify
from rudagraph.passes.layers import Layers, Run

Ports = tuple[tuple[Port, ...], tuple[Port, ...]]


def fold(joint: Graph) -> tuple[Graph, tuple[Folding, ...]]:
    """The graph without most of its equal layers, and what brings them back, the last first."""
    foldings: list[Folding] = []
    named = [port.target for port in joint.inputs if port.role is Role.PARAMETER]
    for prefix in numbered_rows(named):
        try:
            joint, folding = _fold(joint, Layers(prefix, joint.ops))
        except NotRepeating:
            continue
        foldings.insert(0, folding)
    return joint, tuple(foldings)


def folded_by_capture(graph: Graph, left_out: Sequence[LeftOut]) -> tuple[Folding, ...]:
    """What brings back layers that the captured graph does without."""
    return tuple(
        Folding(Layers(row.prefix, graph.ops), row.removed, row.step, row.streams)
        for row in left_out
    )


def unfold(graph: Graph, foldings: Sequence[Folding]) -> Graph:
    """The graph with the layers of all rows."""
    for folding in foldings:
        graph = folding.unfold(graph)
    return graph


def ports(graph: Graph, foldings: Sequence[Folding]) -> Ports:
    """Inputs and outputs of the graph with the layers of all rows."""
    inputs, outputs = graph.inputs, graph.outputs
    for folding in foldings:
        inputs, outputs = folding.ports(inputs), folding.ports(outputs)
    return inputs, outputs


def named(ports: Sequence[Port]) -> list[tuple[Role, str]]:
    """What ports are called outside."""
    return [(port.role, port.target) for port in ports]


class _Moving:
    """Ops some layers further on: `far` where they lie beyond the middle of the row."""

    def __init__(
        self, layers: Layers, far: int, ops: Sequence[Op], runs: Sequence[Run], streams: Streams
    ) -> None:
        if not runs:
            raise NotRepeating(f"no two layers of {layers.prefix} have come out alike")
        self.layers, self.far, self.streams = layers, far, streams
        second = ops[runs[0].start + runs[0].length]
        middle = layers.index(second.results[0].name)
        assert middle is not None, "what repeats belongs to a layer"
        self.middle = middle
        self.shared = {value for run in runs for value in layers.read_by_all(ops, run)}
        self.near = 2 * abs(runs[0].step)
        self.left: dict[Value, Value] = {}  # what ops outside of the repeats give, and gave
        self._moved: dict[int, dict[Value, Value]] = {}  # by how far

    def op(self, op: Op, by: int) -> Op:
        """The op so many layers further on; what all layers read goes where its layer goes."""
        layers = self.layers
        if layers.index(op.results[0].name) is None:
            # Outside the row: in forward's order before it or after it.
            op = layers.drawing(op, self._stream)
            where = layers.later(op.location.module, self._beyond(op.location.module))
        else:
            by_result = self._distance(op.results[0], by)
            op = layers.drawing(op, lambda stream: self._stream(stream, by_result))
            where = layers.later(op.location.module, by_result)
        operands = [self._value(o, by) if isinstance(o, Value) else o for o in op.operands]
        return Op(
            op.opcode,
            tuple(operands),
            tuple([self._value(value, by) for value in op.results]),
            op.attributes,
            Location(where, op.location.line),
            op.body,
        )

    def outside(self, ops: Sequence[Op], by: int) -> list[Op]:
        """Ops outside of the repeats, so many layers further on."""
        self.check(ops, by)
        moved = [self.op(op, by) for op in ops]
        for op, now in zip(ops, moved, strict=True):
            self.left.update(zip(op.results, now.results, strict=True))
        return moved

    def check(self, ops: Sequence[Op], by: int) -> None:
        """NotRepeating where an op outside of the repeats reads of a layer far from its own."""
        for op in ops:
            own = self.layers.index(op.results[0].name)
            for value in op.inputs:
                index = self.layers.index(value.name)
                if index is None or value in self.shared:
                    continue
                if (
                    abs(own - index) > self.near
                    if own is not None
                    else by != self._beyond(value.name)
                ):
                    raise NotRepeating(f"{value} of one layer is read far from it")

    def output(self, port: Port) -> Port:
        """The port, where it is of no layer though its value may be."""
        if not self.hands_out(port):
            return port
        if port.value not in self.left:
            raise NotRepeating(f"{port.value} of one layer is handed out")
        return replace(port, value=self.left[port.value])

    def hands_out(self, port: Port) -> bool:
        """Whether the port is of no layer, but its value is of one."""
        index = self.layers.index
        return index(port.target) is None and index(port.value.name) is not None

    def _value(self, value: Value, by: int) -> Value:
        """The value so many layers further on; ops that read it ask again."""
        moved = self._moved.setdefault(by, {})
        if value not in moved:
            moved[value] = self.layers.value(value, self._distance(value, by))
        return moved[value]

    def _distance(self, value: Value, by: int) -> int:
        return self._beyond(value.name) if value in self.shared else by

    def _beyond(self, name: str) -> int:
        index = self.layers.index(name)
        return self.far if index is not None and index > self.middle else 0

    def _stream(self, stream: int, by: int | None = None) -> int:
        """Each stream goes its own way: a kernel may draw for this row and for another."""
        if stream in self.streams.outside:
            return self.streams.outside[stream]
        if by is None:
            index = self.streams.drawn_by.get(stream)
            by = self.far if index is not None and index > self.middle else 0
        return stream + by * self.layers.streams


@dataclass(frozen=True)
class _Part:
    """Ops that go so many layers further on, or repeat as the run says."""

    ops: Sequence[Op]
    by: int = 0
    run: Run | None = None


@dataclass(frozen=True)
class Folding:
    """What was taken out: `removed` layers in the middle of a row."""

    layers: Layers
    removed: int
    step: int  # so many layers, of as many kinds, repeat as one
    streams: Streams  # of the folded graph

    def unfold(self, graph: Graph) -> Graph:
        """The graph with the layers back; NotRepeating where those left have come out different."""
        moving, parts = self._apart(graph.ops)
        unfolded: list[Op] = []
        for part in parts:
            if part.run is None:
                unfolded += moving.outside(part.ops, part.by)
                continue
            for distance in self._distances(part.run):
                unfolded += [moving.op(op, distance) for op in part.ops]
        inputs = self.ports(graph.inputs)
        outputs = self.ports([moving.output(port) for port in graph.outputs])
        return _verified(Graph(graph.name, inputs, tuple(unfolded), outputs))

    def check(self, graph: Graph) -> None:
        """NotRepeating where `unfold` would be."""
        moving, parts = self._apart(graph.ops)
        outside = [part for part in parts if part.run is None]
        for part in outside:
            moving.check(part.ops, part.by)
        given = {value for part in outside for op in part.ops for value in op.results}
        for port in graph.outputs:
            if moving.hands_out(port) and port.value not in given:
                raise NotRepeating(f"{port.value} of one layer is handed out")

    def _apart(self, ops: Sequence[Op]) -> tuple[_Moving, list[_Part]]:
        """The ops in parts: a repeat that comes again for each layer, or what is outside."""
        layers = self.layers
        found = (layers.upwards(ops), layers.downwards(ops))
        up, down = (run and run.of(self.step) for run in found)
        runs = [run for run in (up, down) if run is not None]
        moving = _Moving(layers, self.removed, ops, runs, self.streams)
        parts: list[_Part] = []
        # Forward goes up past the layers left out, backward comes down past them: between is far.
        done, by = 0, self.removed if up is None else 0
        for run in runs:
            second = run.start + run.length  # the repeat that comes again for each layer left out
            if run.start < done:
                raise NotRepeating(f"layers of {layers.prefix} go up and down at once")
            parts.append(_Part(ops[done:second], by))
            done, by = second + run.length, self.removed - by
            parts.append(_Part(ops[second:done], run=run))
        return moving, [*parts, _Part(ops[done:], by)]

    def _distances(self, run: Run) -> range:
        """How far each copy of a repeat goes, in the order in which they come."""
        last = self.removed
        return range(0, last + 1, run.step) if run.step > 0 else range(last, -1, run.step)

    def ports(self, ports: Sequence[Port]) -> tuple[Port, ...]:
        """These ports and those of the layers; of a role they are in the order of layers."""
        unfolded: list[Port] = []
        for _, group in groupby(ports, key=lambda port: port.role):
            alike = list(group)
            run = self.layers.upwards(alike)
            run = run and run.of(self.step)
            if run is None:
                unfolded += alike
                continue
            second = run.start + run.length
            last = second + run.length
            unfolded += alike[:second]
            for distance in self._distances(run):
                unfolded += [self.layers.port(port, distance) for port in alike[second:last]]
            unfolded += [self.layers.port(port, self.removed) for port in alike[last:]]
        return tuple(unfolded)


def _fold(joint: Graph, layers: Layers) -> tuple[Graph, Folding]:
    """Layers in the middle of one row left out; later ones move down into their place."""
    ops = joint.ops
    up, down = layers.upwards(ops), layers.downwards(ops)
    has_backward = any(port.role is Role.GRADIENT for port in joint.outputs)
    if up is None or (down is not None) != has_backward:
        raise NotRepeating(f"{layers.prefix} does not repeat")
    step = math.lcm(up.step, 1 if down is None else down.step)
    up, down = up.of(step), down and down.of(step)
    if up is None or (down is None and has_backward):
        raise NotRepeating(f"{layers.prefix} repeats otherwise in backward")
    runs = [up] if down is None else [up, down]
    count = min(run.repeats for run in runs) - KEPT
    if count < LEAST:
        raise NotRepeating(f"{layers.prefix} has few layers")
    removed = count * step
    # Two repeats stay on either side of forward's gap, and as many before that of backward.
    gap = up.start + 2 * up.length
    end = len(ops) if down is None else down.start + 2 * down.length
    before, far = ops[:gap], ops[gap + count * up.length : end]
    after = () if down is None else ops[end + count * down.length :]
    moving = _Moving(layers, -removed, ops, runs, _streams(layers, removed))
    left = moving.outside(before, 0) + moving.outside(far, -removed) + moving.outside(after, 0)
    indices = [layers.index(port.target) for port in joint.inputs]
    end_of_row = max(index for index in indices if index is not None) + 1 - removed

    def stays(port: Port) -> bool:
        index = layers.index(port.target)
        return index is None or index < end_of_row

    inputs = tuple(filter(stays, joint.inputs))
    outputs = tuple(map(moving.output, filter(stays, joint.outputs)))
    folded = _verified(Graph(joint.name, inputs, tuple(left), outputs))
    streams = _folded_streams(layers, removed, moving, (*before, *far, *after), left)
    folding = Folding(layers, removed, step, streams)
    for short, whole in ((inputs, joint.inputs), (outputs, joint.outputs)):
        if named(folding.ports(short)) != named(whole):
            raise NotRepeating(f"what layers of {layers.prefix} hold does not repeat as they do")
    return folded, folding


def _streams(layers: Layers, removed: int) -> Streams:
    """Streams as captured: those drawn after the row's first move down with its layers."""
    by = removed * layers.streams
    drawn_by = layers.drawn_by
    first = min((stream for stream, index in drawn_by.items() if index is not None), default=0)
    outside = {
        stream: stream - by if stream > first else stream
        for stream, index in drawn_by.items()
        if index is None
    }
    return Streams(drawn_by, outside)


def _folded_streams(
    layers: Layers, removed: int, moving: _Moving, ops: Sequence[Op], folded: Sequence[Op]
) -> Streams:
    """What brings the streams of `folded`, made of `ops`, back; NotRepeating for two made one."""
    drawn_by: dict[int, int | None] = {}
    outside: dict[int, int] = {}
    for op, now in zip(ops, folded, strict=True):
        before, after = op.get("stream"), now.get("stream")
        if not isinstance(before, int) or not isinstance(after, int):
            continue
        index = layers.drawn_by[before]
        if index is None:
            if outside.setdefault(after, before) != before:
                raise NotRepeating(f"two random streams would become {after}")
        else:
            drawn_by.setdefault(after, index - removed if index > moving.middle else index)
    if not outside.keys().isdisjoint(drawn_by):
        raise NotRepeating(f"streams of {layers.prefix} and of others would be the same")
    return Streams(drawn_by, outside)


def _verified(graph: Graph) -> Graph:
    """Its ops are copies of verified ones under other names: what they give is known."""
    try:
        return verify(graph, stage="fold", verified=graph)
    except VerifyError as error:
        raise NotRepeating(str(error)) from error
