"""The compiler, read top to bottom: a module and an example call become a Program.

capture -> passes on the joint graph -> cut -> passes on each entry -> plan -> machine code
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from rudagraph.budget import plan_within
from rudagraph.capture import Capture, capture
from rudagraph.collector import collector_waiting
from rudagraph.ir.decision import Decision
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.strides import Strided
from rudagraph.options import CompileOptions
from rudagraph.passes.decisions import decide
from rudagraph.passes.fold import Folding, check_whole, fold, unfold
from rudagraph.passes.layers import NotRepeating
from rudagraph.passes.partition import partition
from rudagraph.passes.pipeline import entry_passes, run_passes
from rudagraph.passes.recompute import POLICIES, choose_saved
from rudagraph.progress import SILENT, Report
from rudagraph.runtime.contract import build_contract
from rudagraph.schedule.kernel import KernelSource
from rudagraph.schedule.layout import residual_layouts
from rudagraph.schedule.lowered import remembered
from rudagraph.schedule.order import order
from rudagraph.schedule.plan import Plan
from rudagraph.schedule.planner import Planner
from rudagraph.schedule.program import Program, gradient_sources
from rudagraph.stages import StageRecorder
from rudagraph.target import Target, target_of

_LOG = logging.getLogger(__name__)


def compile_signature(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CompileOptions,
    targets: tuple[Any, ...] = (),
    report: Report = SILENT,
) -> Program:
    """Compile one signature: forward and backward of `model(*args, **kwargs)` as they are now."""
    with collector_waiting() as collect:
        report.stage("capture")
        captured = capture(
            model, args, kwargs, outputs=options.outputs, loss=options.loss, targets=targets
        )
        collect()  # nodes of the trace hold each other
        return compile_capture(captured, model, options, target_of(model, captured), report)


def compile_capture(
    captured: Capture,
    model: nn.Module,
    options: CompileOptions,
    target: Target,
    report: Report = SILENT,
) -> Program:
    """Everything after capture; the stages are kept under their passes' names."""
    report.stage("passes")
    with target.build(report.kernels) as build:
        # Without a budget the first plan is the plan: its kernels are built while it is made.
        begin = build.add if options.budget_bytes is None else _wait
        compiler = _Compiler(captured.graph, target, options.budget_bytes, begin, report)
        made = compiler.run()
        build.add(made.sources)
        made.stages.dump(made.plan, made.sources)
        return Program(
            plan=made.plan,
            kernels=tuple(build.finish(made.sources)),
            contract=build_contract(model, captured.call, captured.renewed),
            template=captured.template,
            constants=captured.constants,
            gradient_sources=gradient_sources(captured.graph),
            stages=made.stages.stages,
            decide=made.decide,
            sources=made.sources,
            in_flight=options.in_flight,
            deterministic=options.deterministic,
        )


def _wait(kernels: Iterable[KernelSource]) -> None:
    """Kernels of a plan that may not be taken."""


@dataclass(frozen=True)
class _Entries:
    """Forward and backward, planned for one choice of saved values."""

    plan: Plan
    sources: tuple[KernelSource, ...]
    stages: StageRecorder
    decide: Callable[[], tuple[Decision, ...]]

    @property
    def peak_bytes(self) -> int:
        return self.plan.peak_bytes


@dataclass(frozen=True)
class _Compiler:
    """From the captured graph to a plan and the sources of its kernels."""

    captured: Graph
    target: Target
    budget: int | None
    begin: Callable[[Iterable[KernelSource]], None]
    report: Report

    def run(self) -> _Entries:
        """Equal layers are compiled once where nothing has to be chosen layer by layer."""
        if self.budget is None:
            try:
                return self._run(*fold(self.captured))
            except NotRepeating as reason:
                _LOG.debug("layers are compiled one by one: %s", reason)
        return self._run(self.captured, ())

    def _run(self, graph: Graph, foldings: tuple[Folding, ...]) -> _Entries:
        stages = StageRecorder(self.captured, graph, foldings)
        joint = run_passes(self.target.joint_passes, graph, stages.record)
        self.report.stage("plan")
        wanted = choose_saved(joint, POLICIES[self.target.name])

        def plan(saved: frozenset[Value]) -> _Entries:
            return self._plan(joint, wanted, saved, foldings, stages.branch())

        return plan_within(joint, wanted, self.budget, plan)

    def _plan(
        self,
        joint: Graph,
        wanted: frozenset[Value],
        saved: frozenset[Value],
        foldings: tuple[Folding, ...],
        stages: StageRecorder,
    ) -> _Entries:
        """Cut the joint graph, make kernels of both parts, plan them on one time line."""
        target = self.target
        planner = Planner(remembered(target.generate), target.apart_bytes, target.scratch)
        entries: list[Graph] = []

        def plan_entry(entry: Graph) -> None:
            entries.append(unfold(entry, foldings))
            planner.entry(entries[-1])
            self.begin(planner.kernels.values())

        forward, backward = parts = partition(joint, saved)
        forward = _finish_entry(forward, {}, stages)
        plan_entry(forward)
        if backward is not None:
            plan_entry(_finish_entry(backward, residual_layouts(forward), stages))
        if foldings:
            check_whole(self.captured, entries)
        plan, sources = planner.finish()
        return _Entries(plan, sources, stages, partial(self._decide, joint, wanted, parts, stages))

    def _decide(
        self,
        joint: Graph,
        wanted: frozenset[Value],
        parts: tuple[Graph, Graph | None],
        stages: StageRecorder,
    ) -> tuple[Decision, ...]:
        """Why values are saved, of all layers where they can be put back into what was cut."""
        policy = POLICIES[self.target.name]
        forward, backward = parts
        if backward is None:
            return ()
        wholes = [stages.whole(graph) for graph in (joint, forward, backward)]
        if any(whole is part for whole, part in zip(wholes, (joint, *parts), strict=True)):
            return decide(joint, policy, wanted, forward, backward, self.budget)
        # Layers were left out, and so there is no budget: all is saved that the policy wanted.
        ports = wholes[-1].inputs
        wanted = frozenset(port.value for port in ports if port.role is Role.RESIDUAL)
        return decide(wholes[0], policy, wanted, wholes[1], wholes[2])


def _finish_entry(entry: Graph, residuals: Mapping[str, Strided], stages: StageRecorder) -> Graph:
    """Kernels and their order, for forward or backward."""
    stages.record("partition", entry)
    fused = run_passes(entry_passes(residuals), entry, stages.record)
    return stages.record("order", order(fused))
