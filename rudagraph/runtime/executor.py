"""Runs the two entries of a program; everything was decided when the plan was bound.

Input: tensors of a call, or upstream gradients. Output: results, or gradients, in memory that
belongs to nobody else. A frame's entry is a list of functions without arguments: launch a kernel,
run a library op, allocate an output, drop a tensor. Invariant: after an error nothing waits, no
buffer of the model has changed, and the next call works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from rudagraph.errors import RudagraphError, UsageError
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.runtime.arguments import refuse_overlap
from rudagraph.runtime.buffers import Frame, PointerTable, Slot, Slots
from rudagraph.runtime.cuda_graph import Graphs, Pair
from rudagraph.runtime.devices import device_of
from rudagraph.runtime.entries import BoundEntry, EntryPlan, entry_steps, raise_errors
from rudagraph.runtime.faults import located, raise_if_out_of_memory
from rudagraph.runtime.wiring import Wiring
from rudagraph.schedule.program import Program

Tensor = torch.Tensor
_FREED = -1
_data_ptr = torch._C.TensorBase.data_ptr  # the method itself: a call asks it of every weight


class Pending:
    """A forward whose backward may come: where its residuals are and what they rely on."""

    __slots__ = (
        "__weakref__",
        "copies",
        "frame",
        "generation",
        "pair",
        "results",
        "saved",
        "used",
        "versions",
        "weights",
    )

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.generation = frame.slot.generation
        self.used = False  # a backward has begun
        self.pair: Pair | None = None  # of CUDA graphs, if forward was replayed
        self.results: list[Tensor] = []
        self.saved: list[Tensor] = []  # for autograd to keep: arguments and results
        self.copies: dict[int, Tensor] = {}  # row-major copies of arguments, by buffer
        self.weights: Sequence[Tensor] = ()  # the model's tensors that backward reads
        self.versions: list[int] = []


class Executor:
    """One program, its kernels and its frames.

    `weight_index` maps parameter and buffer paths to places in the list of the model's tensors
    that each call brings.
    """

    def __init__(
        self,
        program: Program,
        launchers: Mapping[str, Any],
        weight_index: Mapping[str, int],
        slots: Slots,
    ) -> None:
        plan = program.plan
        self.program = program
        self.launchers = launchers
        self.slots = slots
        self.table = PointerTable(plan)
        self.device = device_of(program.contract.device, program.deterministic)
        self.wiring = Wiring(program, self.table, weight_index, self.device)
        self._forward = EntryPlan(plan, self.table, plan.forward, plan.backward)
        self._backward = EntryPlan(plan, self.table, plan.backward, None) if plan.backward else None
        self._frames: dict[int, Frame] = {}
        self._result_types = [view.type for view in self.wiring.result_views]

    # ---- forward

    def forward(self, leaves: list[Tensor], weights: list[Tensor], keep: bool) -> Pending:
        """Run the forward entry; with `keep`, its residuals stay until `backward`."""
        try:
            with self.device.entered():
                return self._forward_on_device(leaves, weights, keep)
        except RuntimeError as error:
            raise_if_out_of_memory(error, self.program.plan, self.device, "forward")
            raise

    def _forward_on_device(
        self, leaves: list[Tensor], weights: list[Tensor], keep: bool
    ) -> Pending:
        wiring = self.wiring
        slot = self.slots.for_training() if keep else self.slots.for_evaluation()
        frame = self._frame(slot, weights)
        pending = Pending(frame)
        try:
            for place, _ in wiring.written_arguments:
                refuse_overlap(self.program.contract.leaves[place].path, leaves, place, weights)
            if wiring.keys:
                self.device.draw(frame.key)
            begun = frame.graphs and frame.graphs.forward(pending.copies, leaves)
            if begun:
                pending.pair, pending.results = begun
            else:
                pending.results = self._forward_directly(pending, leaves, keep)
            self._write_back(pending, leaves, weights)
            if keep:
                self._keep(pending, leaves)
        finally:
            if not keep:
                self.slots.left(slot)
        return pending

    def _forward_directly(self, pending: Pending, leaves: list[Tensor], keep: bool) -> list[Tensor]:
        frame, wiring = pending.frame, self.wiring
        forgotten = wiring.dynamic_slots
        try:
            self._bind_arguments(pending, leaves)
            self._run(frame.forward)
            results = [frame.tensors[number] for number in wiring.result_slots]
            for position in wiring.own_copies:
                results[position] = results[position].clone()
            if keep:
                forgotten = wiring.forgotten_slots
            return results
        finally:
            frame.forget(forgotten)

    def _frame(self, slot: Slot, weights: list[Tensor]) -> Frame:
        self.slots.enter(slot, self.program.plan.arena_bytes, self.device)
        frame = self._frames.get(id(slot))
        if frame is None:
            frame = self._frames[id(slot)] = self._new_frame(slot)
        frame.bind_arena()
        if self.device.is_late:
            raise_errors(self.program.plan, frame)
        pointers = list(map(_data_ptr, self.wiring.own_weights(weights)))
        if pointers != frame.pointers or frame.copied:
            moved = bool(frame.pointers) and pointers != frame.pointers
            if pointers != frame.pointers and frame.graphs is not None:
                frame.graphs.reset()
            self._bind_weights(frame, weights)
            frame.pointers = pointers
            if moved:
                self.slots.weights_moved(frame)
        return frame

    def _new_frame(self, slot: Slot) -> Frame:
        frame = Frame(self.table, slot, self.device)
        for buffer, tensor in self.wiring.constants:
            frame.bind(buffer, tensor)
        for buffer in self.wiring.keys:
            frame.key = self.device.zeros((), torch.int64)
            frame.bind(buffer, frame.key)
        frame.forward = entry_steps(self._forward, frame, self.launchers)
        if self._backward is not None:
            frame.backward = entry_steps(self._backward, frame, self.launchers)
        if self.device.type == "cuda":
            frame.graphs = Graphs(frame, self.wiring, self._run)
        self.slots.frames.append(frame)
        return frame

    def _bind_weights(self, frame: Frame, weights: list[Tensor]) -> None:
        before, frame.copied = frame.copied, {}
        frame.weights = [weight.detach() for weight in self.wiring.own_weights(weights)]
        for (_, buffer), tensor in zip(self.wiring.weights, frame.weights, strict=True):
            if not self.device.lies_well(tensor):
                # In the same memory again, to which captured launches point.
                copy = before.get(buffer)
                tensor = self.device.laid_out(tensor) if copy is None else copy.copy_(tensor)
                frame.copied[buffer] = tensor
            frame.bind(buffer, tensor)

    def _bind_arguments(self, pending: Pending, leaves: list[Tensor]) -> None:
        frame = pending.frame
        for place, buffer in self.wiring.arguments:
            leaf = leaves[place].detach()
            if not self.device.lies_well(leaf):
                leaf = pending.copies[buffer] = self.device.laid_out(leaf)
            frame.bind(buffer, leaf)

    def _write_back(self, pending: Pending, leaves: list[Tensor], weights: list[Tensor]) -> None:
        """What forward wrote into row-major copies goes to the tensors they were made of."""
        for place, buffer in self.wiring.written_arguments:
            if buffer in pending.copies:
                leaves[place].copy_(pending.copies[buffer])
        if pending.frame.copied:
            for place, buffer in self.wiring.weights:
                if buffer in self.wiring.written_weights and buffer in pending.frame.copied:
                    weights[place].copy_(pending.frame.copied[buffer])

    def _keep(self, pending: Pending, leaves: list[Tensor]) -> None:
        wiring = self.wiring
        if pending.copies:
            saved = {buffer for _, buffer in wiring.saved_arguments}
            pending.copies = {b: copy for b, copy in pending.copies.items() if b in saved}
        copies = pending.copies
        pending.saved = [leaves[place] for place, b in wiring.saved_arguments if b not in copies]
        pending.saved += [pending.results[position] for position, _ in wiring.saved_results]
        pending.weights = wiring.saved_weights(pending.frame.weights)
        pending.versions = [tensor._version for tensor in pending.weights]
        pending.frame.slot.own(pending)

    # ---- backward

    def backward(
        self,
        pending: Pending,
        saved: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        retain: bool,
    ) -> list[Tensor | None]:
        """Gradients in the wiring's order; None where no upstream gradient reaches one."""
        pending.used = True
        try:
            return self._backward_on_device(pending, saved, tangents, retain)
        except RuntimeError as error:
            raise_if_out_of_memory(error, self.program.plan, self.device, "backward")
            raise

    def _backward_on_device(
        self,
        pending: Pending,
        saved: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        retain: bool,
    ) -> list[Tensor | None]:
        with self.slots.lock, self.device.entered():
            self._check_residuals(pending)
            self.device.settle(pending.frame.slot)
            if self.device.is_late:
                raise_errors(self.program.plan, pending.frame)
            if not retain:
                return self._run_backward(pending, saved, tangents, retain)
            # Backward reuses the memory of residuals that it has read.
            before = [(memory, memory.clone()) for memory in self._reused(pending)]
            try:
                return self._run_backward(pending, saved, tangents, retain)
            finally:
                for memory, copy in before:
                    memory.copy_(copy)

    def _reused(self, pending: Pending) -> list[Tensor]:
        """Memory of residuals that backward writes over."""
        frame = pending.frame
        if pending.pair is not None:
            pending.pair.restore(frame)
        slots = [self.table.slots_of([buffer])[0] for buffer in self.wiring.overwritten]
        storages = [frame.tensors[slot].untyped_storage() for slot in slots]
        return [frame.slot.arena, *(self.device.empty(torch.uint8).set_(s) for s in storages)]

    def _run_backward(
        self,
        pending: Pending,
        saved: Sequence[Tensor],
        tangents: Sequence[Tensor | None],
        retain: bool,
    ) -> list[Tensor | None]:
        frame = pending.frame
        frame.retained = retain
        try:
            upstream = [  # held here: kernels see pointers only
                (buffer, self._tangent(position, tangents[position]))
                for position, buffer in enumerate(self.wiring.tangent_buffers)
                if buffer is not None
            ]
            gradients: list[Tensor | None] | None = None
            if pending.pair is not None and not retain:
                bind = partial(self._bind_saved, pending, saved)
                gradients = frame.graphs.backward(pending.pair, upstream, bind)
            if gradients is None:
                gradients = self._backward_directly(pending, saved, upstream)
            return self._reached(gradients, tangents)
        finally:
            if not retain:
                frame.slot.release()
                pending.generation = _FREED
                pending.copies = {}
                pending.weights = ()

    def _backward_directly(
        self, pending: Pending, saved: Sequence[Tensor], upstream: list[tuple[int, Tensor]]
    ) -> list[Tensor | None]:
        frame, wiring = pending.frame, self.wiring
        # What a graph's forward left is in its pair; what a direct one left is in the frame only.
        stays = frame.retained and pending.pair is None
        try:
            if pending.pair is not None:
                pending.pair.restore(frame)
            self._bind_saved(pending, saved)
            for buffer, tangent in upstream:
                frame.bind(buffer, tangent)
            self._run(frame.backward)
            if frame.graphs is not None:
                frame.graphs.ran_backward = True
            return self._gradients(frame)
        finally:
            frame.forget(wiring.forgotten_slots if stays else wiring.dynamic_slots)

    def refuse_freed(self, pending: Pending) -> None:
        """Two outputs that share nothing in eager still share the one backward of a step."""
        if pending.generation == _FREED:
            raise UsageError(
                "backward was called a second time, and the residuals of the step are freed",
                "backward of a step, which is one for all its outputs",
                "call backward once, on the sum of the losses, "
                "or pass retain_graph=True to the first backward",
            )

    def _check_residuals(self, pending: Pending) -> None:
        self.refuse_freed(pending)
        if pending.generation != pending.frame.slot.generation:
            raise UsageError(
                "a later forward call has overwritten the residuals of this one",
                "backward of a step",
                f"compile with StaticGraph(model, in_flight={self.slots.in_flight + 1})",
            )
        versions = [tensor._version for tensor in pending.weights]
        if versions != pending.versions:
            changed = zip(self.wiring.saved_names, pending.versions, versions, strict=True)
            name = next(name for name, before, now in changed if before != now)
            raise UsageError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: {name} changed between forward and backward",
                "backward of a step",
                "call backward before optimizer.step(), or run forward again",
            )

    def _bind_saved(self, pending: Pending, saved: Sequence[Tensor]) -> None:
        frame, wiring = pending.frame, self.wiring
        remaining = iter(saved)
        for _, buffer in wiring.saved_arguments:
            copy = pending.copies.get(buffer)
            frame.bind(buffer, next(remaining).detach() if copy is None else copy)
        for position, buffer in wiring.saved_results:
            frame.bind_root(buffer, wiring.result_views[position], next(remaining).detach())

    def _tangent(self, position: int, tangent: Tensor | None) -> Tensor:
        if tangent is not None:
            return self.device.laid_out(tangent)
        kind = self._result_types[position]
        return self.device.zeros(kind.shape, to_torch_dtype(kind.dtype))

    def _gradients(self, frame: Frame) -> list[Tensor | None]:
        gradients = [frame.tensors[slot] for slot in self.wiring.gradient_slots]
        for place in self.wiring.gradient_copies:
            gradients[place] = gradients[place].clone()
        return gradients

    def _reached(
        self, gradients: list[Tensor | None], tangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """None for what no upstream gradient reaches, as autograd has it."""
        wiring = self.wiring
        if any(tangent is None for tangent in tangents):
            for place, (_, _, _, needs) in enumerate(wiring.gradients):
                if needs and all(tangents[position] is None for position in needs):
                    gradients[place] = None
        return gradients

    # ---- running

    def synchronize(self) -> None:
        """Wait for all work; raises what a kernel has found wrong."""
        self.device.synchronize()
        for frame in self._frames.values():
            raise_errors(self.program.plan, frame)

    def _run(self, entry: BoundEntry) -> None:
        context = entry.device.context()
        if context != entry.context:
            entry.bind(context)
        step: Callable[[], object] | None = None
        try:
            for step in entry.steps:
                step()
        except RudagraphError:
            raise
        except (IndexError, RuntimeError, ValueError, TypeError) as error:
            raise located(entry, step, error) from error
