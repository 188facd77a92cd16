"""An elementwise op that is only read turned computes in the order it is read in.

    %y = add(%a, %b)                     [2,4,16,8]      %a.turned = permute(%a) [axes=[0, 2, 1, 3]]
    %t = permute(%y) [axes=[0, 2, 1, 3]]                 %b.turned = permute(%b) [axes=[0, 2, 1, 3]]
    %f = reshape(%t)                     [32,32]         %t = add(%a.turned, %b.turned)
                                                         %f = reshape(%t)
The operands are read through strides, the result is dense: the copy that a reshape or product would
need is never made. Only where the last axis stays last, so that rows stay rows, and only where no
kernel is cut in two: every operand is in memory or is hoisted with its only reader.
"""

from __future__ import annotations

import math

from rudagraph.ir.graph import Graph, Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.rewrite import Replacement, Rewriter, remove_dead, rewrite
from rudagraph.passes.kernel_shapes import Shape, domain_of, is_elementwise


def hoist_permutes(graph: Graph) -> Graph:
    """The graph with such permutes in front of the ops they followed."""
    finder = _Finder(graph)
    if not finder.turns:
        return graph
    return remove_dead(rewrite(graph, finder.rule))


class _Finder:
    """Which ops compute in another order of axes, and in which."""

    def __init__(self, graph: Graph) -> None:
        self.users = graph.users()
        self.producers = graph.producers()
        self.outputs = graph.output_values()
        self.turns: dict[Value, Shape] = {}  # elementwise result -> axes it is computed in
        self.ends: dict[Value, Value] = {}  # result of a permute -> the elementwise result
        self.made: dict[Value, Value] = {}  # elementwise result -> it, turned
        for op in graph.ops:
            if op.opcode == "permute":
                self._consider(op)

    def _consider(self, permute: Op) -> None:
        read = permute.inputs[0]
        reshape = self.producers.get(read)
        source = reshape.inputs[0] if reshape and reshape.opcode == "reshape" else read
        axes = _through_reshape(source.type.shape, read.type.shape, permute)
        chain = [read] if source is read else [source, read]
        if axes is None or axes[-1:] != (len(axes) - 1,) or axes == tuple(range(len(axes))):
            return
        if any(value in self.outputs or len(self.users[value]) != 1 for value in chain):
            return
        found: dict[Value, None] = {}
        if not self._hoistable(source, source.type.shape, found):
            return
        # What is hoisted is read by what is hoisted alone.
        readers = {op.results[0] for value in found if value != source for op in self.users[value]}
        if readers <= found.keys() and self.outputs.isdisjoint(found):
            self.turns.update(dict.fromkeys(found, axes))
            self.ends[permute.result] = source

    def _hoistable(self, value: Value, domain: Shape, found: dict[Value, None]) -> bool:
        """Whether the value can be computed turned; adds it and what is hoisted with it."""
        if value in found:
            return True
        op = self.producers.get(value)
        if op is None or not is_elementwise(op) or has(op, Tag.CREATION | Tag.RANDOM):
            return False
        found[value] = None
        for operand in op.inputs:
            source = self.producers.get(operand)
            if source is None or domain_of(source) is None or operand.type.numel <= domain[-1]:
                continue  # in memory, or little enough to be in every kernel
            if operand.type.numel < math.prod(domain) and operand.type.shape[-1] == domain[-1]:
                continue  # whole rows that several rows of the domain share: a kernel of their own
            if operand.type.shape != domain or not self._hoistable(operand, domain, found):
                return False
        return True

    # -- the rewrite

    def rule(self, rewriter: Rewriter, op: Op) -> Replacement:
        if op.results[0] not in self.ends:
            return None
        value = self._turned(rewriter, self.ends[op.results[0]])
        if value.type.shape == op.result.type.shape:
            return value
        return rewriter.one("reshape", value, shape=op.result.type.shape)

    def _turned(self, rewriter: Rewriter, value: Value) -> Value:
        if value in self.made:
            return self.made[value]
        op, axes = self.producers[value], self.turns[value]
        operands = tuple(
            self._operand(rewriter, operand, axes) if isinstance(operand, Value) else operand
            for operand in op.operands
        )
        name = f"{value.name}.turned"
        # The user's line is that of the op itself, not of the one that reads it turned.
        reader, rewriter.builder.location = rewriter.builder.location, op.location
        self.made[value] = rewriter.like(op, *operands, name=name)
        rewriter.builder.location = reader
        return self.made[value]

    def _operand(self, rewriter: Rewriter, operand: Value, axes: Shape) -> Value:
        if operand in self.turns and self.turns[operand] == axes:
            return self._turned(rewriter, operand)
        current = rewriter.resolve(operand)
        assert isinstance(current, Value)
        padded = (1,) * (len(axes) - current.type.rank) + current.type.shape
        kept = [axis for axis in axes if padded[axis] != 1]
        if kept == sorted(kept):
            shape = tuple(padded[axis] for axis in axes)
            return _as(rewriter, current, _without_leading_ones(shape))
        whole = _as(rewriter, current, padded)
        return rewriter.one("permute", whole, name=f"{operand.name}.turned", axes=axes)


def _as(rewriter: Rewriter, value: Value, shape: Shape) -> Value:
    if value.type.shape == shape or _without_leading_ones(value.type.shape) == shape:
        return value
    return rewriter.one("reshape", value, name=f"{value.name}.shaped", shape=shape)


def _without_leading_ones(shape: Shape) -> Shape:
    first = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


def _through_reshape(source: Shape, read: Shape, permute: Op) -> Shape | None:
    """The permute's axes over the source's shape, of which `read` only merges neighbours."""
    groups: list[list[int]] = []
    axis = 0
    for extent in read:
        group: list[int] = []
        product = 1
        while axis < len(source) and (product < extent or not group):
            group.append(axis)
            product *= source[axis]
            axis += 1
        if product != extent:
            return None
        groups.append(group)
    if axis != len(source):
        return None
    axes = permute["axes"]
    assert isinstance(axes, tuple)
    return tuple(inner for outer in axes if isinstance(outer, int) for inner in groups[outer])
