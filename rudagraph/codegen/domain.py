"""The index space of a fused body: rows × elements, with axes merged where every access allows.

    D = (8, 12, 64, 64), x strides (49152, 64, 768, 1), y row-major
    outer axes (8, 12, 64) and 64 elements a row; axes that all accesses step through evenly merge

Input: the body and the strides of operands and results. Output: a Nest. Invariant: an access to
element (outer indices, j) of the nest reads or writes the element at the same place of D.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Graph, Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.types import broadcast_shapes, row_major_strides

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """`outer` axes make a row's index, `inner` is the number of elements of a row.

    `strides` has, for each access, its steps along the outer axes and along the row.
    """

    outer: tuple[int, ...]
    inner: int
    strides: Mapping[str, Strides]

    @property
    def rows(self) -> int:
        return math.prod(self.outer)

    @property
    def elements(self) -> int:
        return self.rows * self.inner

    def outer_strides(self, access: str) -> Strides:
        return self.strides[access][:-1]

    def inner_stride(self, access: str) -> int:
        return self.strides[access][-1]


def domain(body: Graph) -> tuple[int, ...]:
    """The common broadcast shape of all values that stay in rows."""
    sums = {op.result for op in body.ops if is_sum(op)}
    return broadcast_shapes(*(v.type.shape for v in body.values() if v not in sums))


def is_row_reduction(op: Op) -> bool:
    """Along the last axis, which stays with extent 1."""
    if not has(op, Tag.REDUCTION):
        return False
    rank = op.inputs[0].type.rank
    return op["axes"] == (rank - 1,) and bool(op.get("keepdim", False))


def is_fold(op: Op) -> bool:
    """A row reduction that needs a loop: of a row of one element it is the element."""
    return is_row_reduction(op) and op.inputs[0].type.shape[-1] != 1


def is_sum(op: Op) -> bool:
    """A reduction that leaves the rows: over all axes but the last, or over all."""
    if not has(op, Tag.REDUCTION) or is_row_reduction(op):
        return False
    rank = op.inputs[0].type.rank
    if op["axes"] in (tuple(range(rank)), tuple(range(rank - 1))):
        return True
    raise UnsupportedError(
        f"{op.opcode} over axes {op['axes']} of {op.inputs[0].type} fits no kernel shape",
        f"%{op.result.name}",
    )


def sum_starts(body: Graph) -> set[Value]:
    """Where the way to each row's sum narrows to one value: the op after it, or the sum itself.

    Of `sum(mul(%x, %x))` it is the product: whoever has %x needs nothing else.
    """
    producer = body.producers()
    readers = Counter(value for op in body.ops for value in set(op.inputs))
    readers.update(body.output_values())
    starts = set()
    for op in body.ops:
        if not is_fold(op) or op.opcode not in ("sum", "mean"):
            continue
        start, before = op, producer.get(op.inputs[0])
        while before is not None and len(set(before.inputs)) == 1 and readers[before.result] == 1:
            start, before = before, producer.get(before.inputs[0])
        starts.add(start.result)
    return starts


def body_nest(
    body: Graph, operand_strides: Sequence[Strides | None], result_strides: Sequence[Strides]
) -> Nest:
    """The nest of a body whose operands and results lie in memory with these strides."""
    accesses: dict[str, tuple[tuple[int, ...], Strides]] = {}
    for port, strides in zip(body.inputs, operand_strides, strict=True):
        assert strides is not None, f"%{port.value.name} has no memory"
        accesses[port.value.name] = (port.value.type.shape, strides)
    for op in body.ops:
        if has(op, Tag.RANDOM) or op.opcode == "iota":
            accesses[op.result.name] = _counted(op.result)
    producer = body.producers()
    for index, (port, strides) in enumerate(zip(body.outputs, result_strides, strict=True)):
        accesses[result_access(index)] = (port.value.type.shape, strides)
        maker = producer.get(port.value)
        if maker is not None and is_sum(maker):
            accesses[sum_access(index)] = _counted(maker.inputs[0])
    return build_nest(domain(body), accesses, rows=any(is_fold(op) for op in body.ops))


def result_access(index: int) -> str:
    """The name under which a nest knows result `index`."""
    return f"result {index}"


def sum_access(index: int) -> str:
    """The name under which a nest counts the elements that the sum `index` adds."""
    return f"sum {index}"


def build_nest(
    shape: tuple[int, ...], accesses: Mapping[str, tuple[tuple[int, ...], Strides]], *, rows: bool
) -> Nest:
    """The nest over domain `shape`; with `rows` the last axis stays a row of its own.

    Args:
        accesses: shape and strides of each, aligned right to the domain; an extent of 1 does not
            step.
    """
    aligned = {name: _aligned(shape, *access) for name, access in accesses.items()}
    last = len(shape) - 1
    kept = [axis for axis, extent in enumerate(shape) if extent != 1 or (rows and axis == last)]
    groups: list[list[int]] = []
    for axis in kept:
        previous = groups[-1] if groups else []
        mergeable = previous and not (rows and axis == last)
        if mergeable and _merges(aligned.values(), shape, previous[-1], axis):
            previous.append(axis)
        else:
            groups.append([axis])
    extents = [math.prod(shape[axis] for axis in group) for group in groups] or [1]
    strides = {
        name: tuple(steps[group[-1]] for group in groups) or (0,) for name, steps in aligned.items()
    }
    return Nest(tuple(extents[:-1]), extents[-1], strides)


def _aligned(shape: tuple[int, ...], own: tuple[int, ...], strides: Strides) -> Strides:
    lead = len(shape) - len(own)
    own, strides = (1,) * lead + own, (0,) * lead + strides
    return tuple(0 if extent == 1 else step for extent, step in zip(own, strides, strict=True))


def _merges(accesses: Iterable[Strides], shape: tuple[int, ...], outer: int, inner: int) -> bool:
    return all(steps[outer] == steps[inner] * shape[inner] for steps in accesses)


def _counted(value: Value) -> tuple[tuple[int, ...], Strides]:
    """Shape and strides by which a value without memory counts its elements."""
    return value.type.shape, row_major_strides(value.type.shape)
