"""Which forward values backward saves and which it computes again: the policy.

    forward   %x -> %cast -> %norm -> %matmul        backward needs %cast and %norm
    network   a value's node can be cut at the price of its bytes; a value that may not be computed
              again hangs on the source; what backward reads hangs on the sink
    result    the cheapest cut: here %x is an input, so nothing is saved but %norm's statistics

Views, casts, cheap arithmetic, creation (and, where the target says so, random bits) are computed
again; products, library ops, reductions, gathers and transcendentals are not, and neither is a
value that a product in backward needs in memory anyway. What only backward needs is computed there:
once, so at no cost. Ties go to the later value: less is computed twice. The choice never changes a
bit of any result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rudagraph.ir.cut import UNCUTTABLE, source_side
from rudagraph.ir.graph import Graph, Op, Role, Value
from rudagraph.ir.ops import Tag, has

_OWN_MEMORY = Tag.MATMUL | Tag.LIBRARY | Tag.GATHER | Tag.SCATTER
_FREE = Tag.VIEW | Tag.CREATION


@dataclass(frozen=True)
class RecomputePolicy:
    """What may be computed again in backward. A tighter budget sets more of these.

    random: draw random bits again; on a CPU reading a saved byte is cheaper.
    expensive: evaluate transcendentals again.
    materialised: recompute values that products of backward read, at the cost of writing them.
    """

    random: bool = False
    expensive: bool = False
    materialised: bool = False


@dataclass
class JointView:
    """The joint graph as the cut sees it: what depends on tangents, what backward asks for."""

    joint: Graph
    producers: dict[Value, Op] = field(init=False)
    users: dict[Value, list[Op]] = field(init=False)
    backward: set[Value] = field(init=False)  # results that depend on a tangent
    asked: list[Value] = field(init=False)  # forward values that backward reads, in order

    def __post_init__(self) -> None:
        joint = self.joint
        self.producers, self.users = joint.producers(), joint.users()
        tangents = (port.value for port in joint.inputs if port.role is Role.TANGENT)
        self.backward = set(tangents)
        needed = _needed_for(joint, self.producers, frozenset((Role.GRADIENT,)))
        asked: dict[Value, None] = {}
        for op in joint.ops:
            if self.backward.isdisjoint(op.inputs):
                continue
            self.backward.update(op.results)
            if not needed.isdisjoint(op.results):
                asked.update((v, None) for v in op.inputs if v not in self.backward)
        for port in joint.outputs:
            if port.role is Role.GRADIENT and port.value not in self.backward:
                asked[port.value] = None
        self.asked = list(asked)

    def mutated_inputs(self) -> set[Value]:
        """Inputs whose old value is gone once forward has run."""
        targets = {port.target for port in self.joint.outputs if port.role is Role.UPDATE}
        return {
            port.value
            for port in self.joint.inputs
            if f"{port.role.value}:{port.target}" in targets
        }


def choose_saved(joint: Graph, policy: RecomputePolicy = RecomputePolicy()) -> frozenset[Value]:
    """The forward values to save for backward; inputs count as saved unless they are mutated."""
    view = JointView(joint)
    chooser = _Chooser(view, policy)
    asked = chooser.asked_in_memory()
    forced = [value for value in asked if value in chooser.fixed]
    available = chooser.free_inputs | set(forced)
    edges = list(chooser.network(available, asked))
    if not edges:
        return frozenset(forced)
    left = source_side(edges, _SOURCE, _SINK)
    cut = {
        value for value in chooser.reached if ("in", value) in left and ("out", value) not in left
    }
    return frozenset(forced) | cut


_SOURCE: tuple[str, Value | None] = ("source", None)
_SINK: tuple[str, Value | None] = ("sink", None)
_Edge = tuple[tuple[str, Value | None], tuple[str, Value | None], int]


class _Chooser:
    """Builds the flow network of one joint graph under one policy."""

    def __init__(self, view: JointView, policy: RecomputePolicy) -> None:
        self.view, self.policy = view, policy
        self.mutated = view.mutated_inputs()
        inputs = {port.value for port in view.joint.inputs}
        self.free_inputs = inputs - self.mutated
        self.reached: dict[Value, None] = {}
        self.in_backward_memory = self._read_through_views(in_backward=True)
        self.in_forward_memory = self._read_through_views(in_backward=False)
        self.in_forward_memory |= view.joint.output_values()
        self.in_forward = _needed_for(
            view.joint, view.producers, frozenset((Role.RESULT, Role.UPDATE))
        )
        # Values that are there or not: nothing computes them again.
        self.fixed = self.mutated | {
            result
            for op in view.joint.ops
            if not self._repeatable(op)
            for result in op.results
            if result not in view.backward
        }

    def asked_in_memory(self) -> list[Value]:
        """What backward reads, views replaced by what they view."""
        found: dict[Value, None] = {}
        for value in self.view.asked:
            found[self._root(value)] = None
        return list(found)

    def _root(self, value: Value) -> Value:
        op = self.view.producers.get(value)
        while op is not None and has(op, Tag.VIEW):
            value = op.inputs[0]
            op = self.view.producers.get(value)
        return value

    def _repeatable(self, op: Op) -> bool:
        if has(op, _FREE) or self.in_forward.isdisjoint(op.results):
            return True
        if not self.policy.materialised and not self.in_backward_memory.isdisjoint(op.results):
            return False
        if has(op, Tag.RANDOM):
            return self.policy.random
        return has(op, Tag.POINTWISE) and (self.policy.expensive or not has(op, Tag.EXPENSIVE))

    def _read_through_views(self, *, in_backward: bool) -> set[Value]:
        """Values that a product or library op of one side reads, directly or through views."""
        found: set[Value] = set()
        for op in reversed(self.view.joint.ops):
            if has(op, Tag.VIEW):
                if op.result in found:
                    found.add(op.inputs[0])
            elif has(op, _OWN_MEMORY) and in_backward == (op.results[0] in self.view.backward):
                found.update(op.inputs)
        return found

    def network(self, available: set[Value], asked: list[Value]) -> Iterator[_Edge]:
        """Edges among the values between what must be had and what backward asks for."""
        wanted = set(asked)
        stack = [value for value in asked if value not in available]
        while stack:
            value = stack.pop()
            if value in self.reached:
                continue
            self.reached[value] = None
            if value in self.fixed:
                continue
            op = self.view.producers[value]
            stack += [v for v in op.inputs if v not in available and v not in self.reached]
        for value in self.reached:
            yield ("in", value), ("out", value), self._price(value)
            if value in wanted:
                yield ("out", value), _SINK, UNCUTTABLE
            if value in self.fixed:
                yield _SOURCE, ("in", value), UNCUTTABLE
                continue
            for operand in self.view.producers[value].inputs:
                if operand in self.reached:
                    yield ("out", operand), ("in", value), UNCUTTABLE

    def _price(self, value: Value) -> int:
        """Bytes that saving costs: a value that forward would not store is written for this."""
        op = self.view.producers.get(value)
        if op is not None and has(op, Tag.VIEW):
            return UNCUTTABLE  # what it views is saved instead
        stored = value in self.in_forward_memory or op is None
        return max(value.type.bytes, 1) * (1 if stored else 2)


def _needed_for(joint: Graph, producers: dict[Value, Op], roles: frozenset[Role]) -> set[Value]:
    """The values that outputs of these roles depend on."""
    needed: set[Value] = set()
    stack = [port.value for port in joint.outputs if port.role in roles]
    while stack:
        value = stack.pop()
        if value in needed:
            continue
        needed.add(value)
        if value in producers:
            stack += producers[value].inputs
    return needed
