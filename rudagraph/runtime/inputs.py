"""Where the CUDA graphs of a frame find what a call brings: the addresses in a graph are fixed.

Input: arguments or upstream gradients. Output: the tensors that the graphs read in their place.
Small ones are copied to places of ours; large ones are read where they are for as long as they come
from one address. Invariant: no graph made before an input moved is replayed after it.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import torch

from rudagraph.schedule.plan import Plan

Tensor = torch.Tensor

# Below, copying costs no more than a launch.
SMALL = 1 << 20


class Inputs:
    """The inputs of a frame's graphs, by buffer; calls `moved` when graphs are out of date."""

    def __init__(self, plan: Plan, moved: Callable[[], None]) -> None:
        self.copies: dict[int, Tensor] = {}
        self._moved = moved
        self._copied = {index for index, b in enumerate(plan.buffers) if b.bytes <= SMALL}
        self._addresses: dict[int, int] = {}  # of the others, as graphs know them

    def forget_addresses(self) -> None:
        """No graph is left that knows one."""
        self._addresses = {}

    def bring(
        self, inputs: list[tuple[int, Tensor]], apart: Container[int] = ()
    ) -> list[tuple[int, Tensor]]:
        """Each buffer and where the graphs read it; those of `apart` are copied in any case."""
        sources: list[tuple[int, Tensor]] = []
        copies: list[Tensor] = []
        originals: list[Tensor] = []
        for buffer, tensor in inputs:
            if buffer not in self._copied and (buffer in apart or self._is_new(buffer, tensor)):
                self._copy_from_now_on(buffer)
            if buffer in self._copied:
                originals.append(tensor)
                tensor = self._place(buffer, tensor)
                copies.append(tensor)
            sources.append((buffer, tensor))
        if copies:
            torch._foreach_copy_(copies, originals)  # two at once cost what one costs
        return sources

    def _is_new(self, buffer: int, tensor: Tensor) -> bool:
        """Whether it lies elsewhere than when graphs were made."""
        pointer = tensor.data_ptr()
        return self._addresses.setdefault(buffer, pointer) != pointer

    def _copy_from_now_on(self, buffer: int) -> None:
        self._copied.add(buffer)
        if buffer in self._addresses:
            self._moved()

    def _place(self, buffer: int, tensor: Tensor) -> Tensor:
        place = self.copies.get(buffer)
        if place is None:
            place = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            self.copies[buffer] = place
        return place
