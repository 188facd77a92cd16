"""Program: one compiled signature of a step as pure data, just what an artifact holds.

Input of the runtime, output of the compiler. Invariant: nothing in it refers to a model or a device
handle; constants are the only tensors. What is there for people is worked out when somebody looks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from rudagraph.ir.contract import Contract
from rudagraph.ir.decision import Decision
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.text import print_graph
from rudagraph.ir.tree import Template
from rudagraph.schedule.kernel import KernelSource, MachineCode
from rudagraph.schedule.plan import Plan


@dataclass(frozen=True, slots=True)
class Stage:
    """A graph of one entry after one part of the compilation; `text` is what it says."""

    name: str  # "capture", "simplify", … in the order they ran; the last is what was planned
    entry: str  # "joint", "forward" or "backward"
    graph: Graph | str  # printed when somebody looks
    note: str = ""  # what this part did, in a line; nothing where it changed nothing

    @property
    def text(self) -> str:
        return self.graph if isinstance(self.graph, str) else print_graph(self.graph)


@dataclass(frozen=True, slots=True)
class Account:
    """How a compilation went, for people to read."""

    stages: tuple[Stage, ...] = ()
    decisions: tuple[Decision, ...] = ()  # why what backward needs is saved, or computed again


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
    account: Callable[[], Account] = Account
    sources: tuple[KernelSource, ...] = ()
    in_flight: int = 1
    deterministic: bool = False

    @functools.cached_property
    def _told(self) -> Account:
        return self.account()

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._told.stages

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self._told.decisions


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
