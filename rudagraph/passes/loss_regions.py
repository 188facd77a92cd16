"""Finds linear + cross-entropy: a product whose result is read by a loss alone, row by row.

    %x [rows,width], %w [width,classes]
      -> matmul or addmm -> %logits -> pointwise ops, reshapes, rows cut off -> cross_entropy
      -> cross_entropy_backward -> their derivatives -> products and sums of the logits' gradient
Input: a joint graph before composites are expanded. Output: regions whose ops have no other
readers, so that they can be computed for a few rows at a time. What lies between is found from the
graph alone: soft caps, casts, shifted rows, frozen weights, weights in either layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from typing import cast as typed

from rudagraph.ir.graph import Graph, Op, Role, Value
from rudagraph.ir.ops import Tag, has

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows that a slice drops: of `shape` (without the classes), start:stop of one axis stays."""

    shape: Shape
    axis: int
    start: int
    stop: int


# The cuts between the product's rows and those of a value further on.
Path = tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class Reader:
    """An op that the gradient of the logits, g [rows,classes], ends in.

    rows: g @ other     columns: transposed(g) @ other     turned: other @ g     sum: over rows
    """

    op: Op
    kind: Literal["rows", "columns", "turned", "sum"]
    gradient: Value
    other: Value | None = None


@dataclass
class Region:
    """One loss with the product before it and all that is between them and behind."""

    product: Op
    loss: Op
    backward: Op | None = None
    forward: list[Op] = field(default_factory=list)  # between product and loss, in order
    slopes: list[Op] = field(default_factory=list)  # from the loss back to the product, in order
    turns: list[Op] = field(default_factory=list)  # its gradient transposed, for a reader
    readers: list[Reader] = field(default_factory=list)
    paths: dict[Value, Path] = field(default_factory=dict)

    @property
    def cuts(self) -> Path:
        """From the product's rows to those of the loss."""
        return self.paths[self.loss.inputs[0]]

    @property
    def ops(self) -> list[Op]:
        """Everything that chunks stand for."""
        head = [] if self.backward is None else [self.backward]
        readers = [reader.op for reader in self.readers]
        backward = [*head, *self.slopes, *self.turns, *readers]
        return [self.product, *self.forward, self.loss, *backward]


def find_regions(graph: Graph) -> list[Region]:
    """The regions of a joint graph, at most one a loss."""
    losses = [op for op in graph.ops if op.opcode == "cross_entropy"]
    if not losses:
        return []
    finder = _Finder(graph)
    return [region for loss in losses if (region := finder.find(loss)) is not None]


class _Finder:
    """Walks from a loss up to its product, then down through everything that reads the product."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.users = graph.users()
        self.outputs = graph.output_values()
        tangents = (port.value for port in graph.inputs if port.role is Role.TANGENT)
        self.late = self._followers(tangents)  # what depends on an upstream gradient

    def _followers(self, values: Iterable[Value]) -> set[Value]:
        found = set(values)
        for op in self.graph.ops:
            if not found.isdisjoint(op.inputs):
                found.update(op.results)
        return found

    def find(self, loss: Op) -> Region | None:
        product = self._product(loss.inputs[0])
        if product is None or loss["reduction"] == "none":
            return None
        region = Region(product, loss)
        # What chunks read must be there before the loss is.
        self.after = self.late | self._followers(loss.results)
        late = self._follow_logits(region)
        if late is None or loss.inputs[0] not in region.paths:
            return None
        return region if self._follow_gradient(region, late) else None

    def _product(self, value: Value) -> Op | None:
        """The product of which the value is a function, row by row."""
        while (op := self.producers.get(value)) is not None:
            if has(op, Tag.MATMUL):
                plain = op.opcode == "matmul" or op.inputs[0].type.rank == 1
                return op if plain and op.result.type.rank == 2 else None
            whole = [operand for operand in op.inputs if not is_row_free(operand)]
            if not whole or not (op.opcode in ("reshape", "slice") or has(op, Tag.POINTWISE)):
                return None
            value = whole[0]
        return None

    # -- forward

    def _follow_logits(self, region: Region) -> set[Value] | None:
        """Results of the ops of backward that read something between product and loss."""
        paths, late = region.paths, set[Value]()
        paths[region.product.result] = ()
        for op in self.graph.ops:
            if paths.keys().isdisjoint(op.inputs) or op is region.loss:
                continue
            if not self.late.isdisjoint(op.results):
                late.update(op.results)
                continue
            path = self._forward_path(op, paths)
            if path is None:
                return None
            paths[op.result] = path
            region.forward.append(op)
        if not self.outputs.isdisjoint(paths):
            return None
        return late if paths.keys().isdisjoint(region.loss.inputs[1:]) else None

    def _forward_path(self, op: Op, paths: dict[Value, Path]) -> Path | None:
        """The path of the op's result; None where it is not computed row by row."""
        operand = op.inputs[0]
        if op.opcode == "reshape":
            return paths[operand] if _keeps_classes(op) else None
        if op.opcode == "slice":
            cut = _cut(op)
            return None if cut is None else (*paths[operand], cut)
        if not has(op, Tag.POINTWISE) or op.opcode == "check_index":
            return None
        found = {paths[value] for value in op.inputs if value in paths}
        fits = len(found) == 1 and all(self._beside(value, op, paths) for value in op.inputs)
        return found.pop() if fits else None

    def _beside(self, value: Value, op: Op, paths: dict[Value, Path]) -> bool:
        """Whether a pointwise op on rows may read the value: such rows, or one row for all."""
        if value in paths:
            return value.type.shape == op.result.type.shape
        return is_row_free(value) and value not in self.after

    # -- backward

    def _follow_gradient(self, region: Region, late: set[Value]) -> bool:
        heads = [
            op
            for op in self.users[region.loss.inputs[0]]
            if op.opcode == "cross_entropy_backward" and op.operands[1] == region.loss.inputs[0]
        ]
        if not heads:
            statistics = region.loss.results[1:]
            return not late and not any(self.users[value] for value in statistics)
        if len(heads) > 1 or not self._is_derivative(heads[0], region.loss):
            return False
        region.backward = heads[0]
        late.discard(heads[0].result)
        paths = {heads[0].result: region.cuts}
        turned: dict[Value, Value] = {}
        for op in self.graph.ops:
            if paths.keys().isdisjoint(op.inputs) and turned.keys().isdisjoint(op.inputs):
                continue
            reader = self._reader(op, paths, turned)
            if reader is not None:
                region.readers.append(reader)
                continue
            if op.opcode == "permute" and op["axes"] == (1, 0) and op.inputs[0] in paths:
                turned[op.result] = op.inputs[0]
                region.turns.append(op)
                continue
            path = self._gradient_path(op, paths, region)
            if path is None:
                return False
            paths[op.result] = path
            region.slopes.append(op)
            late.discard(op.result)
        region.paths.update(paths)
        read = {id(op) for value in turned for op in self.users[value]}
        known = {id(reader.op) for reader in region.readers}
        inside = self.outputs.isdisjoint(paths) and self.outputs.isdisjoint(turned)
        return inside and not late and read <= known

    def _is_derivative(self, op: Op, loss: Op) -> bool:
        """Whether the op is the derivative of this loss, and alone reads its statistics."""
        factor, *rest = op.operands
        statistics = loss.results[1:]
        same = tuple(rest) == (*loss.operands, *statistics) and op.attributes == loss.attributes
        alone = all(user is op for value in statistics for user in self.users[value])
        return same and alone and self.outputs.isdisjoint(statistics) and factor in self.late

    def _reader(
        self, op: Op, paths: dict[Value, Path], turned: dict[Value, Value]
    ) -> Reader | None:
        first = op.inputs[0]
        if op.opcode == "sum" and first in paths:
            over_rows = op["axes"] == tuple(range(first.type.rank - 1))
            return Reader(op, "sum", first) if over_rows else None
        if op.opcode != "matmul" or op.result.type.rank != 2:
            return None
        left, right = op.inputs
        inside = paths.keys() | turned.keys()
        if left in inside and right not in inside:
            reader = Reader(op, "rows", left, right)
            if left in turned:
                reader = Reader(op, "columns", turned[left], right)
        elif right in paths and left not in inside:
            reader = Reader(op, "turned", right, left)
        else:
            return None
        # All rows of the product, and what is there before the loss.
        fits = not paths[reader.gradient] and reader.other not in self.after
        return reader if fits else None

    def _gradient_path(self, op: Op, paths: dict[Value, Path], region: Region) -> Path | None:
        """The path of one more op of the gradient; None where it is not linear, row by row."""
        first = op.inputs[0]
        if op.opcode == "reshape":
            return paths[first] if _keeps_classes(op) else None
        if op.opcode == "pad":
            path = paths[first]
            return path[:-1] if path and _undoes(op, path[-1]) else None
        if not _is_linear(op, paths):
            return None
        known = {**region.paths, **paths}
        found = {known[value] for value in op.inputs if value in known}
        fits = len(found) == 1 and all(self._beside(value, op, known) for value in op.inputs)
        return found.pop() if fits else None


def is_row_free(value: Value) -> bool:
    """Whether the value is one row that stands for all of them, or one number."""
    return math.prod(value.type.shape[:-1]) == 1


def _keeps_classes(op: Op) -> bool:
    before, after = op.inputs[0].type.shape, op.result.type.shape
    return bool(before and after) and before[-1] == after[-1]


def _cut(op: Op) -> Cut | None:
    shape = op.inputs[0].type.shape
    axis, start, stop = (typed(int, op[name]) for name in ("axis", "start", "stop"))
    of_rows = axis < len(shape) - 1 and op["step"] == 1
    return Cut(shape[:-1], axis, start, stop) if of_rows else None


def _undoes(op: Op, cut: Cut) -> bool:
    """Whether a pad puts zeros where the cut had dropped rows."""
    low = [0] * (len(cut.shape) + 1)
    high = list(low)
    low[cut.axis], high[cut.axis] = cut.start, cut.shape[cut.axis] - cut.stop
    given = (op.result.type.shape[:-1], op["low"], op["high"], op["value"])
    return given == (cut.shape, tuple(low), tuple(high), 0)


_LINEAR_IN_FIRST = frozenset(
    ("div", "neg", "copy", "silu_backward", "gelu_backward", "sigmoid_backward", "tanh_backward")
)


def _is_linear(op: Op, gradients: dict[Value, Path]) -> bool:
    """Whether a factor on all the gradients among the operands is one on the result."""
    inside = [operand in gradients for operand in op.operands]
    if op.opcode in _LINEAR_IN_FIRST:
        return inside[0] and not any(inside[1:])
    if op.opcode == "cast":
        return op.result.type.dtype.is_floating
    if op.opcode == "mul":
        return inside.count(True) == 1
    if op.opcode in ("add", "sub"):
        return all(inside)
    if op.opcode == "where":
        branches = zip(op.operands[1:], inside[1:], strict=True)
        return not inside[0] and all(is_inside or branch == 0 for branch, is_inside in branches)
    return False
