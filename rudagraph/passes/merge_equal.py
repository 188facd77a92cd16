"""Common subexpressions: of ops equal in everything, the first stands for all.

    %a = bernoulli(%key) [.., stream=3]           %a = bernoulli(%key) [.., stream=3]
    %b = bernoulli(%key) [.., stream=3]           %c = bernoulli(%key) [.., stream=4]
    %c = bernoulli(%key) [.., stream=4]

Our random ops are functions of key, stream and index, so equal ones merge; a library op that draws
from PyTorch's generator never does. Copies are asked for to be apart, and stay so.
"""

from __future__ import annotations

import functools

import torch

from rudagraph.ir.graph import Graph, Op, Operand, Value
from rudagraph.ir.interpret import library_function
from rudagraph.ir.ops import OPS, Tag
from rudagraph.ir.rewrite import Replacement, Rewriter, Rule, rewrite

_Key = tuple[str, ...]
_COMMUTATIVE = frozenset(opcode for opcode, spec in OPS.items() if Tag.COMMUTATIVE in spec.tags)


def merge_equal(graph: Graph) -> Graph:
    """The graph with one op of each kind."""
    return rewrite(graph, equal_rule())


def equal_rule() -> Rule:
    """A rule for one walk: it remembers what the walk has met."""
    first: dict[_Key, tuple[Value, ...]] = {}

    def rule(rewriter: Rewriter, op: Op) -> Replacement:
        key = _key(op)
        if key is None:
            return None
        known = first.setdefault(key, op.results)
        if known is op.results:
            return None
        return tuple(rewriter.resolve(value) for value in known)

    return rule


def _key(op: Op) -> _Key | None:
    """Equal for two ops exactly if they give the same bits; None for an op that stays alone."""
    if op.body is not None or op.opcode == "copy":
        return None
    if op.opcode == "library" and _draws(str(op["target"])):
        return None
    operands = [_operand_key(operand) for operand in op.operands]
    if op.opcode in _COMMUTATIVE:
        operands.sort()
    return (op.opcode, repr(op.attributes) if op.attributes else "", *operands)


def _operand_key(operand: Operand) -> str:
    """Python holds 1, 1.0 and true equal, 0.0 and -0.0 as well: their texts differ.

    No name starts with a space.
    """
    return operand.name if isinstance(operand, Value) else f" {operand!r}"


@functools.cache
def _draws(target: str) -> bool:
    tags = getattr(library_function(target), "tags", ())
    return torch.Tag.nondeterministic_seeded in tags
