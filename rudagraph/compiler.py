"""The compiler, read top to bottom: a module and an example call become a Program.

capture -> passes on the joint graph -> cut -> passes on each entry -> plan -> machine code
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from rudagraph.budget import plan_within
from rudagraph.capture import Capture, capture
from rudagraph.collector import collector_waiting
from rudagraph.ir.graph import Graph, Value
from rudagraph.ir.strides import Strided
from rudagraph.options import CompileOptions
from rudagraph.passes.decisions import decide
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
    """Everything after capture; the stages are kept as text under their passes' names."""
    stages = StageRecorder()
    report.stage("passes")
    stages.record("capture", captured.graph)
    joint = run_passes(target.joint_passes, captured.graph, stages.record)
    report.stage("plan")
    policy = POLICIES[target.name]
    wanted = choose_saved(joint, policy)
    with target.build(report.kernels) as build:
        # Without a budget the first plan is the plan: its kernels are built while it is made.
        begin = build.add if options.budget_bytes is None else _wait
        entries = plan_within(
            joint,
            wanted,
            options.budget_bytes,
            lambda saved: _plan_entries(joint, saved, target, begin),
        )
        build.add(entries.sources)
        stages.extend(entries.stages)
        stages.dump(entries.plan, entries.sources)
        contract = build_contract(model, captured.call, captured.renewed)
        decisions = decide(joint, policy, wanted, *entries.parts, options.budget_bytes)
        return Program(
            plan=entries.plan,
            kernels=tuple(build.finish(entries.sources)),
            contract=contract,
            template=captured.template,
            constants=captured.constants,
            gradient_sources=gradient_sources(captured.graph),
            stages=stages.stages,
            decisions=decisions,
            sources=entries.sources,
            in_flight=options.in_flight,
            deterministic=options.deterministic,
        )


def _wait(kernels: Iterable[KernelSource]) -> None:
    """Kernels of a plan that may not be taken."""


@dataclass(frozen=True)
class _Entries:
    """Forward and backward, planned for one choice of saved values."""

    parts: tuple[Graph, Graph | None]  # just cut
    plan: Plan
    sources: tuple[KernelSource, ...]
    stages: StageRecorder

    @property
    def peak_bytes(self) -> int:
        return self.plan.peak_bytes


def _plan_entries(
    joint: Graph,
    saved: frozenset[Value],
    target: Target,
    begin: Callable[[Iterable[KernelSource]], None],
) -> _Entries:
    """Cut the joint graph, make kernels of both parts, plan them on one time line."""
    stages = StageRecorder()
    forward, backward = parts = partition(joint, saved)
    planner = Planner(remembered(target.generate), target.apart_bytes, target.scratch)
    forward = _finish_entry(forward, {}, stages)
    planner.entry(forward)
    begin(planner.kernels.values())
    if backward is not None:
        planner.entry(_finish_entry(backward, residual_layouts(forward), stages))
        begin(planner.kernels.values())
    planned, sources = planner.finish()
    return _Entries(parts, planned, sources, stages)


def _finish_entry(entry: Graph, residuals: Mapping[str, Strided], stages: StageRecorder) -> Graph:
    """Kernels and their order, for forward or backward."""
    stages.record("partition", entry)
    fused = run_passes(entry_passes(residuals), entry, stages.record)
    return stages.record("order", order(fused))
