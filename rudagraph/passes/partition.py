"""Cut the joint graph into forward and backward.

    %y = gelu(%x)                        forward  %y = gelu(%x)
    %p = matmul(%y, %w)                           %p = matmul(%y, %w)
    output result "out" = %p                      output result "out" = %p
    %t = input tangent "out"                      output residual "y" = %y
    %d = matmul(permute(%y), %t)         backward %y = input residual "y"
    output gradient "w" = %d                      %d = matmul(permute(%y), %t)

Forward is what results and updates need; backward is what gradients need beyond the saved values.
Which values are saved is the policy's choice (recompute.py); here only the mechanics. A residual
among the joint graph's outputs is no choice: a pass has said that forward makes and keeps it.
Inputs of the step are read again by backward, but one that forward overwrites is copied first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rudagraph.ir.graph import Graph, Location, Op, Port, Role, Value
from rudagraph.passes.liveness import needed_ops
from rudagraph.passes.recompute import JointView, choose_saved

_OF_FORWARD = (Role.RESULT, Role.UPDATE)


def partition(joint: Graph, saved: frozenset[Value] | None = None) -> tuple[Graph, Graph | None]:
    """Forward and backward; no backward where the graph has no gradients."""
    outputs = [port for port in joint.outputs if port.role in _OF_FORWARD]
    gradients = [port for port in joint.outputs if port.role is Role.GRADIENT]
    inputs = [port for port in joint.inputs if port.role is not Role.TANGENT]
    if not gradients:
        return _part(joint, "forward", inputs, {}, outputs), None
    view = JointView(joint)
    if saved is None:
        saved = choose_saved(joint)
    saved |= view.pinned
    kept = _Kept(joint, view, saved)
    read = kept.read_by(port.value for port in gradients)
    copies = {value: kept.copy_of[value] for value in kept.copy_of if value in read}
    residuals = [Port(value, Role.RESIDUAL, value.name) for value in kept.order if value in read]
    residuals += [Port(copy, Role.RESIDUAL, copy.name) for copy in copies.values()]
    forward = _part(joint, "forward", inputs, copies, outputs + residuals)
    backward_inputs = [port for port in joint.inputs if port.role is Role.TANGENT]
    backward_inputs += residuals
    backward_inputs += [port for port in inputs if port.value in read and port.value not in copies]
    return forward, _substituted(joint, backward_inputs, copies, gradients)


class _Kept:
    """The values backward finds in memory: inputs, saved values, copies of overwritten inputs."""

    def __init__(self, joint: Graph, view: JointView, saved: frozenset[Value]) -> None:
        self.producers = view.producers
        self.order = [
            value for value in joint.values() if value in saved and value in self.producers
        ]
        self.saved = saved
        mutated = view.mutated_inputs()
        taken = {value.name for value in joint.values()}
        self.copy_of: dict[Value, Value] = {}
        for port in joint.inputs:
            if port.value in mutated:
                name = _unused(f"{port.value.name}.saved", taken)
                self.copy_of[port.value] = Value(name, port.value.type)

    def read_by(self, wanted: Iterable[Value]) -> set[Value]:
        """The values found in memory that computing `wanted` reads."""
        found: set[Value] = set()
        seen: set[Value] = set()
        stack = list(wanted)
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self.saved or value not in self.producers:
                found.add(value)
            else:
                stack += self.producers[value].inputs
        return found


def _part(
    joint: Graph,
    name: str,
    inputs: list[Port],
    copies: dict[Value, Value],
    outputs: list[Port],
) -> Graph:
    """The ops of `joint` that `outputs` need, with copies of overwritten inputs in front."""
    ops = [Op("copy", (value,), (copy,), (), Location()) for value, copy in copies.items()]
    ops += joint.ops
    return Graph(name, tuple(inputs), _needed(ops, inputs, outputs), tuple(outputs))


def _substituted(
    joint: Graph, inputs: list[Port], copies: dict[Value, Value], outputs: list[Port]
) -> Graph:
    """Backward: ops that read an overwritten input read its copy instead."""

    ops = [op.reading(copies) for op in joint.ops]
    outputs = [replace(port, value=copies.get(port.value, port.value)) for port in outputs]
    return Graph("backward", tuple(inputs), _needed(ops, inputs, outputs), tuple(outputs))


def _needed(ops: list[Op], inputs: list[Port], outputs: list[Port]) -> tuple[Op, ...]:
    given = {port.value for port in inputs}
    return needed_ops(ops, (port.value for port in outputs), given)


def _unused(name: str, taken: set[str]) -> str:
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate
