"""Program: one compiled signature of a step as pure data, just what an artifact holds.

Input of the runtime, output of the compiler. Invariant: nothing in it refers to a model or a device
handle; constants are the only tensors. What is there for people, stages and decisions, is worked
out when somebody looks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from rudagraph.ir.contract import Contract
from rudagraph.ir.decision import Decision
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.tree import Template
from rudagraph.schedule.kernel import KernelSource, MachineCode
from rudagraph.schedule.plan import Plan


@dataclass(frozen=True)
class Stage:
    """A graph of one entry after one part of the compilation, for people to read."""

    name: str  # "capture", "simplify", … in the order they ran; the last is what was planned
    entry: str  # "joint", "forward" or "backward"
    show: Callable[[], str]
    tell: Callable[[], str] = str

    @property
    def text(self) -> str:
        """The graph, printed when somebody looks."""
        return self.show()

    @property
    def note(self) -> str:
        """What this part did, in a line; nothing where it changed nothing."""
        return self.tell()


@dataclass(frozen=True)
class Program:
    """Plan, code, contract and output structure of one signature.

    `gradient_sources` says for each gradient (by port target) which results' upstream gradients it
    is made from: where none of them arrives, autograd gives None and so does the step.
    """

    plan: Plan
    kernels: tuple[MachineCode, ...]
    contract: Contract
    template: Template
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    gradient_sources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    stages: tuple[Stage, ...] = ()
    decide: Callable[[], tuple[Decision, ...]] = tuple
    sources: tuple[KernelSource, ...] = ()
    in_flight: int = 1
    deterministic: bool = False

    @functools.cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Why each value that backward needs is saved, or computed again."""
        return self.decide()


def gradient_sources(graph: Graph) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """For each gradient of a graph, the tangents it depends on: ask the graph as captured."""
    sources: dict[Value, frozenset[str]] = {
        port.value: frozenset([port.target] if port.role is Role.TANGENT else [])
        for port in graph.inputs
    }
    for op in graph.ops:
        reached = frozenset[str]().union(*(sources[value] for value in op.inputs))
        sources.update(dict.fromkeys(op.results, reached))
    return tuple(
        (port.target, tuple(sorted(sources[port.value])))
        for port in graph.outputs
        if port.role is Role.GRADIENT
    )
