"""What each buffer of a plan is outside the step, found once when a program is bound.

Input: a program and the places of the model's tensors. Output: flat lists that the executor walks
at each call. Invariant: a program whose plan and contract do not fit is refused here, not later.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Role
from rudagraph.runtime.buffers import PointerTable
from rudagraph.runtime.devices import Device
from rudagraph.schedule.plan import BufferKind, Entry, Plan, View
from rudagraph.schedule.program import Program


class Wiring:
    """Buffers by what they are bound to, and what backward needs of forward."""

    def __init__(
        self,
        program: Program,
        table: PointerTable,
        weight_index: Mapping[str, int],
        device: Device,
    ) -> None:
        self.plan: Plan = program.plan
        self.device = device
        self.arguments: list[tuple[int, int]] = []  # (leaf, buffer)
        self.weights: list[tuple[int, int]] = []  # (place among the model's tensors, buffer)
        self.constants: list[tuple[int, torch.Tensor]] = []
        self.tangents: dict[str, int] = {}
        self.keys: list[int] = []
        paths = [leaf.path for leaf in program.contract.leaves]
        for index, buffer in enumerate(self.plan.buffers):
            if buffer.kind is BufferKind.BOUND:
                self._bind(program, index, paths, weight_index)
        self.own_weights = picker([place for place, _ in self.weights])
        self._find_saved()
        self._find_results(program, table)
        self._find_gradients(program, table)
        self._find_written()
        # What a frame lets go of after a call: everything, or all but residuals.
        self.dynamic_slots = table.slots_of(self.dynamic)
        self.forgotten_slots = table.slots_of(self.forgotten)

    def _bind(
        self, program: Program, index: int, paths: list[str], weight_index: Mapping[str, int]
    ) -> None:
        buffer = self.plan.buffers[index]
        if buffer.port is None:
            raise VerifyError(f"buffer {buffer.name} is bound to nothing")
        target = buffer.port.target
        match buffer.port.role:
            case Role.ARGUMENT:
                self.arguments.append((paths.index(target), index))
            case Role.PARAMETER | Role.BUFFER:
                self.weights.append((weight_index[target], index))
            case Role.CONSTANT:
                constant = program.constants[target].to(self.device.device).contiguous()
                self.constants.append((index, constant))
            case Role.TANGENT:
                self.tangents[target] = index
            case Role.KEY:
                self.keys.append(index)
            case role:
                raise VerifyError(f"buffer {buffer.name} is bound to a {role.value}")

    def _find_saved(self) -> None:
        """What backward reads of what forward had: arguments, weights, library results."""
        buffers = self.plan.buffers
        self.read_back = _read(self.plan, self.plan.backward)
        self.saved_arguments = [pair for pair in self.arguments if pair[1] in self.read_back]
        saved_weights = [pair for pair in self.weights if pair[1] in self.read_back]
        positions = {buffer: at for at, (_, buffer) in enumerate(self.weights)}
        # Of the weights as bound, what backward reads: an update in between would falsify it.
        self.saved_weights = picker([positions[buffer] for _, buffer in saved_weights])
        self.saved_names = [buffers[buffer].name for _, buffer in saved_weights]
        outside = (Role.ARGUMENT, Role.TANGENT)
        # Everything that a frame must let go of, and what of it stays for backward.
        self.dynamic = [
            index
            for index, buffer in enumerate(buffers)
            if buffer.kind in (BufferKind.OUTPUT, BufferKind.LIBRARY, BufferKind.APART)
            or (buffer.port is not None and buffer.port.role in outside)
        ]
        kept = {
            index
            for index, buffer in enumerate(buffers)
            if buffer.kind in (BufferKind.LIBRARY, BufferKind.APART) and index in self.read_back
        }
        self.forgotten = [index for index in self.dynamic if index not in kept]
        backward = self.plan.backward.launches if self.plan.backward else ()
        written = {view.buffer for launch in backward for view in launch.results}
        # What a backward that keeps its graph has to put back, beside the arena.
        self.overwritten = sorted(i for i in kept & written if buffers[i].kind is BufferKind.APART)

    def _find_results(self, program: Program, table: PointerTable) -> None:
        """Results in the template's order, and those that backward reads."""
        wanted = [leaf.path for leaf in program.template.leaves]
        found = {result.port.target: result.view for result in self.plan.forward.results}
        missing = [path for path in wanted if path not in found]
        if missing:
            raise VerifyError(f"the plan has no result {missing[0]!r}")
        self.result_views = [found[path] for path in wanted]
        self.result_slots = [table.slot(view) for view in self.result_views]
        self.saved_results: list[tuple[int, int]] = []  # (position, buffer)
        self.own_copies: list[int] = []  # results that are constants of ours or in the arena
        seen: set[int] = set()
        for position, view in enumerate(self.result_views):
            buffer = self.plan.buffers[view.buffer]
            constant = buffer.port is not None and buffer.port.role is Role.CONSTANT
            if buffer.kind is BufferKind.ARENA or (buffer.kind is BufferKind.BOUND and constant):
                self.own_copies.append(position)
            elif buffer.kind is BufferKind.OUTPUT and view.buffer in self.read_back - seen:
                self.saved_results.append((position, view.buffer))
                seen.add(view.buffer)
        self.tangent_buffers = [self.tangents.get(path) for path in wanted]

    def _find_gradients(self, program: Program, table: PointerTable) -> None:
        """(target, slot, must be copied, results whose upstream gradient it needs) of each.

        Those of arguments come first.
        """
        positions = {leaf.path: at for at, leaf in enumerate(program.template.leaves)}
        sources = dict(program.gradient_sources)
        self.gradients: list[tuple[str, int, bool, list[int]]] = []
        forward = self.plan.forward
        # What forward made or returned is the caller's, or is needed if the graph is retained.
        given = {view.buffer for launch in forward.launches for view in launch.results}
        given |= {result.view.buffer for result in forward.results}
        for result in self.plan.backward.results if self.plan.backward else ():
            target, view = result.port.target, result.view
            owned = self.plan.buffers[view.buffer].kind in (BufferKind.OUTPUT, BufferKind.LIBRARY)
            copied = not owned or view.buffer in given
            given.add(view.buffer)
            needs = [positions[path] for path in sources.get(target, ()) if path in positions]
            self.gradients.append((target, table.slot(view), copied, needs))
        self.gradients.sort(key=lambda item: not item[0].startswith("argument:"))
        self.gradient_slots = [slot for _, slot, _, _ in self.gradients]
        self.gradient_copies = [at for at, (_, _, copied, _) in enumerate(self.gradients) if copied]

    def _find_written(self) -> None:
        """The model's buffers and the arguments that forward changes."""
        written = {view.buffer for launch in self.plan.forward.launches for view in launch.results}
        for index in sorted(written & self.read_back):
            if self.plan.buffers[index].kind is BufferKind.BOUND:
                raise VerifyError(
                    f"{self.plan.buffers[index].name} is written by forward and read by backward",
                    hint="its old value must be kept as a residual",
                )
        self.written_arguments = [pair for pair in self.arguments if pair[1] in written]
        self.written_weights = frozenset(buffer for _, buffer in self.weights if buffer in written)


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The items at these places of a sequence, many at once: a call asks for all weights."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda items: [items[place] for place in places]


def _read(plan: Plan, entry: Entry | None) -> set[int]:
    """Buffers made elsewhere that an entry reads or returns."""
    if entry is None:
        return set()
    read = {
        argument.buffer
        for launch in entry.launches
        for argument in launch.arguments
        if isinstance(argument, View)
    }
    made = {view.buffer for launch in entry.launches for view in launch.results}
    # What it writes over in place, it has read: forward made it.
    given = {view.buffer for launch in plan.forward.launches for view in launch.results}
    own = _first_made(entry, made) - given
    return (read | {result.view.buffer for result in entry.results}) - own


def _first_made(entry: Entry, made: set[int]) -> set[int]:
    """Buffers that the entry writes before it reads them: kernels list results as arguments too."""
    seen: set[int] = set()
    own: set[int] = set()
    for launch in entry.launches:
        results = {view.buffer for view in launch.results}
        own |= results - seen
        seen |= results
        seen |= {a.buffer for a in launch.arguments if isinstance(a, View)}
    return own & made
