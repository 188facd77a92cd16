"""The passes of a CPU's rows kernel: chains of dear functions are cut, one element is picked.

Input: a body and its nest. Output: Stages with `picks`, the row reductions that look one element
up: they need no loop over the row. Invariant: the bits are those of the loop.
"""

from __future__ import annotations

from rudagraph.codegen.cuda_picks import Pick, find_pick
from rudagraph.codegen.domain import Nest
from rudagraph.codegen.stages import Stages
from rudagraph.ir.graph import Graph, Op, Value


class RowStages(Stages):
    """Passes over one row, for a core with a window of instructions and no other threads."""

    cuts_chains = True

    def __init__(self, body: Graph, nest: Nest) -> None:
        self.picks: dict[Value, Pick] = {}  # by result
        super().__init__(body, nest)

    def _require_fold(self, op: Op, at: int) -> None:
        """A pick needs its element computed and its target known, and no comparison."""
        pick = find_pick(self, op)
        if pick is None:
            super()._require_fold(op, at)
            return
        self.picks[op.result] = pick
        self._require(pick.target, at)
        self._require(pick.value, at)
