"""Fewer saved values, one after another: what a tight budget gives up, cheapest first.

    saved      %stream  %normal  %gate  %up  %attention     start: the policy's choice
    evicted             %normal  %gate  %up                 most bytes per unit of work first
    backward   computes an evicted value again from what is still saved, just before it is read

A value may be evicted if everything between it and saved values gives the same bits again:
arithmetic, reductions, gathers, products and convolutions, but no other library op. The price of a
value is the work of that whole cone, so it rises as its neighbours go: a chain of layers keeps
values at its waists. Greedy by bytes per work, prices brought up to date as in a lazy heap; a pure
function of the graph, so tighter budgets only go further along one sequence.
"""

from __future__ import annotations

import heapq
import math

from rudagraph.ir.graph import Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.passes.recompute import JointView

_REPEATABLE = (
    Tag.POINTWISE | Tag.REDUCTION | Tag.VIEW | Tag.CREATION | Tag.RANDOM | Tag.MATMUL | Tag.GATHER
)
# Library ops that only move elements.
_MOVES = frozenset(("concatenate", "pad"))
# PyTorch's own that give the same bits for the same operands, as products do.
_CONVOLUTION = "aten.convolution.default"
# Work in units of one multiplication and addition of a product: measured on 2 cores, a product does
# about 60 of them in the time that moving one element through memory takes.
_WORK_OF_AN_ELEMENT = 60.0
_WORK_OF_A_TRANSCENDENTAL = 200.0


def evictions(view: JointView, saved: frozenset[Value]) -> list[frozenset[Value]]:
    """Sets of saved values, each smaller than the one before by one value; the first is `saved`."""
    prices = Prices(view, saved)
    sequence = [saved]
    heap = [
        (prices.per_byte(value), index, value)
        for index, value in enumerate(view.joint.values())
        if value in saved and value not in view.pinned
    ]
    heapq.heapify(heap)
    while heap:
        price, index, value = heapq.heappop(heap)
        now = prices.per_byte(value)
        if math.isinf(now):
            continue
        if now > price:
            heapq.heappush(heap, (now, index, value))
            continue
        prices.evict(value)
        sequence.append(frozenset(prices.saved))
    return sequence


class Prices:
    """Work to compute a saved value again, given what else is saved."""

    def __init__(self, view: JointView, saved: frozenset[Value]) -> None:
        self.producers = view.producers
        self.mutated = view.mutated_inputs()
        self.saved = set(saved)

    def evict(self, value: Value) -> None:
        self.saved.discard(value)

    def per_byte(self, value: Value) -> float:
        """Work for each byte that evicting the value frees; infinite where it cannot be."""
        total = 0.0
        seen: set[int] = set()
        stack = [value]
        while stack:
            op = self.producers.get(stack.pop())
            if op is None or id(op) in seen:
                continue
            seen.add(id(op))
            if not is_repeatable(op):
                return math.inf
            total += _work(op)
            for operand in op.inputs:
                if operand in self.mutated:
                    return math.inf
                if operand not in self.saved:
                    stack.append(operand)
        return total / max(value.type.bytes, 1)


def work_again(view: JointView, saved: frozenset[Value]) -> float:
    """Work of forward that backward does once more where only these values are saved."""
    total = 0.0
    seen: set[int] = set()
    stack = [value for value in view.asked if value not in saved]
    while stack:
        op = view.producers.get(stack.pop())
        if op is None or id(op) in seen:
            continue
        seen.add(id(op))
        total += _work(op)
        stack += [operand for operand in op.inputs if operand not in saved]
    return total


def is_repeatable(op: Op) -> bool:
    """Whether the op gives the same bits a second time."""
    return has(op, _REPEATABLE) or op.opcode in _MOVES or op.get("target") == _CONVOLUTION


def _work(op: Op) -> float:
    if has(op, Tag.VIEW | Tag.CREATION):
        return 0.0
    elements = float(sum(result.type.numel for result in op.results))
    if op.get("target") == _CONVOLUTION:
        weight = op.inputs[1].type
        return elements * weight.numel / weight.shape[0]
    if has(op, Tag.MATMUL):
        return elements * op.inputs[-1].type.shape[-2]
    if has(op, Tag.EXPENSIVE | Tag.RANDOM):
        return elements * _WORK_OF_A_TRANSCENDENTAL
    read = sum(operand.type.numel for operand in op.inputs)
    return max(elements, float(read)) * _WORK_OF_AN_ELEMENT
