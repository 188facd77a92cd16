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
from rudagraph.passes.merge_equal import equal_rule
from rudagraph.passes.simplify_arithmetic import ARITHMETIC
from rudagraph.passes.simplify_constants import CONSTANTS, absorb_constants, fold_constants
from rudagraph.passes.simplify_views import VIEWS, broadcast_instead


def simplify(graph: Graph) -> Graph:
    """The graph in its simplest form by these rules.

    A rule looks at an op and at what defines its operands: one walk from first to last is enough.
    """
    merge = equal_rule()

    def rule(rewriter: Rewriter, op: Op) -> Replacement:
        for simpler in _RULES[op.opcode]:
            replacement = simpler(rewriter, op)
            if replacement is not None:
                return replacement
        return merge(rewriter, op)

    return remove_dead(rewrite(graph, rule))


def _of_constants_or_broadcasts(rewriter: Rewriter, op: Op) -> Replacement:
    """Rules of all pointwise ops, tried where what defines an operand gives them a chance."""
    producers = [rewriter.producer(value) for value in op.inputs]
    kinds = {producer.opcode for producer in producers if producer is not None}
    replacement: Replacement = None
    if "full" in kinds:
        replacement = fold_constants(rewriter, op)
        replacement = absorb_constants(rewriter, op) if replacement is None else replacement
    if replacement is None and ("expand" in kinds or "reshape" in kinds):
        replacement = broadcast_instead(rewriter, op)
    return replacement


def _rules_of(opcode: str) -> tuple[Rule, ...]:
    named = [table[opcode] for table in (ARITHMETIC, CONSTANTS, VIEWS) if opcode in table]
    if not OPS[opcode].tags & Tag.POINTWISE or opcode == "copy":
        return tuple(named)  # a copy is asked for: it stays, and stays what it is
    return (_of_constants_or_broadcasts, *named)


_RULES: dict[str, tuple[Rule, ...]] = {opcode: _rules_of(opcode) for opcode in OPS}
