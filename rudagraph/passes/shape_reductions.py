"""Reductions in the forms that kernels have: along rows, over columns, over everything.

    %s = sum(%x) [axes=[1], keepdim=false]        %s.row = sum(%x) [axes=[1], keepdim=true]
    (%x: f32[8,64])                               %s = reshape(%s.row) [shape=[8]]
    %m = mean(%y) [axes=[0, 2, 3]]                %m.row = sum(%y as [n,c,h*w]) [axes=[2], ...]
    (%y: f32[n,c,h,w])                            %m.total = sum(%m.row as [n,c]) [axes=[0], ...]
                                                  %m = div(%m.total, n*h*w)
Axes are merged into runs of reduced (R) and kept (K) ones: K R is a row reduction, R K a column
sum, R everything, R K R a row reduction and a column sum. Others (K R K …) stay for the library.
A long row that is the only one is everything: several blocks share it. Sums between two steps are
in the compute type: nothing rounds but the last result.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import cast as typed

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Attribute, Graph, Op, Operand, Value, make_attributes
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.types import DType
from rudagraph.passes.kernel_shapes import Fold, fold_of

_Shape = tuple[int, ...]

# Elements of a row that are worth a kernel for each of its reductions, and blocks that share it:
# softmax and its derivative of so many take 0.94 ms alone, 0.76 on two threads.
LONG_ROW = 1 << 18


def shape_reductions(graph: Graph) -> Graph:
    """The graph with every reduction that a kernel can do in a form of `Fold`."""
    if not any(_is_open(op) for op in graph.ops):
        return graph
    builder = GraphBuilder(graph.name)
    builder.inputs += graph.inputs
    builder.outputs += graph.outputs
    builder.reserve(value.name for value in graph.values())
    changed = False
    for op in graph.ops:
        builder.location = op.location
        if _is_open(op) and _Shaper(builder, op).write():
            changed = True
        else:
            builder.add(op)
    return builder.finish() if changed else graph


def _is_open(op: Op) -> bool:
    if not has(op, Tag.REDUCTION):
        return False
    fold = fold_of(op)
    return fold is None or (fold is Fold.ROWS and _is_only_row(op.inputs[0]))


def _is_only_row(x: Value) -> bool:
    return x.type.shape[-1] == x.type.numel >= LONG_ROW


@dataclass
class _Shaper:
    """Rewrites one reduction; the last op defines its result."""

    builder: GraphBuilder
    op: Op

    def write(self) -> bool:
        """False where no kernel form fits and nothing was written."""
        x, result = self.op.inputs[0], self.op.result
        axes = typed(_Shape, self.op["axes"])
        runs = _runs(x.type.shape, axes)
        pattern = "".join("R" if reduced else "K" for reduced, _ in runs)
        is_sum = self.op.opcode in ("sum", "mean")
        if x.type.numel == 0 or "R" not in pattern:
            return False  # nothing to reduce: simplify has taken those away
        if pattern == "R" and not is_sum:
            axes = tuple(range(x.type.rank))
            self._define_from(self._one("total", self.op.opcode, x, axes=axes, keepdim=False))
        elif pattern == "KR":
            merged = self._last_axis(x, runs[-1][1])
            self._define_from(self._along_rows(merged, self.op.opcode, last=True))
        elif pattern in ("R", "RK", "RKR") and is_sum:
            self._define_sum(x, runs, pattern)
        else:
            return False
        assert self.builder.ops[-1].results == (result,)
        return True

    def _define_sum(self, x: Value, runs: list[tuple[bool, int]], pattern: str) -> None:
        wide = self._wide(x)
        if pattern == "RKR":
            rows = self._along_rows(self._last_axis(x, runs[-1][1]), "sum", dtype=wide)
            x = self._shaped(rows, tuple(extent for _, extent in runs[:2]))
        if pattern == "R":
            axes = tuple(range(x.type.rank))
        else:
            x = self._last_axis(x, runs[1][1])
            axes = tuple(range(x.type.rank - 1))
        mean = self.op.opcode == "mean"
        dtype = wide if mean else self.op.result.type.dtype
        total = self._one("total", "sum", x, axes=axes, keepdim=False, dtype=dtype)
        if mean:
            count = math.prod(extent for reduced, extent in runs if reduced)
            total = self._one("quotient", "div", total, count)
        self._define_from(total)

    def _along_rows(
        self, x: Value, opcode: str, *, dtype: DType | None = None, last: bool = False
    ) -> Value:
        if opcode == "sum":
            dtype = self.op.result.type.dtype if last else dtype
        return self._one("row", opcode, x, axes=(x.type.rank - 1,), keepdim=True, dtype=dtype)

    def _last_axis(self, x: Value, extent: int) -> Value:
        """The operand with the axes of its last run made one."""
        shape = x.type.shape
        if shape and shape[-1] == extent:
            return x
        end = len(shape)
        while math.prod(shape[end:]) != extent or (end and shape[end - 1] == 1):
            end -= 1
        return self._shaped(x, (*shape[:end], extent))

    def _wide(self, x: Value) -> DType:
        """The type sums are kept in until the last step."""
        result = self.op.result.type.dtype
        return x.type.dtype.compute if result.is_floating else result

    def _shaped(self, x: Value, shape: _Shape) -> Value:
        return x if x.type.shape == shape else self._one("shaped", "reshape", x, shape=shape)

    def _one(self, suffix: str, opcode: str, *operands: Operand, **attributes: Attribute) -> Value:
        name = f"{self.op.result.name}.{suffix}"
        return self.builder.one(opcode, *operands, name=name, **attributes)

    def _define_from(self, value: Value) -> None:
        """Cast and reshape to the op's own result, under its own name."""
        result = self.op.result
        if value.type.dtype is not result.type.dtype:
            value = self._one("rounded", "cast", value, dtype=result.type.dtype)
        attributes = make_attributes(shape=result.type.shape)
        self.builder.add(Op("reshape", (value,), (result,), attributes, self.op.location))


def _runs(shape: _Shape, axes: _Shape) -> list[tuple[bool, int]]:
    """(reduced?, elements) of neighbouring axes alike; axes of extent 1 do not count."""
    live = [(axis in axes, extent) for axis, extent in enumerate(shape) if extent != 1]
    return [
        (reduced, math.prod(extent for _, extent in run))
        for reduced, run in itertools.groupby(live, key=lambda pair: pair[0])
    ]
