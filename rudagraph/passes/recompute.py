"""Which forward values backward saves and which it computes again: the policy.

    forward   %x -> %cast -> %norm -> %matmul        backward needs %cast and %norm
    network   saving a value cuts its node, at a price per byte; computing it again cuts its edge
              from the source, at a price per element; what backward reads hangs on the sink
    result    the cheapest cut: here %x is an input, so nothing is saved but %norm's statistics

Prices are bytes of memory traffic that take as long, so a slower transcendental or a narrower type
moves the choice. `residency` prices a saved byte for the time it stays: raise it and less is saved.
What only backward needs is computed there once, so at no price. Products, reductions, library ops
and writes outside are never repeated. Ties go to the later value: less is computed twice.
The choice never changes a bit of any result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rudagraph.ir.dag import UNCUTTABLE, source_side
from rudagraph.ir.graph import Graph, Op, Role, Value
from rudagraph.ir.ops import Tag, has

_OWN_MEMORY = Tag.MATMUL | Tag.LIBRARY | Tag.GATHER | Tag.SCATTER
# Library ops that only move elements: as repeatable as arithmetic.
_MOVES = frozenset(("concatenate", "pad"))
# Operations of an op that does several.
_STEPS = {"multiply_add": 2}
UNIT = 16  # capacities are whole sixteenths of a byte


@dataclass(frozen=True)
class RecomputePolicy:
    """Prices in bytes of traffic: per saved byte that stays, per element computed again."""

    residency: float = 1.0
    arithmetic: float = 0.5
    transcendental: float = 12.0
    random: float = 6.0


# Measured in a fused block on 2 cores: writing and reading 2 bytes takes as long as a third of a
# GELU, 0.12 ns an element against 0.35; 16 random bits take 0.2. On a GPU all hide behind memory.
# A saved byte also stays until backward: with a fifth more for that a Llama step launches as many
# kernels, since norms and gates are made again inside kernels that read their operands anyway, and
# its peak is 99 MiB instead of 127. More gains nothing, and splits layers that are equal. On a GPU
# the same fifth takes 3.0 GiB from a step of a Llama of 1.2 billion parameters, and adds no launch.
POLICIES = {
    "cpu": RecomputePolicy(residency=1.2),
    "cuda": RecomputePolicy(residency=1.2, arithmetic=0.05, transcendental=0.75, random=1.5),
}


@dataclass
class JointView:
    """The joint graph as the cut sees it: what depends on tangents, what backward asks for."""

    joint: Graph
    producers: dict[Value, Op] = field(init=False)
    backward: set[Value] = field(init=False)  # tangents and what depends on them
    asked: list[Value] = field(init=False)  # forward values that backward reads, in order
    pinned: frozenset[Value] = field(init=False)  # saved whatever the price

    def __post_init__(self) -> None:
        joint = self.joint
        self.producers = joint.producers()
        residuals = (port.value for port in joint.outputs if port.role is Role.RESIDUAL)
        self.pinned = frozenset(residuals)
        self.backward = {port.value for port in joint.inputs if port.role is Role.TANGENT}
        needed = self.needed_for(Role.GRADIENT)
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

    def needed_for(self, *roles: Role) -> set[Value]:
        """The values that outputs of these roles depend on."""
        needed: set[Value] = set()
        stack = [port.value for port in self.joint.outputs if port.role in roles]
        while stack:
            value = stack.pop()
            if value in needed:
                continue
            needed.add(value)
            if value in self.producers:
                stack += self.producers[value].inputs
        return needed

    def mutated_inputs(self) -> set[Value]:
        """Inputs whose old value is gone once forward has run."""
        targets = {port.target for port in self.joint.outputs if port.role is Role.UPDATE}
        return {
            port.value
            for port in self.joint.inputs
            if f"{port.role.value}:{port.target}" in targets
        }


def choose_saved(joint: Graph, policy: RecomputePolicy = POLICIES["cpu"]) -> frozenset[Value]:
    """The forward values to save for backward; inputs count as saved unless they are mutated."""
    chooser = Chooser(JointView(joint), policy)
    asked = chooser.asked_in_memory()
    forced = {value for value in asked if chooser.repeat_price(value) >= UNCUTTABLE}
    forced |= chooser.view.pinned
    edges = list(chooser.network(chooser.free_inputs | forced, asked))
    if not edges:
        return frozenset(forced)
    left = source_side(edges, _SOURCE, _SINK)
    return frozenset(forced) | {
        value for value in chooser.reached if ("in", value) in left and ("out", value) not in left
    }


_Node = tuple[str, Value | None]
_SOURCE: _Node = ("source", None)
_SINK: _Node = ("sink", None)


class Chooser:
    """Builds the flow network of one joint graph under one policy."""

    def __init__(self, view: JointView, policy: RecomputePolicy) -> None:
        self.view, self.policy = view, policy
        inputs = {port.value for port in view.joint.inputs}
        self.free_inputs = inputs - view.mutated_inputs()
        self.reached: dict[Value, None] = {}
        results = {port.value for port in view.joint.outputs if port.role is not Role.GRADIENT}
        self.in_backward_memory = self._in_memory(set(), in_backward=True)
        self.in_forward_memory = self._in_memory(results, in_backward=False)
        self.in_forward_memory |= self._read_later()
        # (opcode, x) of ops like silu_backward(gradient, x).
        self.derivatives = {
            (op.opcode, op.inputs[-1])
            for op in view.joint.ops
            if has(op, Tag.EXPENSIVE) and op.opcode.endswith("_backward") and op.inputs
        }
        needed = view.needed_for(Role.RESULT, Role.UPDATE, Role.RESIDUAL)
        self.in_forward = {
            value
            for op in view.joint.ops
            if not needed.isdisjoint(op.results)
            for value in op.results
        }

    def asked_in_memory(self) -> list[Value]:
        """What backward reads and is no input, views replaced by what they view."""
        roots = dict.fromkeys(self._root(value) for value in self.view.asked)
        return [value for value in roots if value not in self.free_inputs]

    def _root(self, value: Value) -> Value:
        op = self.view.producers.get(value)
        while op is not None and has(op, Tag.VIEW):
            value = op.inputs[0]
            op = self.view.producers.get(value)
        return value

    def _in_memory(self, found: set[Value], *, in_backward: bool) -> set[Value]:
        """`found`, and what products and library ops of one side read and write, through views."""
        for op in reversed(self.view.joint.ops):
            if has(op, Tag.VIEW):
                if op.result in found:
                    found.add(op.inputs[0])
            elif has(op, _OWN_MEMORY) and in_backward == (op.results[0] in self.view.backward):
                found.update(op.inputs)
                found.update(op.results)
        return found

    def _read_later(self) -> set[Value]:
        """Values that an op of forward reads beyond a product: no kernel holds both."""
        depth = {port.value: 0 for port in self.view.joint.inputs}
        found: set[Value] = set()
        for op in self.view.joint.ops:
            if op.results[0] in self.view.backward:
                continue
            own = max((depth[value] for value in op.inputs), default=0)
            found.update(value for value in op.inputs if depth[value] < own)
            depth.update(dict.fromkeys(op.results, own + has(op, _OWN_MEMORY)))
        return found

    def network(
        self, available: set[Value], asked: list[Value]
    ) -> Iterator[tuple[_Node, _Node, int]]:
        """Edges among the values between what is there anyway and what backward asks for."""
        wanted = {value for value in asked if value not in available}
        stack = list(reversed([value for value in asked if value in wanted]))
        while stack:
            value = stack.pop()
            if value in self.reached:
                continue
            self.reached[value] = None
            price = self.repeat_price(value)
            yield ("in", value), ("out", value), self.save_price(value)
            if price:
                yield _SOURCE, ("in", value), price
            if value in wanted:
                yield ("out", value), _SINK, UNCUTTABLE
            if price >= UNCUTTABLE:
                continue
            for operand in self.view.producers[value].inputs:
                if operand not in available:
                    yield ("out", operand), ("in", value), UNCUTTABLE
                    stack.append(operand)

    def repeat_price(self, value: Value) -> int:
        """What computing the value once more in backward costs; UNCUTTABLE where it may not be."""
        op = self.view.producers.get(value)
        if op is None:
            return UNCUTTABLE  # an input that forward overwrites
        if has(op, Tag.VIEW | Tag.CREATION) or value not in self.in_forward:
            return 0
        count, written = value.type.numel, 0
        if value in self.in_backward_memory or has(op, _OWN_MEMORY):
            written = 2 * value.type.bytes * UNIT
        if has(op, Tag.GATHER) or op.opcode in _MOVES:
            return written + value.type.bytes * UNIT
        if has(op, Tag.RANDOM):
            return written + round(count * self.policy.random * UNIT)
        if has(op, Tag.EXPENSIVE):
            shared = 0.5 if self._derived_in_backward(op) else 1.0
            return written + round(count * self.policy.transcendental * shared * UNIT)
        if has(op, Tag.POINTWISE) and op.opcode != "check_index":
            steps = _STEPS.get(op.opcode, 1)
            return written + round(count * self.policy.arithmetic * steps * UNIT)
        return UNCUTTABLE

    def _derived_in_backward(self, op: Op) -> bool:
        """Whether its derivative takes the same operand: that evaluates most of it again anyway."""
        return (f"{op.opcode}_backward", op.inputs[-1]) in self.derivatives

    def save_price(self, value: Value) -> int:
        """What saving costs: it stays, is read, and is written where forward would not store it."""
        op = self.view.producers.get(value)
        if op is not None and has(op, Tag.VIEW):
            return UNCUTTABLE  # what it views is saved instead
        passes = 1 if value in self.in_forward_memory else 2
        return max(round(value.type.bytes * (self.policy.residency + passes) * UNIT), 1)
