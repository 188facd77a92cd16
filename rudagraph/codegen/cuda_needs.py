"""What a body's elements need on a GPU: the width of accesses, and registers while a row is held.

Input: the stages of a body. Output: numbers for cuda_launch. Invariant: they follow from types,
shapes and strides alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from rudagraph.codegen.cuda_launch import KEPT_BYTES, vector_length
from rudagraph.codegen.cuda_sum_shapes import Loads
from rudagraph.codegen.domain import sum_access
from rudagraph.codegen.expressions import accumulator_dtype
from rudagraph.codegen.stages import Place, Source, Stages
from rudagraph.ir.graph import Value
from rudagraph.ir.ops import Tag, has


def vector_of(stages: Stages, offsets: tuple[int, ...] = ()) -> int:
    """Elements of one access: what row length, all steps and all beginnings allow."""
    stepping = _stepping(stages)
    sizes = [value.type.dtype.size for _, value in stepping]
    names = {access for access, _ in stepping}
    inputs = zip(stages.body.inputs, offsets, strict=False)  # none are given where all are 0
    begins = [offset for port, offset in inputs if port.value.name in names]
    return vector_length(sizes, *_multiples(stages), *begins)


def held_words(stages: Stages, *, shared: bool = True) -> float:
    """32-bit words an element takes while its row is held: operands, and what later passes want.

    Args:
        shared: whether operands that are the same for all rows are held as well.
    """
    words = 0.0
    seen: set[Value] = set()
    for current in stages.passes:
        for value, source in current.sources.items():
            if value in seen or stages.place[value] is not Place.ELEMENT:
                continue
            if source is Source.OPERAND and not shared and is_shared(stages, value):
                continue
            if source in (Source.OPERAND, Source.STORED, Source.KEPT):
                seen.add(value)
                is_kept = source is Source.KEPT
                words += (value.type.dtype.compute if is_kept else value.type.dtype).size / 4
    return words


def peak_words(stages: Stages, *, shared: bool) -> float:
    """32-bit words an element takes at the worst moment: when its row is loaded, or between passes.

    Args:
        shared: as for `held_words`.
    """
    first, between = 0.0, [0.0] * (len(stages.passes) - 1)
    for value in stages.body_values():
        passes = [at for at, current in enumerate(stages.passes) if value in current.sources]
        if not passes or stages.place[value] is not Place.ELEMENT:
            continue
        sources = {stages.passes[at].sources[value] for at in passes}
        is_kept = Source.KEPT in sources
        size = (value.type.dtype.compute if is_kept else value.type.dtype).size / 4
        if Source.OPERAND in sources:
            if not shared and is_shared(stages, value):
                continue
            first += size
        elif not is_kept and Source.STORED not in sources:
            continue  # computed again
        for at in range(passes[0], passes[-1]):
            between[at] += size
    return max([first, *between])


def is_shared(stages: Stages, value: Value) -> bool:
    """Whether all rows read the same elements of an operand."""
    return not any(stages.nest.outer_strides(value.name))


def kept_operands(stages: Stages) -> set[str]:
    """Accesses that several rows of a pointwise body read alike, beside what each row brings.

    L2 must have them until the last of those rows; of much more than it has they leave it anyway.
    """
    nest = stages.nest
    kept, streams = set[str](), False
    for access, value in stages.in_memory():
        if nest.inner_stride(access) != 1:
            continue
        strides = nest.outer_strides(access)
        again = any(not s and extent > 1 for s, extent in zip(strides, nest.outer, strict=True))
        bytes = value.type.numel * value.type.dtype.size
        if not again or not any(strides):
            streams |= not again
        elif bytes <= KEPT_BYTES:
            kept.add(access)
    return kept if streams else set()


def stepping_operands(stages: Stages) -> list[Value]:
    """Element operands that each row brings anew, as far as vectors load them."""
    nest = stages.nest
    used = {value for current in stages.passes for value in current.sources}
    return [
        port.value
        for port in stages.body.inputs
        if port.value in used
        and nest.inner_stride(port.value.name) == 1
        and any(nest.outer_strides(port.value.name))
    ]


@dataclass(frozen=True, slots=True)
class Needs:
    """32-bit words that an element takes in a row kernel with sums."""

    rows: float  # operands that each row brings
    again: float  # those of them that a later pass reads too
    shared: float  # operands that all rows share
    kept: float  # values computed in one pass and wanted in another
    sums: float  # column sums

    @property
    def unpacked(self) -> float:
        """With the next row ahead, and this one unpacked where no value of its own is kept."""
        return self.rows + self.shared + max(self.rows + (0.0 if self.kept else 1.0), self.kept)

    def words(self, loads: Loads) -> float:
        """At the worst moment, by how rows are loaded."""
        always = self.shared + self.sums
        match loads:
            case Loads.AHEAD:  # at the start two rows, between passes one and what is kept
                return always + max(2 * self.rows, self.rows + self.again + self.kept)
            case Loads.RING:  # a chunk at a time
                return always + self.kept + self.rows / 2
        return always + max(self.rows, self.again + self.kept)


def needs_of(stages: Stages) -> Needs:
    """What a row kernel with sums takes."""
    nest = stages.nest
    rows = again = shared = kept = sums = 0.0
    operands = {port.value for port in stages.body.inputs}
    seen: dict[Value, int] = {}
    for at, current in enumerate(stages.passes):
        for value, source in current.sources.items():
            size = value.type.dtype.size / 4
            is_new = value not in seen
            seen.setdefault(value, at)
            if source is Source.OPERAND and value in operands:
                if not any(nest.outer_strides(value.name)):
                    shared += size if is_new else 0.0
                else:
                    rows += size if is_new else 0.0
                    again += size if seen[value] < at == _last_use(stages, value) else 0.0
            elif source is Source.KEPT:
                kept += value.type.dtype.compute.size / 4 if seen[value] < at else 0.0
            elif source is Source.STORED:
                kept += size
    for index in range(len(stages.results)):
        op = stages.sum_op(index)
        if op is not None and stages.is_column(index):
            sums += accumulator_dtype(op).size / 4
    return Needs(rows, again, shared, kept, sums)


def _last_use(stages: Stages, value: Value) -> int:
    return max(at for at, current in enumerate(stages.passes) if value in current.sources)


def _stepping(stages: Stages) -> list[tuple[str, Value]]:
    """Accesses to memory that step along the row, with what lies there."""
    return [
        (access, value)
        for access, value in stages.in_memory()
        if stages.nest.inner_stride(access) == 1
    ]


def _multiples(stages: Stages) -> list[int]:
    """Row length, and the steps of everything that is accessed by vectors or counted."""
    nest = stages.nest
    steps = [nest.inner]
    accesses = [access for access, _ in _stepping(stages)]
    accesses += [op.result.name for op in stages.body.ops if has(op, Tag.RANDOM)]
    accesses += [
        sum_access(index)
        for index in range(len(stages.results))
        if stages.sum_op(index) is not None and nest.inner_stride(sum_access(index)) != 0
    ]
    for access in accesses:
        steps += nest.outer_strides(access)
    return steps
