"""One entry of a plan as a list of functions without arguments, bound to a frame.

`EntryPlan` finds once when outputs are allocated and library results dropped; `entry_steps` makes
the functions. Invariant: a step reads only its frame, so running an entry is running the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rudagraph.errors import ContractError
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import TensorType, row_major_strides
from rudagraph.runtime.buffers import Frame, PointerTable
from rudagraph.runtime.devices import Device
from rudagraph.runtime.library import maker, product, writer
from rudagraph.schedule.plan import BufferKind, Entry, ErrorFlag, Launch, Plan, View

Tensor = torch.Tensor
Step = Callable[[], object]
_DROPPED = (BufferKind.LIBRARY, BufferKind.APART)


class EntryPlan:
    """An entry, and which buffers appear and disappear at each of its launches."""

    def __init__(self, plan: Plan, table: PointerTable, entry: Entry, later: Entry | None) -> None:
        self.plan = plan
        self.table = table
        self.entry = entry
        self.allocations: list[list[int]] = [[] for _ in entry.launches]
        self.drops: list[list[int]] = [[] for _ in entry.launches]
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, launch in enumerate(entry.launches):
            for buffer in _buffers(launch):
                first.setdefault(buffer, position)
                last[buffer] = position
        returned = {result.view.buffer for result in entry.results}
        kept = set(returned)
        for launch in later.launches if later else ():
            kept.update(_buffers(launch))
        if later:
            kept.update(result.view.buffer for result in later.results)
        elsewhere = _made_before(plan, entry)
        # An op without elements has no launch: its results are there from the start.
        self.initial: list[int] = []
        self.products: set[int] = set()  # launches that allocate what they could write into
        for buffer in sorted(returned - elsewhere):
            if plan.buffers[buffer].kind is not BufferKind.OUTPUT:
                continue
            position = first.get(buffer, -1)
            if position < 0:
                self.initial.append(buffer)
            elif not self._is_given(entry.launches[position], buffer):
                self.allocations[position].append(buffer)
            elif writer(entry.launches[position]) is not None:
                self.products.add(position)
        for buffer, position in first.items():
            if plan.buffers[buffer].kind is BufferKind.APART and buffer not in elsewhere:
                self.allocations[position].append(buffer)
        for buffer, position in last.items():
            if plan.buffers[buffer].kind in _DROPPED and buffer not in kept:
                self.drops[position].append(buffer)
        self.returned: dict[int, list[View]] = {}
        for result in entry.results:
            views = self.returned.setdefault(result.view.buffer, [])
            if result.view not in views:
                views.append(result.view)

    def _is_given(self, launch: Launch, buffer: int) -> bool:
        """Whether the launch brings the buffer's memory itself."""
        made = any(view.buffer == buffer for view in launch.results)
        if not made or launch.kernel is not None:
            return False
        if writer(launch) is None:
            return True
        view = launch.results[0]
        whole = view.offset == 0 and view.strides == row_major_strides(view.type.shape)
        fills = view.type.bytes == self.plan.buffers[buffer].bytes > 0
        return whole and fills and product(launch) is not None


class BoundEntry:
    """The steps of one frame's entry. Kernel steps are made anew when their context changes:

    the number of threads on a CPU, the stream on a GPU.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.context = device.context()
        self.steps: list[Step] = []
        self._kernels: list[tuple[int, Callable[[int], Step]]] = []
        self._launches: dict[int, Launch] = {}

    def add(self, step: Step, launch: Launch | None = None) -> None:
        if launch is not None:
            self._launches[id(step)] = launch
        self.steps.append(step)

    def add_kernel(self, launcher: Any, address: int, launch: Launch) -> None:
        bind = self.device.binder(launcher, address)
        self._kernels.append((len(self.steps), bind))
        self.add(bind(self.context), launch)

    def bind(self, context: int) -> None:
        self.context = context
        for position, bind in self._kernels:
            launch = self._launches.pop(id(self.steps[position]))
            self.steps[position] = bind(context)
            self._launches[id(self.steps[position])] = launch

    def launch_of(self, step: Step | None) -> Launch | None:
        return self._launches.get(id(step))


def entry_steps(plan: EntryPlan, frame: Frame, launchers: Mapping[str, Any]) -> BoundEntry:
    """All steps of an entry, in order."""
    bound = BoundEntry(frame.device)
    # Late flags are looked at when the next entry starts.
    checked = frame.device.is_late or not any(
        isinstance(argument, ErrorFlag)
        for launch in plan.entry.launches
        for argument in launch.arguments
    )
    for buffer in plan.initial:
        bound.add(_allocate(plan, frame, buffer))
    for position, launch in enumerate(plan.entry.launches):
        for buffer in plan.allocations[position]:
            bound.add(_allocate(plan, frame, buffer))
        if not checked and _writes_outside(plan.plan, launch):
            bound.add(_check_errors(plan, frame))  # before the model's own buffers change
            checked = True
        if launch.kernel is not None:
            address = frame.address + 8 * plan.table.starts[id(launch)]
            bound.add_kernel(launchers[launch.kernel], address, launch)
            for view in launch.results:
                if plan.plan.buffers[view.buffer].kind is BufferKind.BOUND:
                    bound.add(_mark_changed(frame, plan.table.slot(view)))
        else:
            bound.add(_library_step(plan, frame, launch, position in plan.products), launch)
        if plan.drops[position]:
            bound.add(_drop(plan, frame, plan.drops[position]))
    if not checked:
        bound.add(_check_errors(plan, frame))
    return bound


def _buffers(launch: Launch) -> list[int]:
    views = (*launch.arguments, *launch.results)
    return [view.buffer for view in views if isinstance(view, View)]


def _made_before(plan: Plan, entry: Entry) -> set[int]:
    """Buffers that forward makes, seen from backward; none seen from forward."""
    if entry is plan.forward:
        return set()
    made = {view.buffer for launch in plan.forward.launches for view in launch.results}
    return made | {result.view.buffer for result in plan.forward.results}


def _writes_outside(plan: Plan, launch: Launch) -> bool:
    return any(plan.buffers[view.buffer].kind is BufferKind.BOUND for view in launch.results)


def _mark_changed(frame: Frame, slot: int) -> Step:
    """A kernel's write is unknown to autograd; say so, as PyTorch's own ops do."""
    tensors = frame.tensors
    return lambda: torch.autograd.graph.increment_version(tensors[slot])


# ---- memory


def _allocate(plan: EntryPlan, frame: Frame, buffer: int) -> Step:
    """A fresh tensor for an output, shaped as it is returned if one view returns all of it."""
    whole, kind = _root(plan, buffer)
    shape, dtype = kind.shape, to_torch_dtype(kind.dtype)
    strides = row_major_strides(shape)
    empty = frame.device.empty_strided
    uses = [(use.position, use.offset) for use in plan.table.uses.get(buffer, ())]
    block, tensors = frame.block, frame.tensors
    if whole is not None:
        only = plan.table.views.get(buffer, [])
        if len(only) == 1:
            slot = only[0][0]

            def allocate_whole() -> None:
                tensor = tensors[slot] = empty(shape, strides, dtype)
                pointer = tensor.data_ptr()
                for position, offset in uses:
                    block[position] = pointer + offset

            return allocate_whole
        return lambda: frame.bind(buffer, empty(shape, strides, dtype))
    single = plan.returned.get(buffer, [])

    def allocate() -> None:
        root = empty(shape, strides, dtype)
        frame.bind(buffer, root)
        if len(single) == 1:
            # Returned through one view only: a tensor of its own, so that it may be changed.
            view = single[0]
            tensor = frame.device.empty(dtype)
            tensor.set_(root.untyped_storage(), view.offset, view.type.shape, view.strides)
            tensors[plan.table.slot(view)] = tensor

    return allocate


def _root(plan: EntryPlan, buffer: int) -> tuple[View | None, TensorType]:
    """The view that shows a buffer whole and row-major, if any, and the type to allocate."""
    views = [view for _, view in plan.table.views.get(buffer, [])]
    for view in views:
        size = plan.plan.buffers[buffer].bytes
        row_major = view.strides == row_major_strides(view.type.shape)
        if view.offset == 0 and row_major and view.type.bytes == size:
            return view, view.type
    dtype = views[0].type.dtype
    return None, TensorType(dtype, (plan.plan.buffers[buffer].bytes // dtype.size,))


def _drop(plan: EntryPlan, frame: Frame, buffers: list[int]) -> Step:
    """Let go of library results; residuals only if no further backward will ask for them."""
    before = _made_before(plan.plan, plan.entry)
    own = plan.table.slots_of([buffer for buffer in buffers if buffer not in before])
    residuals = plan.table.slots_of([buffer for buffer in buffers if buffer in before])
    tensors = frame.tensors

    def drop() -> None:
        for slot in own:
            tensors[slot] = None
        if residuals and not frame.retained:
            for slot in residuals:
                tensors[slot] = None

    return drop


# ---- library ops


def _library_step(plan: EntryPlan, frame: Frame, launch: Launch, allocates: bool) -> Step:
    tensors = frame.tensors
    write = writer(launch)
    if allocates:
        return _product_step(plan, frame, launch)
    reads = [
        plan.table.slot(argument) if isinstance(argument, View) else None
        for argument in launch.arguments
    ]
    if write is None:
        return _making_step(plan, frame, launch, reads)
    out = plan.table.slot(launch.results[0])
    match reads:
        case [int(first)]:
            return lambda: write(tensors[out], tensors[first])
        case [int(first), int(second)]:
            return lambda: write(tensors[out], tensors[first], tensors[second])
    operands = _operands(launch, reads, tensors)
    return lambda: write(tensors[out], *operands())


def _product_step(plan: EntryPlan, frame: Frame, launch: Launch) -> Step:
    """A product straight into memory that is returned."""
    tensors = frame.tensors
    run = product(launch)
    assert run is not None
    reads = [plan.table.slot(view) for view in launch.arguments if isinstance(view, View)]
    (view,) = launch.results
    if len(plan.table.views[view.buffer]) > 1 or plan.table.uses.get(view.buffer):
        return lambda: frame.bind(view.buffer, run(*[tensors[slot] for slot in reads]))
    out = plan.table.slot(view)

    def multiply() -> None:
        tensors[out] = run(*[tensors[slot] for slot in reads])

    return multiply


def _operands(
    launch: Launch, reads: list[int | None], tensors: list[Any]
) -> Callable[[], list[Any]]:
    fixed = list(launch.arguments)
    return lambda: [
        value if slot is None else tensors[slot] for slot, value in zip(reads, fixed, strict=True)
    ]


def _making_step(plan: EntryPlan, frame: Frame, launch: Launch, reads: list[int | None]) -> Step:
    """Run an op that allocates, and put what it gives where the plan has it."""
    make = maker(launch, frame.device)
    operands = _operands(launch, reads, frame.tensors)
    places = [_placing(plan, frame, view) for view in launch.results]

    def run() -> None:
        made = make(*operands())
        for place, tensor in zip(places, made, strict=True):
            place(tensor)

    return run


def _placing(plan: EntryPlan, frame: Frame, view: View) -> Callable[[Tensor], None]:
    kind = plan.plan.buffers[view.buffer].kind
    slot = plan.table.slot(view)
    if kind in (BufferKind.ARENA, BufferKind.APART, BufferKind.BOUND):
        tensors = frame.tensors

        def copy(tensor: Tensor) -> None:
            tensors[slot].copy_(tensor)

        return copy
    shape, strides, dtype = view.type.shape, view.strides, to_torch_dtype(view.type.dtype)
    empty = frame.device.empty_strided

    def adopt(tensor: Tensor) -> None:
        if tensor.stride() != strides and not lies_as(tensor, strides):
            tensor = empty(shape, strides, dtype).copy_(tensor)
        frame.bind_root(view.buffer, view, tensor)

    return adopt


def lies_as(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    """Whether the tensor has these strides, wherever they matter."""
    return tensor.numel() == 0 or all(
        extent == 1 or here == wanted
        for extent, here, wanted in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )


# ---- error flags


def _check_errors(plan: EntryPlan, frame: Frame) -> Step:
    return lambda: raise_errors(plan.plan, frame)


def raise_errors(plan: Plan, frame: Frame) -> None:
    """The error that a kernel has reported, if any."""
    flags = frame.errors
    if flags.tobytes() == frame.no_errors or not flags[:, 0].any():
        return
    index = int(flags[:, 0].nonzero()[0][0])
    value = int(flags[index, 1])
    flags[:] = 0
    raise index_error(plan, index, value)


def index_error(plan: Plan, index: int, value: int) -> ContractError:
    """The error for flag number `index`: an op met `value` outside its table."""
    location = plan.errors[index]
    launch = next(
        launch
        for entry in (plan.forward, plan.backward)
        for launch in (entry.launches if entry else ())
        if any(isinstance(a, ErrorFlag) and a.index == index for a in launch.arguments)
    )
    where = " ".join(part for part in (location.module, location.line) if part)
    return ContractError(
        f"index {value} is out of range for {_table(launch)} in {launch.opcode} {launch.label}",
        where,
        "check the indices and class labels of this batch",
    )


def _table(launch: Launch) -> str:
    """What an op looks up in, with its length where that is certain."""
    for name, value in launch.attributes:
        if name == "rows" and isinstance(value, int):
            return f"a table of {value} rows"
    matrices = [a.type for a in launch.arguments if isinstance(a, View) and a.type.rank == 2]
    if "cross_entropy" in f"{launch.opcode} {launch.label}":
        logits = [type for type in matrices if type.dtype.is_floating]
        return f"{logits[0].shape[1]} classes" if logits else "its classes"
    if launch.opcode == "fused" or not matrices:
        return "its table"
    return f"a table of {matrices[0].shape[0]} rows"
