"""Fewer ops that mean the same: identities, views and casts that compose, one of each equal op.

    %a = cast(%x) [dtype=f32]                 %y = mul(%x, 0.125)
    %b = cast(%a) [dtype=bf16]
    %c = reshape(%b) [shape=[8]]
    %d = reshape(%c) [shape=[2, 4]]
    %y = div(%d, 8.0)

Bits stay as they are, but for the payload of a NaN; where a rule needs an argument for that, the
argument stands beside it. Rules are in simplify_arithmetic.py, simplify_constants.py and
simplify_views.py; merging equal ops is in merge_equal.py.
"""

from __future__ import annotations

from rudagraph.ir.graph import Graph, Op
from rudagraph.ir.ops import OPS, Tag
from rudagraph.ir.rewrite import Replacement, Rewriter, Rule, remove_dead, rewrite
from rudagraph.passes.merge_equal import merge_equal
from rudagraph.passes.simplify_arithmetic import ARITHMETIC
from rudagraph.passes.simplify_constants import CONSTANTS, absorb_constants, fold_constants
from rudagraph.passes.simplify_views import VIEWS, broadcast_instead

# What one round leaves for the next is what a rule made anew; a handful of rounds settles a graph.
_MOST_ROUNDS = 10


def simplify(graph: Graph) -> Graph:
    """The graph in its simplest form by these rules."""
    for _ in range(_MOST_ROUNDS):
        before = graph
        graph = remove_dead(merge_equal(rewrite(graph, _simplify_op)))
        if graph is before:
            break
    return graph


def _simplify_op(rewriter: Rewriter, op: Op) -> Replacement:
    for rule in _RULES[op.opcode]:
        replacement = rule(rewriter, op)
        if replacement is not None:
            return replacement
    return None


def _rules_of(opcode: str) -> tuple[Rule, ...]:
    named = [table[opcode] for table in (ARITHMETIC, CONSTANTS, VIEWS) if opcode in table]
    if not OPS[opcode].tags & Tag.POINTWISE or opcode == "copy":
        return tuple(named)  # a copy is asked for: it stays, and stays what it is
    # Constants first: an op of constants alone is none for the other rules to look at.
    return (fold_constants, absorb_constants, broadcast_instead, *named)


_RULES: dict[str, tuple[Rule, ...]] = {opcode: _rules_of(opcode) for opcode in OPS}
