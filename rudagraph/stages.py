"""Keeps every stage of a compilation as text, and writes them as numbered files when asked.

RUDAGRAPH_DUMP=dir writes 00_capture.joint.rg … plan.txt and kernels/*.py into a folder of its own
for each compilation; nothing in them depends on time, addresses or absolute paths.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from functools import partial
from pathlib import Path

from rudagraph.ir.graph import Graph
from rudagraph.ir.text import print_graph
from rudagraph.options import environment
from rudagraph.passes.fold import Folding, unfold
from rudagraph.passes.layers import NotRepeating
from rudagraph.passes.notes import note
from rudagraph.schedule.kernel import KernelSource
from rudagraph.schedule.plan import Plan
from rudagraph.schedule.print_plan import print_plan
from rudagraph.schedule.program import Stage


class StageRecorder:
    """Collects stages in order; `record` returns the graph, so that it can stand in a chain.

    Args:
        captured: the graph that compilation began with.
        folded: what the passes were given; with all layers that is `captured`.
        foldings: what brings back the layers that it lacks.
    """

    def __init__(self, captured: Graph, folded: Graph, foldings: Sequence[Folding]) -> None:
        self._graphs: list[tuple[str, Graph]] = []
        self._foldings = foldings
        self._wholes: dict[int, Graph] = {id(folded): captured}  # graphs with all their layers
        self.record("capture", folded)

    def record(self, name: str, graph: Graph) -> Graph:
        self._graphs.append((name, graph))
        return graph

    def branch(self) -> StageRecorder:
        """A recorder that goes on from here beside this one."""
        other = copy(self)
        other._graphs = list(self._graphs)
        return other

    def whole(self, graph: Graph) -> Graph:
        """A recorded graph with all its layers; as it is where they cannot be put back."""
        if id(graph) not in self._wholes:
            try:
                self._wholes[id(graph)] = unfold(graph, self._foldings)
            except NotRepeating:
                self._wholes[id(graph)] = graph
        return self._wholes[id(graph)]

    @property
    def stages(self) -> tuple[Stage, ...]:
        before: dict[str, Graph] = {}
        stages = []
        for name, graph in self._graphs:
            last = before.get(graph.name, graph)
            before[graph.name] = graph
            show, tell = partial(self._text, graph), partial(self._note, name, last, graph)
            stages.append(Stage(name, graph.name, show, tell))
        return tuple(stages)

    def _text(self, graph: Graph) -> str:
        whole = self.whole(graph)
        left_out = "".join(
            f"# {folding.removed} equal layers of {folding.layers.prefix} are left out\n"
            for folding in self._foldings
            if whole is graph
        )
        return left_out + print_graph(whole)

    def _note(self, name: str, before: Graph, after: Graph) -> str:
        wholes = self.whole(before), self.whole(after)
        if not self._foldings or (wholes[0] is not before and wholes[1] is not after):
            return note(name, *wholes)
        said = note(name, before, after)
        return f"{said} (most equal layers left out)" if said else ""

    def dump(self, plan: Plan, sources: Sequence[KernelSource]) -> None:
        """Write all stages where RUDAGRAPH_DUMP says; nothing when it is unset."""
        base = environment("RUDAGRAPH_DUMP")
        if not base:
            return
        folder = _fresh_folder(Path(base))
        for number, stage in enumerate(self.stages):
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
