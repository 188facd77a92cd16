"""Where each value lies in memory: a view of a root value, computed without running anything.

A value produced by a launch is a root; results of view ops are other shapes and strides of the
same root. A reshape that no strides can express is refused here: the pass `materialise` has put a
copy in front of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Graph, Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.types import row_major_strides


@dataclass(frozen=True, slots=True)
class Layout:
    """Element (i0, i1, …) of a value lies at offset + sum(i * stride) elements into `root`."""

    root: Value
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def is_row_major(self) -> bool:
        """Contiguous from the root's start; axes of extent 1 may have any stride."""
        return self.offset == 0 and is_dense(self.shape, self.strides)


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements follow each other in row-major order without gaps."""
    wanted = row_major_strides(shape)
    return 0 in shape or all(
        extent == 1 or stride == want
        for extent, stride, want in zip(shape, strides, wanted, strict=True)
    )


def root_layout(value: Value, strides: tuple[int, ...] | None = None) -> Layout:
    """The layout of a value that owns its memory."""
    shape = value.type.shape
    return Layout(value, shape, row_major_strides(shape) if strides is None else strides)


def layouts(
    graph: Graph, strides: dict[Value, tuple[int, ...]] | None = None
) -> dict[Value, Layout]:
    """The layout of every value; `strides` holds those of roots that are not row-major."""
    given = strides or {}
    table: dict[Value, Layout] = {}
    for port in graph.inputs:
        table[port.value] = root_layout(port.value, given.get(port.value))
    for op in graph.ops:
        if has(op, Tag.VIEW):
            layout = view_layout(op, table[op.inputs[0]])
            if layout is None:
                raise VerifyError(
                    what=f"%{op.result.name} reshapes {op.inputs[0]} which no strides can express",
                    where=f"graph {graph.name}",
                    hint="the pass materialise must copy the operand first",
                )
            table[op.result] = layout
            continue
        for result in op.results:
            table[result] = root_layout(result, given.get(result))
    return table


def view_layout(op: Op, base: Layout) -> Layout | None:
    """The layout of a view op's result over its operand's; None where strides cannot express it."""
    match op.opcode:
        case "permute":
            axes = cast(tuple[int, ...], op["axes"])
            strides = tuple(base.strides[axis] for axis in axes)
            return Layout(base.root, op.result.type.shape, strides, base.offset)
        case "expand":
            shape = op.result.type.shape
            lead = len(shape) - len(base.shape)
            padded = zip((1,) * lead + base.shape, (0,) * lead + base.strides, shape, strict=True)
            strides = tuple(0 if old == 1 and new != 1 else stride for old, stride, new in padded)
            return Layout(base.root, shape, strides, base.offset)
        case "slice":
            axis, start, step = (cast(int, op[name]) for name in ("axis", "start", "step"))
            offset = base.offset + start * base.strides[axis]
            new = base.strides[:axis] + (base.strides[axis] * step,) + base.strides[axis + 1 :]
            return Layout(base.root, op.result.type.shape, new, offset)
        case "reshape":
            shape = op.result.type.shape
            reshaped = reshape_strides(base.shape, base.strides, shape)
            if reshaped is None:
                return None
            return Layout(base.root, shape, reshaped, base.offset)
    raise KeyError(f"{op.opcode} is no view op")


def reshape_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides that show the same elements, in row-major order, under a new shape.

    Axes of extent 1 are dropped, neighbours that lie densely are merged into runs, and the new
    shape must divide the runs; None where it does not.
    """
    if 0 in shape:
        return row_major_strides(new_shape)
    runs: list[list[int]] = []  # [extent, stride of the last axis]
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = [runs[-1][0] * extent, stride]
        else:
            runs.append([extent, stride])
    result = [0] * len(new_shape)
    remaining = runs.copy()
    left, step = remaining.pop() if remaining else (1, 1)
    for axis in reversed(range(len(new_shape))):
        extent = new_shape[axis]
        result[axis] = step
        if extent == 1:
            continue
        if left == 1 and remaining:
            left, step = remaining.pop()
            result[axis] = step
        if left % extent:
            return None
        left //= extent
        step *= extent
    return tuple(result) if left == 1 and not remaining else None
