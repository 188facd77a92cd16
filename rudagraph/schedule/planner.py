"""Graphs -> Plan: one time line over both entries, buffers with lifetimes, launches over views.

    forward ops   0 .. F-1   |  F: the caller holds the results  |  backward ops  F+1 .. F+B
    residuals live across F; results and gradients live from their op to the end

The code generator is asked for each op's kernels (it alone knows workspaces and what may share
memory); everything else about memory is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

from rudagraph.ir.graph import Graph, Location, Op, Port, Role, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.strides import Strided, row_major
from rudagraph.ir.types import DType, TensorType
from rudagraph.schedule.apart import ALLOCATED, interval_of, move_apart
from rudagraph.schedule.kernel import KernelSource
from rudagraph.schedule.layout import Layout, layouts
from rudagraph.schedule.lowered import Generate, Lowered
from rudagraph.schedule.memory import aligned, assign_offsets
from rudagraph.schedule.plan import (
    Buffer,
    BufferKind,
    Entry,
    ErrorFlag,
    Launch,
    Moment,
    Plan,
    Result,
    View,
)

_OUTSIDE = frozenset(
    (Role.PARAMETER, Role.BUFFER, Role.ARGUMENT, Role.KEY, Role.CONSTANT, Role.TANGENT)
)
_FLAG_BYTES = 16  # i64[2] an error flag
# Library ops with a true out=: they write where the plan says. All others allocate.
WRITES_IN_PLACE = frozenset(
    ("copy", "matmul", "addmm", "concatenate", "sum", "mean", "amax", "amin")
)
# (operand, result) pairs that a library op can hold in the same memory, as a kernel's `inplace`.
LIBRARY_INPLACE: dict[str, tuple[tuple[int, int], ...]] = {"addmm": ((0, 0),)}


@dataclass
class Planner:
    """Collects buffers and launches while walking forward, then backward, along one time line.

    Buffers of at least `apart_bytes` may leave the arena where that lowers the peak; `scratch` says
    what a library op that allocates its results takes besides.
    """

    generate: Generate
    apart_bytes: int | None = None
    scratch: Callable[[Launch], int] = lambda _: 0
    entries: list[Entry] = field(default_factory=list)
    position: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    # Each buffer's last position as far as it is known; the buffers learn it at the end.
    lasts: list[int] = field(default_factory=list)
    kernels: dict[str, KernelSource] = field(default_factory=dict)
    errors: list[Location] = field(default_factory=list)
    moments: list[tuple[str, int, int]] = field(default_factory=list)  # entry, launch, position
    _outside: dict[tuple[Role, str], int] = field(default_factory=dict)
    _residuals: dict[str, tuple[int, Strided]] = field(default_factory=dict)

    def entry(self, graph: Graph) -> None:
        self.entries.append(_EntryPlanner(self, graph).run())
        if len(self.entries) == 1:
            self.position += 1  # where the caller holds the results

    def add(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        self.lasts.append(buffer.last)
        return len(self.buffers) - 1

    def outside(self, port: Port) -> int:
        """The buffer of something that lives outside the step; one for both entries."""
        key = (port.role, port.target)
        if key not in self._outside:
            name = f"{port.role.value}:{port.target}" if port.target else port.role.value
            size = port.value.type.bytes
            buffer = Buffer(name, BufferKind.BOUND, size, self.position, self.position, port=port)
            self._outside[key] = self.add(buffer)
        return self._outside[key]

    def extend(self, index: int, position: int) -> None:
        self.lasts[index] = max(self.lasts[index], position)

    def finish(self) -> tuple[Plan, tuple[KernelSource, ...]]:
        end = self.position
        for index, buffer in enumerate(self.buffers):
            last = end if buffer.kind is BufferKind.OUTPUT else self.lasts[index]
            if last != buffer.last:
                self.buffers[index] = _settled(buffer, last)
        if self.apart_bytes is not None:
            returned = {result.view.buffer for entry in self.entries for result in entry.results}
            self.buffers = move_apart(self.buffers, returned, self.apart_bytes)
        arena = [i for i, b in enumerate(self.buffers) if b.kind is BufferKind.ARENA]
        offsets, arena_bytes = assign_offsets([interval_of(self.buffers[i]) for i in arena])
        for index, offset in zip(arena, offsets, strict=True):
            if offset:
                buffer = self.buffers[index]
                self.buffers[index] = _settled(buffer, buffer.last, offset)
        outside_arena = [b for b in self.buffers if b.kind in ALLOCATED] + self._brought_in(end)
        steady = arena_bytes + _FLAG_BYTES * len(self.errors)
        alive = _alive_bytes(outside_arena, end)
        timeline = tuple(
            Moment(name, launch, steady + alive[at]) for name, launch, at in self.moments
        )
        peak = max((moment.bytes for moment in timeline), default=arena_bytes)
        plan = Plan(
            buffers=tuple(self.buffers),
            forward=self.entries[0],
            backward=self.entries[1] if len(self.entries) > 1 else None,
            errors=tuple(self.errors),
            arena_bytes=arena_bytes,
            peak_bytes=peak,
            timeline=timeline,
        )
        return plan, tuple(self.kernels.values())

    def _brought_in(self, end: int) -> list[Buffer]:
        """What lives outside the step and yet only because of it: the key, upstream gradients."""
        brought: list[Buffer] = []
        for buffer in self.buffers:
            role = buffer.port.role if buffer.port is not None else None
            if buffer.kind is BufferKind.BOUND and role is Role.KEY:
                brought.append(replace(buffer, first=0, last=end))
            elif buffer.kind is BufferKind.BOUND and role is Role.TANGENT:
                brought.append(replace(buffer, last=end))
        return brought


def _settled(buffer: Buffer, last: int, offset: int = 0) -> Buffer:
    """The buffer with its lifetime and place; `replace` would take four times as long."""
    return Buffer(buffer.name, buffer.kind, buffer.bytes, buffer.first, last, offset, buffer.port)


def _alive_bytes(buffers: list[Buffer], end: int) -> list[int]:
    """Bytes of the buffers alive at each position up to the end."""
    change = [0] * (end + 2)
    for buffer in buffers:
        change[buffer.first] += buffer.bytes
        change[buffer.last + 1] -= buffer.bytes
    return list(accumulate(change))


class _EntryPlanner:
    """One entry: where each value lies, then one launch after another."""

    def __init__(self, planner: Planner, graph: Graph) -> None:
        self.planner = planner
        self.graph = graph
        self.start = planner.position
        self.launches: list[Launch] = []
        known = {
            port.value: planner._residuals[port.target][1]
            for port in graph.inputs
            if port.role is Role.RESIDUAL
        }
        self.layouts = layouts(graph, known)
        self.launched = [op for op in graph.ops if not has(op, Tag.VIEW)]
        self.buffer_of: dict[Value, int] = {}
        self.views: dict[Value, View] = {}
        self.last_use = self._last_uses()
        self.kept = {self.layouts[port.value].root for port in graph.outputs}
        self.returned = {
            self.layouts[port.value].root: port
            for port in graph.outputs
            if port.role in (Role.RESULT, Role.GRADIENT)
        }

    def _last_uses(self) -> dict[Value, int]:
        """Position of the last op that reads each root, views looked through."""
        last: dict[Value, int] = {}
        for position, op in enumerate(self.launched, self.planner.position):
            for value in op.inputs:
                last[self.layouts[value].root] = position
        return last

    def run(self) -> Entry:
        for port in self.graph.inputs:
            self._bind_input(port)
        for op in self.launched:
            self._launch(op)
            self.planner.position += 1
        self._write_updates()
        return Entry(self.graph.name, tuple(self.launches), self._results())

    def _bind_input(self, port: Port) -> None:
        if port.role is Role.RESIDUAL:
            index, _ = self.planner._residuals[port.target]
        else:
            index = self.planner.outside(port)
        self.buffer_of[port.value] = index
        self.planner.extend(index, self.last_use.get(port.value, self.planner.position))

    # -- launches

    def _launch(self, op: Op) -> None:
        views = [self.layouts[o].view if isinstance(o, Value) else None for o in op.operands]
        operand_strides = tuple([None if view is None else view.strides for view in views])
        offsets = tuple([0 if view is None else view.offset for view in views])
        strides = tuple([self.layouts[result].view.strides for result in op.results])
        lowered = self.planner.generate(op, operand_strides, strides, (), offsets)
        shared = self._shared(op, self._library_pairs(op) if lowered is None else lowered.inplace)
        if shared and lowered is not None:
            lowered = self.planner.generate(op, operand_strides, strides, shared, offsets)
        self._place_results(op, lowered, shared)
        self.planner.moments.append((self.graph.name, len(self.launches), self.planner.position))
        if lowered is None:
            self._library(op)
        else:
            self._kernels(op, lowered)

    def _library_pairs(self, op: Op) -> tuple[tuple[int, int], ...]:
        """The pairs of a library op whose operand lies just as the result will."""
        pairs = []
        for operand_index, result_index in LIBRARY_INPLACE.get(op.opcode, ()):
            operand, result = op.operands[operand_index], op.results[result_index]
            if not isinstance(operand, Value) or operand.type != result.type:
                continue
            if self.layouts[operand].view == self.layouts[result].view:
                pairs.append((operand_index, result_index))
        return tuple(pairs)

    def _shared(self, op: Op, possible: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The in-place pairs to use: the operand dies here, in the arena, whole and unviewed."""
        pairs: list[tuple[int, int]] = []
        taken_operands: set[Value] = set()
        taken_results: set[int] = set()
        for operand_index, result_index in possible:
            operand, result = op.operands[operand_index], op.results[result_index]
            if not isinstance(operand, Value):
                continue
            layout = self.layouts[operand]
            index = self.buffer_of[layout.root]
            buffer = self.planner.buffers[index]
            dies = self.last_use[layout.root] == self.planner.position
            fits = (
                buffer.kind is BufferKind.ARENA
                and self.planner.lasts[index] <= self.planner.position
                and layout.root.type.bytes == result.type.bytes
                and layout.view.offset == 0
                and sum(self.layouts[v].root == layout.root for v in op.inputs) == 1
            )
            free = layout.root not in taken_operands and result_index not in taken_results
            if result in self.returned:
                # The operand's memory becomes the caller's: it must be of this very entry.
                free = free and buffer.first >= self.start
            if dies and fits and free and layout.root not in self.kept:
                pairs.append((operand_index, result_index))
                taken_operands.add(layout.root)
                taken_results.add(result_index)
        return tuple(pairs)

    def _place_results(
        self, op: Op, lowered: Lowered | None, shared: tuple[tuple[int, int], ...]
    ) -> None:
        allocates = lowered is None and op.opcode not in WRITES_IN_PLACE
        position = self.planner.position
        sharing = {result: operand for operand, result in shared}
        for index, result in enumerate(op.results):
            last = max(self.last_use.get(result, position), position)
            if index in sharing:
                operand = op.operands[sharing[index]]
                assert isinstance(operand, Value)
                self.buffer_of[result] = self.buffer_of[self.layouts[operand].root]
                self.planner.extend(self.buffer_of[result], last)
                if result in self.returned:
                    self._give_away(self.buffer_of[result], result)
                continue
            port = self.returned.get(result)
            kind = BufferKind.LIBRARY if allocates else BufferKind.ARENA
            if port is not None:
                kind = BufferKind.OUTPUT
            size = result.type.bytes if kind is not BufferKind.ARENA else aligned(result.type.bytes)
            buffer = Buffer(result.name, kind, size, position, last, port=port)
            self.buffer_of[result] = self.planner.add(buffer)

    def _give_away(self, index: int, result: Value) -> None:
        """Make a buffer of the arena one that is returned: its last writer's result is."""
        self.planner.buffers[index] = replace(
            self.planner.buffers[index],
            name=result.name,
            kind=BufferKind.OUTPUT,
            bytes=result.type.bytes,
            port=self.returned[result],
        )

    def _view(self, value: Value) -> View:
        view = self.views.get(value)
        if view is None:
            layout: Layout = self.layouts[value]
            buffer = self.buffer_of[layout.root]
            view = View(buffer, value.type, layout.view.strides, layout.view.offset)
            self.views[value] = view
        return view

    def _library(self, op: Op) -> None:
        arguments = tuple([self._view(o) if isinstance(o, Value) else o for o in op.operands])
        results = tuple([self._view(result) for result in op.results])
        label = op.results[0].name if op.results else op.opcode
        launch = Launch(op.opcode, None, arguments, results, op.attributes, op.location, label)
        self.launches.append(launch)
        size = 0 if op.opcode in WRITES_IN_PLACE else self.planner.scratch(launch)
        if size:
            at = self.planner.position
            self.planner.add(Buffer(f"{label}.scratch", BufferKind.LIBRARY, size, at, at))

    def _kernels(self, op: Op, lowered: Lowered) -> None:
        position = self.planner.position
        workspaces: list[View] = []
        for count, size in enumerate(lowered.workspaces):
            name = f"{op.results[0].name}.workspace{count}"
            buffer = Buffer(name, BufferKind.ARENA, aligned(size), position, position)
            index = self.planner.add(buffer)
            workspaces.append(View(index, TensorType(DType.U8, (size,)), (1,)))
        first_error = len(self.planner.errors)
        self.planner.errors += [op.location] * lowered.errors
        for call in lowered.calls:
            self.planner.kernels.setdefault(call.source.name, call.source)
            arguments: list[View | ErrorFlag | int] = []
            for argument in call.arguments:
                if argument.kind == "error":
                    arguments.append(ErrorFlag(first_error + argument.index))
                elif argument.kind == "number":
                    arguments.append(argument.index)
                elif argument.kind == "workspace":
                    arguments.append(workspaces[argument.index])
                elif argument.kind == "result":
                    arguments.append(self._view(op.results[argument.index]))
                else:
                    operand = op.operands[argument.index]
                    assert isinstance(operand, Value)
                    arguments.append(self._view(operand))
            self.launches.append(
                Launch(
                    op.opcode,
                    call.source.name,
                    tuple(arguments),
                    tuple([self._view(result) for result in op.results]),
                    op.attributes,
                    op.location,
                    op.results[0].name,
                )
            )

    # -- the end of the entry

    def _write_updates(self) -> None:
        """New values of buffers are written last: every reader of the old ones is done by then."""
        for port in self.graph.outputs:
            if port.role is not Role.UPDATE:
                continue
            role_name, _, target = port.target.partition(":")
            outside = self.planner.outside(Port(port.value, Role(role_name), target))
            source = self._view(port.value)
            self.planner.extend(source.buffer, self.planner.position)
            written = View(outside, port.value.type, row_major(port.value.type.shape).strides)
            self.planner.moments.append(
                (self.graph.name, len(self.launches), self.planner.position)
            )
            self.launches.append(Launch("copy", None, (source,), (written,), label=port.target))
            self.planner.position += 1

    def _name_residual(self, index: int, port: Port) -> None:
        """A buffer that ops have written over in place bears the name of what is saved in it."""
        buffer = self.planner.buffers[index]
        if buffer.kind is BufferKind.ARENA and buffer.name != port.target:
            self.planner.buffers[index] = replace(buffer, name=port.target)

    def _results(self) -> tuple[Result, ...]:
        results: list[Result] = []
        for port in self.graph.outputs:
            view = self._view(port.value)
            if port.role is Role.RESIDUAL:
                root = self.layouts[port.value]
                self.planner._residuals[port.target] = (view.buffer, root.view)
                self.planner.extend(view.buffer, self.planner.position)
                self._name_residual(view.buffer, port)
            elif port.role is not Role.UPDATE:
                results.append(Result(port, view))
        return tuple(results)
