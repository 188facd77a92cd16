"""Pointwise bodies that share an operand along an axis: a thread takes the elements of two places.

    cos = vector.load_f32(cos_pointer, at_cos + j)          once, for heads h and h + 16
    x = vector.load_f32(x_pointer, at + j)
    x_2 = vector.load_f32(x_pointer, at + j + 16777216)
    …
    vector.store_f32(y_pointer, at + j, y)
    vector.store_f32(y_pointer, at + j + 16777216, y_2)

Input: the stages of a body for cuda_flat, and the axis. Output: lines of its kernel. What all heads
read comes from L2, which gives little more than twice what memory does: rotary embeddings of f32
4096 reach 91 % when each head loads cosines and sines for itself. Invariant: all loads come before
the first store.
"""

from __future__ import annotations

from dataclasses import replace

from rudagraph.codegen.cuda_flat import FlatKernel
from rudagraph.codegen.domain import result_access
from rudagraph.codegen.stages import Pass, Source, Stages
from rudagraph.ir.graph import Value
from rudagraph.ir.ops import Tag, has

_PLACES = 2
# Shared operands of fewer bytes stay in L1; and where there are few threads, none are to spare.
_LEAST_SHARED_BYTES = 128 * 1024
_LEAST_ELEMENTS = 1 << 22


def shared_axis(stages: Stages) -> int | None:
    """The outer axis along which a large operand is the same, if a thread can take two places."""
    (current,) = stages.passes
    nest = stages.nest
    is_counted = any(has(op, Tag.RANDOM) for op in stages.body.ops)
    if current.row_stores or current.sums or current.row_sums or is_counted:
        return None
    if nest.elements < _LEAST_ELEMENTS:
        return None
    for axis, extent in enumerate(nest.outer):
        shared = [
            value
            for value, source in current.sources.items()
            if source is Source.OPERAND and not nest.outer_strides(value.name)[axis]
        ]
        large = any(value.type.bytes >= _LEAST_SHARED_BYTES for value in shared)
        stored = all(nest.outer_strides(result_access(i))[axis] for i in current.stores)
        if extent % _PLACES == 0 and large and stored:
            return axis
    return None


class SharedFlatKernel(FlatKernel):
    """Writes the kernel; `axis` is the one along which a thread takes two places."""

    def __init__(self, stages: Stages, length: int, axis: int) -> None:
        super().__init__(stages, length)
        self.axis = axis
        outer = list(self.nest.outer)
        outer[axis] //= _PLACES
        self.nest = replace(self.nest, outer=tuple(outer))
        self._place = 0

    def offset(self, access: str) -> str:
        at = super().offset(access)
        step = self.nest.outer_strides(access)[self.axis] * self.nest.outer[self.axis]
        return f"{at} + {step * self._place}" if step * self._place else at

    def work(self, current: Pass) -> None:
        stores: list[str] = []
        for self._place in range(_PLACES):
            for value in [value for value in self.register if self._varies(value)]:
                del self.register[value]
            self._loaded = {value for value in self._loaded if not self._varies(value)}
            self.between(current)
            self.need_before(current)
            self.elements(current)
            for index in current.stores:
                stores.append(self.store_text(result_access(index), self.stages.results[index]))
        self.lines.add(*stores)

    def _varies(self, value: Value) -> bool:
        """Whether a value is another one at the second place."""
        op = self.stages.producer.get(value)
        if op is not None and op.inputs:
            return any(self._varies(operand) for operand in op.inputs)
        if value.name not in self.nest.strides:
            return False
        return bool(self.nest.outer_strides(value.name)[self.axis])
