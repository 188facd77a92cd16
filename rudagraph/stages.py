"""Keeps every stage of a compilation as text, and writes them as numbered files when asked.

RUDAGRAPH_DUMP=dir writes 00_capture.joint.rg … plan.txt and kernels/*.py into a folder of its own
for each compilation; nothing in them depends on time, addresses or absolute paths.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from rudagraph.ir.graph import Graph
from rudagraph.options import environment
from rudagraph.passes.notes import note
from rudagraph.schedule.kernel import KernelSource
from rudagraph.schedule.plan import Plan
from rudagraph.schedule.print_plan import print_plan
from rudagraph.schedule.program import Stage


class StageRecorder:
    """Collects stages in order; `record` returns the graph, so that it can stand in a chain."""

    def __init__(self) -> None:
        self._graphs: list[tuple[str, Graph]] = []

    def record(self, name: str, graph: Graph) -> Graph:
        self._graphs.append((name, graph))
        return graph

    def branch(self) -> StageRecorder:
        """A recorder that goes on from here beside this one."""
        other = StageRecorder()
        other._graphs = list(self._graphs)
        return other

    @property
    def stages(self) -> tuple[Stage, ...]:
        before: dict[str, Graph] = {}
        stages = []
        for name, graph in self._graphs:
            said = note(name, before.get(graph.name, graph), graph)
            before[graph.name] = graph
            stages.append(Stage(name, graph.name, graph, said))
        return tuple(stages)


def dump(stages: Sequence[Stage], plan: Plan, sources: Sequence[KernelSource]) -> None:
    """Write all stages into a fresh folder of where RUDAGRAPH_DUMP says."""
    folder = _fresh_folder(Path(environment("RUDAGRAPH_DUMP")))
    for number, stage in enumerate(stages):
        path = folder / f"{number:02d}_{stage.name}.{stage.entry}.rg"
        path.write_text(stage.text, encoding="utf-8")
    (folder / "plan.txt").write_text(print_plan(plan), encoding="utf-8")
    (folder / "kernels").mkdir()
    for source in sources:
        (folder / "kernels" / f"{source.name}.py").write_text(source.text, encoding="utf-8")


def _fresh_folder(base: Path) -> Path:
    """The first of base/step0, base/step1 … that does not exist yet, made."""
    base.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        folder = base / f"step{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable: counting does not end")
