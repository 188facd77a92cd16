"""A plan of both entries at once, as the compiler makes it step by step."""

from __future__ import annotations

from typing import Any

from rudagraph.ir.graph import Graph
from rudagraph.schedule.kernel import KernelSource
from rudagraph.schedule.lowered import Generate, remembered
from rudagraph.schedule.plan import Plan
from rudagraph.schedule.planner import Planner


def plan(
    forward: Graph, backward: Graph | None, generate: Generate, *options: Any, **named: Any
) -> tuple[Plan, tuple[KernelSource, ...]]:
    """The plan of a step and the distinct kernels it launches; options are the planner's."""
    planner = Planner(remembered(generate), *options, **named)
    for graph in (forward, backward) if backward is not None else (forward,):
        planner.entry(graph)
    return planner.finish()
