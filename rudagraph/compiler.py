"""The compiler, read top to bottom: a module and an example call become a Program.

capture -> passes on the joint graph -> cut -> passes on each entry -> plan -> machine code
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from rudagraph.budget import plan_within
from rudagraph.capture import Capture, capture
from rudagraph.collector import collector_waiting
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.layers import NotRepeating, origin
from rudagraph.ir.strides import Strided
from rudagraph.options import CompileOptions, environment
from rudagraph.passes.check_fold import check_ports, check_unfolds, check_whole
from rudagraph.passes.decisions import decide
from rudagraph.passes.fold import Folding, Ports, fold, folded_by_capture, ports, unfold
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
from rudagraph.schedule.program import Account, Program, gradient_sources
from rudagraph.stages import StageRecorder, dump
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
        captured = _capture(model, args, kwargs, options, targets)
        collect()  # nodes of the trace hold each other
        return compile_capture(captured, model, options, target_of(model, captured), report)


def _capture(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CompileOptions,
    targets: tuple[Any, ...],
) -> Capture:
    """Without most of a row of equal layers, where they can be put back into what is made of it."""

    def captured(all_layers: bool) -> Capture:
        return capture(
            model,
            args,
            kwargs,
            outputs=options.outputs,
            loss=options.loss,
            targets=targets,
            all_layers=all_layers,
        )

    if options.budget_bytes is not None:  # what is saved is chosen layer by layer
        return captured(all_layers=True)
    short = captured(all_layers=False)
    try:
        foldings = folded_by_capture(short.graph, short.left_out)
        check_unfolds(short.graph, foldings)
        check_ports(short.graph, foldings, short.left_out, short.held)
    except NotRepeating as reason:
        _LOG.debug("captured again with all layers: %s", reason)
        return captured(all_layers=True)
    return short


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
        foldings = folded_by_capture(captured.graph, captured.left_out)
        ends = ports(captured.graph, foldings)
        compiler = _Compiler(
            captured.graph, foldings, ends, target, options.budget_bytes, begin, report
        )
        made = compiler.run()
        build.add(made.sources)
        if environment("RUDAGRAPH_DUMP"):
            dump(made.account().stages, made.plan, made.sources)
        return Program(
            plan=made.plan,
            kernels=tuple(build.finish(made.sources)),
            contract=build_contract(model, captured.call, captured.renewed),
            template=captured.template,
            constants=captured.constants,
            gradient_sources=_gradient_sources(captured, ends),
            account=made.account,
            sources=made.sources,
            in_flight=options.in_flight,
            deterministic=options.deterministic,
        )


def _gradient_sources(captured: Capture, whole: Ports) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Of all gradients; those of layers left out are made as those of their neighbours."""
    known = dict(gradient_sources(captured.graph))
    targets = [port.target for port in whole[1] if port.role is Role.GRADIENT]
    return tuple((target, known[origin(target, captured.left_out)]) for target in targets)


def _wait(kernels: Iterable[KernelSource]) -> None:
    """Kernels of a plan that may not be taken."""


@dataclass(frozen=True)
class _Entries:
    """Forward and backward, planned for one choice of saved values."""

    plan: Plan
    sources: tuple[KernelSource, ...]
    account: Callable[[], Account]

    @property
    def peak_bytes(self) -> int:
        return self.plan.peak_bytes


@dataclass(frozen=True)
class _Compiler:
    """From the captured graph to a plan and the sources of its kernels."""

    captured: Graph
    foldings: tuple[Folding, ...]  # of the captured graph, which leaves layers out
    ends: Ports  # of all layers
    target: Target
    budget: int | None
    begin: Callable[[Iterable[KernelSource]], None]
    report: Report

    def run(self) -> _Entries:
        """Equal layers are compiled once where nothing has to be chosen layer by layer."""
        if self.budget is None:
            graph, foldings = self.captured, self.foldings
            if not foldings:
                graph, foldings = fold(self.captured)
            try:
                made = self._run(graph, foldings)
            except NotRepeating as reason:
                _LOG.debug("layers are compiled one by one: %s", reason)
            else:
                return replace(made, account=self._account_of_all) if foldings else made
        return self._run(self._all_layers(), ())

    def _all_layers(self) -> Graph:
        return unfold(self.captured, self.foldings)

    def _run(self, graph: Graph, foldings: tuple[Folding, ...]) -> _Entries:
        stages = StageRecorder()
        stages.record("capture", graph)
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
            # With all layers: which order has the lowest peak depends on how many there are.
            entries.append(stages.record("order", order(unfold(entry, foldings))))
            planner.entry(entries[-1])
            self.begin(planner.kernels.values())

        forward, backward = parts = partition(joint, saved)
        forward = _make_kernels(forward, {}, stages)
        plan_entry(forward)
        if backward is not None:
            plan_entry(_make_kernels(backward, residual_layouts(forward), stages))
        if foldings:
            check_whole(self.ends, entries)
        plan, sources = planner.finish()
        policy = POLICIES[target.name]

        def account() -> Account:
            return Account(stages.stages, decide(joint, policy, wanted, *parts, self.budget))

        return _Entries(plan, sources, account)

    def _account_of_all(self) -> Account:
        """What compiling every layer for itself does, which comes to the same."""
        return replace(self, begin=_wait, report=SILENT)._run(self._all_layers(), ()).account()


def _make_kernels(entry: Graph, residuals: Mapping[str, Strided], stages: StageRecorder) -> Graph:
    """Forward or backward with its ops in kernels."""
    stages.record("partition", entry)
    return run_passes(entry_passes(residuals), entry, stages.record)
