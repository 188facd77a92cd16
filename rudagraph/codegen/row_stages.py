"""The passes of a CPU's rows kernel: chains of dear functions are cut, one element is picked.

Input: a body and its nest. Output: Stages with `picks`, the row reductions that look one element
up: they need no loop over the row. Invariant: the numbers are those of the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from rudagraph.codegen.cuda_picks import is_index
from rudagraph.codegen.domain import Nest
from rudagraph.codegen.slopes import is_function_of, is_slope
from rudagraph.codegen.stages import Place, Source, Stages
from rudagraph.ir.graph import Graph, Op, Value


@dataclass(frozen=True, slots=True)
class Pick:
    """`sum(where(eq(index, target), value, 0))` over a row: `value` at index `target`, or 0."""

    value: Value
    target: Value


class RowStages(Stages):
    """Passes over one row, for a core with a window of instructions and no other threads."""

    cuts_chains = True

    def __init__(self, body: Graph, nest: Nest) -> None:
        self.picks: dict[Value, Pick] = {}  # by result
        super().__init__(body, nest)

    def _gather_roots(self, at: int) -> None:
        """A slope is made where its function is, which takes a tenth of what it takes later."""
        super()._gather_roots(at)
        sources = self.passes[at].sources
        made = [self.producer[v] for v, source in sources.items() if source is Source.COMPUTED]
        for slope in filter(is_slope, self.body.ops):
            if any(is_function_of(op, slope) for op in made):
                self._require(slope.result, at)

    def _require_fold(self, op: Op, at: int) -> None:
        """A pick needs its element computed and its target known, and no comparison."""
        pick = self._find_pick(op)
        if pick is None:
            super()._require_fold(op, at)
            return
        self.picks[op.result] = pick
        self._require(pick.target, at)
        self._require(pick.value, at)

    def _find_pick(self, fold: Op) -> Pick | None:
        chosen = self.producer.get(fold.inputs[0])
        if fold.opcode != "sum" or chosen is None or chosen.opcode != "where":
            return None
        condition, value, other = chosen.operands
        test = self.producer.get(condition) if isinstance(condition, Value) else None
        if test is None or test.opcode != "eq" or len(test.inputs) != 2 or other != 0:
            return None
        same_type = isinstance(value, Value) and value.type.dtype is fold.result.type.dtype
        for counted, target in (test.inputs, reversed(test.inputs)):
            is_number = self.place[target] is not Place.ELEMENT
            whole = is_number and not target.type.dtype.is_floating
            if same_type and whole and is_index(self, counted):
                assert isinstance(value, Value)
                return Pick(value, target)
        return None
