"""Saved values at the waists of forward: segments that backward computes again one after another.

    forward   %x0 | %a %b %x1 | %c %d %x2 | %e %f %x3     cut where least crosses
    saved     %x0, %x1, %x2                               what crosses, and what nothing gives again
    backward  %e %f, their gradients; %c %d, theirs; %a %b, theirs

Eviction one value at a time (evict.py) prices work alone: once few values are left, it gives up
those that segments would keep, and the chains between the others are alive at once. Here the peak
is what crosses plus one segment. Input: the joint graph and what the policy saves without a budget.
Output: a choice for each length of segments; a pure function of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rudagraph.ir.graph import Op, Role, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.passes.evict import Prices
from rudagraph.passes.recompute import JointView

# Segments are a half, a third, … of what is saved without a budget.
_SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
# Values below this share of all are kept: statistics of norms are dear to compute and free nothing.
_TINY = 1 / 1024


def checkpoints(view: JointView, saved: frozenset[Value]) -> list[frozenset[Value]]:
    """Choices of saved values, fewer segments first."""
    line = _Forward(view, saved)
    total = sum(value.type.bytes for value in saved)
    kept = view.pinned | {value for value in saved if value.type.bytes < _TINY * total}
    choices: dict[frozenset[Value], None] = {}
    for segments in _SEGMENTS:
        crossing = {value for cut in line.cuts(total / segments) for value in line.crossing(cut)}
        choices[_feasible(view, saved, kept | crossing)] = None
    return list(choices)


def _feasible(
    view: JointView, saved: frozenset[Value], chosen: set[Value] | frozenset[Value]
) -> frozenset[Value]:
    """The choice with those of `saved` that nothing in it gives again."""
    prices = Prices(view, frozenset(chosen))
    for op in view.joint.ops:
        for value in op.results:
            if value in saved and value not in prices.saved and math.isinf(prices.per_byte(value)):
                prices.saved.add(value)
    return frozenset(prices.saved)


class _Forward:
    """The ops of forward in order, and what is alive between them for later ones."""

    def __init__(self, view: JointView, saved: frozenset[Value]) -> None:
        needed = view.needed_for(Role.RESULT, Role.UPDATE, Role.RESIDUAL)
        self.ops = [op for op in view.joint.ops if not needed.isdisjoint(op.results)]
        self.root: dict[Value, Value] = {}
        self.last: dict[Value, int] = {}  # the op that reads the value last
        for index, op in enumerate(self.ops):
            for operand in op.inputs:
                self.last[self.root.get(operand, operand)] = index
            if has(op, Tag.VIEW):
                self.root[op.result] = self.root.get(op.inputs[0], op.inputs[0])
        self.widths = list(self._widths())
        self.inside = [0]  # bytes saved without a budget, up to each op
        for op in self.ops:
            own = sum(value.type.bytes for value in op.results if value in saved)
            self.inside.append(self.inside[-1] + own)

    def _made(self, op: Op) -> list[Value]:
        """What the op gives that later ones find in memory."""
        return [] if has(op, Tag.VIEW | Tag.CREATION) else [v for v in op.results if v in self.last]

    def _widths(self) -> Iterator[int]:
        """Bytes that are alive behind each op."""
        ends: dict[int, int] = {}
        alive = 0
        for index, op in enumerate(self.ops):
            for value in self._made(op):
                alive += value.type.bytes
                ends[self.last[value]] = ends.get(self.last[value], 0) + value.type.bytes
            alive -= ends.get(index, 0)
            yield alive

    def crossing(self, cut: int) -> list[Value]:
        """The values made by the op at `cut` or before, and read after it."""
        made = (value for op in self.ops[: cut + 1] for value in self._made(op))
        return [value for value in made if self.last[value] > cut]

    def cuts(self, length: float) -> list[int]:
        """Where segments of at most so many bytes end: least crosses there, of their second half.

        A single op may give more; its segment is longer.
        """
        cuts: list[int] = []
        start = 0  # bytes before the segment
        while self.inside[-1] - start > length:
            after = [i for i in range(len(self.ops)) if self.inside[i + 1] - start > length / 2]
            window = [i for i in after if self.inside[i + 1] - start <= length] or after[:1]
            cut = min(window, key=lambda index: (self.widths[index], -index))
            cuts.append(cut)
            start = self.inside[cut + 1]
        return cuts
