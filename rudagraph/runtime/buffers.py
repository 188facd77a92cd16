"""Memory of a step: arenas shared by all its signatures, and one frame of pointers per use.

A `Slot` is an arena and whoever still needs what lies in it. A `Frame` binds one signature's plan
to one slot: a block of kernel arguments with every pointer in it, and the tensors that library ops
see. Invariant: a frame holds no reference to anything returned once its entry has run.
"""

from __future__ import annotations

import gc
import threading
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rudagraph.errors import UsageError
from rudagraph.ir.graph import Role
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.runtime.devices import Device
from rudagraph.schedule.plan import BufferKind, ErrorFlag, Launch, Plan, View

Tensor = torch.Tensor
_NO_TENSOR = torch.empty(0, device="cpu")


class Slot:
    """One arena. `owner` is the forward whose residuals lie in it, until its backward has run."""

    def __init__(self) -> None:
        self.arena = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.generation = 0
        self.stream: Any = None  # the one that last worked here
        self._owner: weakref.ref[Any] | None = None

    @property
    def waiting(self) -> bool:
        """Whether a forward that can still be differentiated for the first time lies here."""
        owner = self._owner() if self._owner is not None else None
        return owner is not None and not owner.used

    @property
    def held(self) -> bool:
        """Whether some graph could still come back for what lies here."""
        return self._owner is not None and self._owner() is not None

    def own(self, owner: Any) -> None:
        self._owner = weakref.ref(owner)

    def release(self) -> None:
        self._owner = None

    def enter(self, size: int, device: Device) -> None:
        """Make room; whatever lay here is overwritten from now on."""
        self.generation += 1
        self._owner = None
        device.settle(self)
        if self.arena.numel() < size or self.arena.device != device.device:
            self.arena = device.empty(torch.uint8)  # free the old one first
            self.arena = device.empty(torch.uint8, size)


class Slots:
    """`in_flight` slots for forwards that wait for their backward, and a spare for all others."""

    def __init__(self, in_flight: int) -> None:
        self.in_flight = in_flight
        self.slots = [Slot()]
        self.spare = Slot()
        self.spare_uses = 0
        self.frames: list[Frame] = []  # of all signatures
        self.lock = threading.RLock()  # one entry at a time, whichever thread calls

    def for_training(self) -> Slot:
        """A slot whose residuals nobody waits for; UsageError where there is none."""
        slot = self._free()
        if slot is None:
            gc.collect()  # an abandoned forward may hang in a reference cycle
            slot = self._free()
        if slot is None:
            raise UsageError(
                f"{self.in_flight} forward call(s) wait for their backward, and the step keeps "
                f"residuals of no more (in_flight={self.in_flight})",
                "call of a step",
                f"call backward first, drop the earlier outputs, use torch.no_grad() where no "
                f"gradient is needed, or compile with "
                f"StaticGraph(model, in_flight={self.in_flight + 1})",
            )
        return slot

    def for_evaluation(self) -> Slot:
        """A slot to run forward in without touching residuals that someone waits for."""
        for slot in self.slots:
            if not slot.held:
                return slot
        self.spare_uses += 1
        return self.spare

    def enter(self, slot: Slot, size: int, device: Device) -> None:
        """Make room in a slot; no frame keeps the arena alive that was too small."""
        if slot.arena.numel() < size:
            self._unbind(slot)
        slot.enter(size, device)

    def left(self, slot: Slot) -> None:
        """After a forward that keeps nothing: the spare slot's memory goes back at once."""
        if slot is self.spare:
            self._unbind(slot)
            slot.arena = slot.arena.new_empty(0)

    def _unbind(self, slot: Slot) -> None:
        for frame in self.frames:
            if frame.slot is slot:
                frame.unbind_arena()

    def weights_moved(self, frame: Frame) -> None:
        """One frame found the model's tensors elsewhere: no other may keep the old ones alive."""
        for other in self.frames:
            if other is not frame and not other.slot.held:
                other.unbind_weights()

    def _free(self) -> Slot | None:
        for slot in self.slots:
            if not slot.held:
                return slot
        if len(self.slots) < self.in_flight:
            self.slots.append(Slot())
            return self.slots[-1]
        return next((slot for slot in self.slots if not slot.waiting), None)


@dataclass(frozen=True)
class Use:
    """A kernel argument that points into a buffer: its place in the block, its offset in bytes."""

    position: int
    offset: int


class PointerTable:
    """Where every buffer of a plan appears; computed once for all frames."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.uses: dict[int, list[Use]] = {}
        self.slots: dict[View, int] = {}
        self.views: dict[int, list[tuple[int, View]]] = {}
        self.error_uses: list[Use] = []
        self.numbers: list[tuple[int, int]] = []  # place in the block, the number itself
        self.starts: dict[int, int] = {}  # id of a launch -> where its arguments begin
        self.length = 0
        entries = [plan.forward, *([plan.backward] if plan.backward else [])]
        for entry in entries:
            for launch in entry.launches:
                self._launch(launch)
            for result in entry.results:
                self.slot(result.view)

    def slot(self, view: View) -> int:
        """The number of a view's tensor in a frame."""
        number = self.slots.get(view)
        if number is None:
            number = self.slots[view] = len(self.slots)
            self.views.setdefault(view.buffer, []).append((number, view))
        return number

    def slots_of(self, buffers: Sequence[int]) -> list[int]:
        """The slots of all views of these buffers."""
        return [slot for buffer in buffers for slot, _ in self.views.get(buffer, ())]

    @property
    def weight_slots(self) -> list[int]:
        roles = (Role.PARAMETER, Role.BUFFER)
        return self.slots_of(
            [i for i, b in enumerate(self.plan.buffers) if b.port and b.port.role in roles]
        )

    def _launch(self, launch: Launch) -> None:
        if launch.kernel is None:
            for argument in (*launch.arguments, *launch.results):
                if isinstance(argument, View):
                    self.slot(argument)
            return
        self.starts[id(launch)] = self.length
        for argument in launch.arguments:
            if isinstance(argument, View):
                use = Use(self.length, argument.offset * argument.type.dtype.size)
                self.uses.setdefault(argument.buffer, []).append(use)
                if self.plan.buffers[argument.buffer].kind is BufferKind.APART:
                    self.slot(argument)  # a tensor must hold the memory
            elif isinstance(argument, ErrorFlag):
                self.error_uses.append(Use(self.length, 16 * argument.index))
            elif isinstance(argument, int):
                self.numbers.append((self.length, argument))
            self.length += 1


class Frame:
    """A plan bound to a slot's arena."""

    def __init__(self, table: PointerTable, slot: Slot, device: Device) -> None:
        self.table = table
        self.slot = slot
        self.device = device
        self.block = array("q", bytes(8 * max(table.length, 1)))
        self.address = self.block.buffer_info()[0]
        self.tensors: list[Any] = [None] * len(table.slots)
        self._flags, self.errors = device.flags(len(table.plan.errors))
        self.no_errors = self.errors.tobytes()  # a call compares bytes in a tenth of the time
        self.pointers: list[int] = []  # of the weights, as bound
        self.weights: list[Tensor] = []  # aliases of them: memory stays while it is pointed at
        self.copied: dict[int, Tensor] = {}  # row-major copies of weights, by buffer
        self.key = _NO_TENSOR
        self.forward: Any = None
        self.backward: Any = None
        self.graphs: Any = None  # captured entries, on a GPU
        self.retained = False  # the backward that runs must leave the residuals as they are
        self._arena_pointer = -1
        for position, number in table.numbers:
            self.block[position] = number
        address = self._flags.data_ptr()
        for use in table.error_uses:
            self.block[use.position] = address + use.offset

    def bind_arena(self) -> None:
        """Point at the slot's arena, if it is another one than before."""
        arena = self.slot.arena
        pointer = arena.data_ptr()
        if pointer == self._arena_pointer:
            return
        self._arena_pointer = pointer
        if self.graphs is not None:
            self.graphs.reset()
        for index, buffer in enumerate(self.table.plan.buffers):
            if buffer.kind is not BufferKind.ARENA:
                continue
            for use in self.table.uses.get(index, ()):
                self.block[use.position] = pointer + buffer.offset + use.offset
            for slot, view in self.table.views.get(index, ()):
                dtype = to_torch_dtype(view.type.dtype)
                offset = buffer.offset // view.type.dtype.size + view.offset
                tensor = self.device.empty(dtype)
                tensor.set_(arena.untyped_storage(), offset, view.type.shape, view.strides)
                self.tensors[slot] = tensor

    def unbind_arena(self) -> None:
        """Let go of the arena, so that its memory can be freed; the next call binds it again."""
        self._arena_pointer = -1
        kinds = enumerate(self.table.plan.buffers)
        self.forget(self.table.slots_of([i for i, b in kinds if b.kind is BufferKind.ARENA]))

    def bind(self, buffer: int, tensor: Tensor) -> None:
        """Point at a tensor that holds the whole buffer, row-major from its start."""
        pointer = tensor.data_ptr()
        for use in self.table.uses.get(buffer, ()):
            self.block[use.position] = pointer + use.offset
        for slot, view in self.table.views.get(buffer, ()):
            self.tensors[slot] = view_of(tensor, view)

    def bind_root(self, buffer: int, view: View, tensor: Tensor) -> None:
        """Point at a buffer through a tensor that lies as `view` says."""
        if view.offset == 0:
            self.bind(buffer, tensor)
            return
        start = int(tensor.storage_offset()) - view.offset
        self.bind(buffer, tensor.as_strided(view.type.shape, view.strides, start))

    def unbind_weights(self) -> None:
        """Let go of the model's tensors; the next call binds them again."""
        self.pointers = []
        self.weights = []
        self.copied = {}
        self.forget(self.table.weight_slots)

    def forget(self, slots: Sequence[int]) -> None:
        """Drop these tensors."""
        tensors = self.tensors
        for slot in slots:
            tensors[slot] = None


def view_of(tensor: Tensor, view: View) -> Tensor:
    """The plan's view over the tensor that holds its buffer."""
    if view.offset == 0 and tensor.shape == view.type.shape and tensor.stride() == view.strides:
        return tensor
    return tensor.as_strided(
        view.type.shape, view.strides, int(tensor.storage_offset()) + view.offset
    )
