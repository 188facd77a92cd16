"""CUDA graphs of a frame: each entry is captured once and replayed by one call of the driver.

A graph's addresses are fixed: `Inputs` brings arguments and upstream gradients there, and what is
returned lies in memory that the graph writes on every replay. Before each replay the use counts of
that memory are asked: if the caller still holds something, another pair of graphs, with memory of
its own, takes over. Invariant: nothing that a caller holds is overwritten.

    forward graph -> results, residuals -> backward graph -> gradients       one Pair

A pair has a pool that no other graph allocates from: what one graph frees while it is captured is
written again at each of its replays. At first both graphs share it, and gradients lie where
residuals lay before them; so forward waits until the caller has let go of gradients too. A caller
who holds them then (zero_grad after forward, sums over several batches) gets pairs whose gradients
have a pool of their own.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch

from rudagraph.errors import RudagraphError
from rudagraph.runtime.buffers import Frame
from rudagraph.runtime.devices import CAPTURES
from rudagraph.runtime.entries import BoundEntry
from rudagraph.runtime.inputs import SMALL, Inputs
from rudagraph.runtime.wiring import Wiring
from rudagraph.schedule.plan import BufferKind

Tensor = torch.Tensor
_LOG = logging.getLogger(__name__)

_use_count = torch._C._storage_Use_Count
# Gradients that accumulate hold the memory of one pair while the other runs.
MOST_PAIRS = 2


class Captured:
    """One graph and the tensors it returns; `copied` ones are handed out as copies."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, returned: list[Tensor], copied: list[bool]
    ) -> None:
        self.graph = graph
        self.returned = returned
        self.copied = copied
        owned = [tensor for tensor, copy in zip(returned, copied, strict=True) if not copy]
        self._storages = [tensor.untyped_storage() for tensor in owned]
        self._handles = [storage._cdata for storage in self._storages]
        self._unused: list[int] = []

    def settle(self) -> None:
        """Nobody else holds what is returned now: remember how that looks."""
        self._unused = self._uses()

    @property
    def is_free(self) -> bool:
        """Whether the caller has let go of all that the last replay returned."""
        return self._uses() == self._unused

    def replay(self) -> list[Tensor]:
        self.graph.replay()
        return [
            tensor.clone() if copy else tensor.data
            for tensor, copy in zip(self.returned, self.copied, strict=True)
        ]

    def _uses(self) -> list[int]:
        return list(map(_use_count, self._handles))


class Pair:
    """Forward and backward of one another: residuals stay where the forward graph put them."""

    def __init__(self, gradients_apart: bool) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.backward_pool = torch.cuda.graph_pool_handle() if gradients_apart else self.pool
        self.forward: Captured | None = None
        self.backward: Captured | None = None
        self.pointers: list[tuple[int, int]] = []  # of residuals, in the frame's block
        self.was_free = False  # when the last forward began: only replays can change that
        # Residuals made by library ops. They own their memory until backward is captured, whose
        # own results may reuse it; from then on only the addresses count.
        self.residuals: dict[int, Tensor] = {}

    @property
    def is_free(self) -> bool:
        return all(graph is None or graph.is_free for graph in (self.forward, self.backward))

    def keep(self, frame: Frame, buffers: Sequence[int]) -> None:
        """Take over the residuals that the frame's forward has just made."""
        table = frame.table
        uses = [use for buffer in buffers for use in table.uses.get(buffer, ())]
        self.pointers = [(use.position, frame.block[use.position]) for use in uses]
        found = ((slot, frame.tensors[slot]) for slot in table.slots_of(buffers))
        self.residuals = {slot: tensor for slot, tensor in found if tensor is not None}

    def restore(self, frame: Frame) -> None:
        """Show the frame's backward the residuals of this pair."""
        for position, pointer in self.pointers:
            frame.block[position] = pointer
        for slot, tensor in self.residuals.items():
            frame.tensors[slot] = tensor

    def disown(self) -> None:
        """Keep addresses only."""
        self.residuals = {slot: _alias(tensor) for slot, tensor in self.residuals.items()}


class Graphs:
    """The pairs of one frame. What they give is None where the entry has to run directly."""

    def __init__(self, frame: Frame, wiring: Wiring, run: Callable[[BoundEntry], object]) -> None:
        self.frame = frame
        self.wiring = wiring
        self.pairs: list[Pair] = []
        self.spare_uses = 0  # times that a second pair or a direct run stood in
        self.refused = ""  # why there is no capture
        self._run = run
        self.ran_backward = False  # directly
        self._ran_forward = False
        self._accumulates = False
        self._gradients_apart = False
        self._inputs = Inputs(wiring.plan, self._drop)
        self._residuals = sorted(set(wiring.dynamic) - set(wiring.forgotten))
        self._written = {buffer for _, buffer in wiring.written_arguments}
        self._changed_weights = [
            position
            for position, (_, buffer) in enumerate(wiring.weights)
            if buffer in wiring.written_weights
        ]
        plan = wiring.plan
        # Small results are handed out as copies: a list of losses does not hold a graph's memory.
        small = [view.type.bytes <= SMALL for view in wiring.result_views]
        self._result_copies = [
            position in wiring.own_copies or small[position] for position in range(len(small))
        ]
        self._gradient_copies = [copied for _, _, copied, _ in wiring.gradients]
        kinds = [plan.buffers[view.buffer].kind for view in wiring.result_views]
        if BufferKind.BOUND in [
            kind for kind, copied in zip(kinds, self._result_copies, strict=True) if not copied
        ]:
            self.refused = "a result is an argument itself"

    def reset(self) -> None:
        """What the graphs point at has moved."""
        self._drop()
        self._inputs.forget_addresses()

    def _drop(self) -> None:
        self.pairs = []

    # ---- forward

    def forward(self, copies: dict[int, Tensor], leaves: list[Tensor]) -> _Begun | None:
        """Results and the pair they belong to; `copies` gets arguments that lie elsewhere now."""
        if self.refused or not self._ran_forward:
            self._ran_forward = True  # directly, as what follows: libraries are set up then
            return None
        lies_well = self.frame.device.lies_well
        inputs = [(buffer, leaves[place]) for place, buffer in self.wiring.arguments]
        apart = [b for b, leaf in inputs if b in self._written or not lies_well(leaf)]
        sources = self._inputs.bring(inputs, apart)
        pair = self._choose()
        if pair is None:
            return None
        if pair.forward is None:
            self._capture_forward(pair, sources)
            if pair.forward is None:
                return None
        for buffer in apart:
            copies[buffer] = self._inputs.copies[buffer]
        results = pair.forward.replay()
        for position in self._changed_weights:
            torch.autograd.graph.increment_version(self.frame.weights[position])
        return pair, results

    def _capture_forward(self, pair: Pair, sources: list[tuple[int, Tensor]]) -> None:
        frame, wiring = self.frame, self.wiring
        try:
            for buffer, tensor in sources:
                frame.bind(buffer, tensor.detach())
            copied = self._result_copies
            pair.forward = self._capture(frame.forward, wiring.result_slots, copied, pair.pool)
            if pair.forward is None:
                return
            pair.keep(frame, self._residuals)
        finally:
            frame.forget(wiring.dynamic_slots)
        pair.forward.settle()
        self.pairs.append(pair)

    def _choose(self) -> Pair | None:
        for pair in self.pairs:
            pair.was_free = pair.is_free
            if pair.was_free:
                return pair
        free = [pair for pair in self.pairs if pair.forward is not None and pair.forward.is_free]
        if free and self._gradients_apart and not self._accumulates:
            return free[0]  # gradients may still be set to None between here and backward
        if self.pairs:
            self.spare_uses += 1
        if free and not self._gradients_apart:
            self._gradients_apart = True
            self.pairs = []
        return Pair(self._gradients_apart) if len(self.pairs) < MOST_PAIRS else None

    # ---- backward

    def backward(
        self, pair: Pair, tangents: list[tuple[int, Tensor]], bind_saved: Callable[[], None]
    ) -> list[Tensor] | None:
        """Gradients of a forward that was replayed."""
        if self.refused or not self.ran_backward:
            return None
        free, pair.was_free = pair.was_free, False
        if pair.backward is not None and not (free or pair.backward.is_free):
            self._accumulates = True
            self.spare_uses += 1
            return None
        sources = self._inputs.bring(tangents)
        if pair not in self.pairs:
            return None
        if pair.backward is None:
            self._capture_backward(pair, sources, bind_saved)
            if pair.backward is None:
                return None
        return pair.backward.replay()

    def _capture_backward(
        self, pair: Pair, tangents: list[tuple[int, Tensor]], bind_saved: Callable[[], None]
    ) -> None:
        frame, wiring = self.frame, self.wiring
        assert pair.forward is not None
        try:
            bind_saved()
            for _, buffer in wiring.saved_arguments:
                if buffer in self._inputs.copies:
                    frame.bind(buffer, self._inputs.copies[buffer])
            for position, buffer in wiring.saved_results:
                result = pair.forward.returned[position]
                frame.bind_root(buffer, wiring.result_views[position], result)
            for buffer, tensor in tangents:
                frame.bind(buffer, tensor)
            pair.restore(frame)
            pair.disown()
            slots, copied = wiring.gradient_slots, self._gradient_copies
            pair.backward = self._capture(frame.backward, slots, copied, pair.backward_pool)
        finally:
            frame.forget(wiring.dynamic_slots)
        if pair.backward is not None:
            pair.backward.settle()

    # ---- both

    def _capture(
        self, entry: BoundEntry, slots: Sequence[int], copied: list[bool], pool: Any
    ) -> Captured | None:
        """The entry as a graph. Nothing runs; where that is impossible, never again."""
        frame = self.frame
        graph = torch.cuda.CUDAGraph()
        try:
            with CAPTURES, _capturing(graph, pool, frame.device.device):
                self._run(entry)
        except (RudagraphError, RuntimeError) as error:
            self.refused = str(error)
            _LOG.warning("no CUDA graph of this step, its kernels are launched: %s", error)
            self.reset()
            return None
        return Captured(graph, [frame.tensors[slot] for slot in slots], copied)


_Begun = tuple[Pair, list[Tensor]]


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> Iterator[None]:
    """Launches of this thread become nodes of the graph."""
    stream = _side_stream(device, torch.cuda.current_stream(device).cuda_stream)
    collects = gc.isenabled()
    gc.disable()  # what a collection frees may not be freed during a capture
    torch.cuda.empty_cache()  # what direct calls have left there, the pool could not use
    try:
        with torch.cuda.stream(stream):
            _prepare_products(device)
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
            except BaseException:
                _abandon(graph, pool, device)
                raise
            graph.capture_end()
    finally:
        if collects:
            gc.enable()


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """End a capture that failed; PyTorch leaves allocator and generator in its midst."""
    with suppress(RuntimeError):
        graph.capture_end()
        return
    index = device.index or 0
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(index, pool)
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state().graphsafe_get_state())


@cache
def _side_stream(device: torch.device, beside: int) -> torch.cuda.Stream:
    """The stream of captures for calls on one stream: the default one cannot be captured.

    Products in a graph keep the workspace that cuBLAS has for the thread and stream that captured
    them, and autograd captures all backwards in one thread: graphs that are replayed on several
    streams at a time must not share it.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _prepare_products(device: torch.device) -> None:
    """cuBLAS makes its handle for a thread and its workspace for a stream at the first product."""
    matrix = torch.zeros(16, 16, device=device)
    torch.mm(matrix, matrix)


def _alias(tensor: Tensor) -> Tensor:
    """The same memory, not owned."""
    storage = tensor.untyped_storage()
    borrowed = torch._C._construct_storage_from_data_pointer(
        storage.data_ptr(), tensor.device, storage.nbytes()
    )
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return alias.set_(borrowed, tensor.storage_offset(), tensor.shape, tensor.stride())
