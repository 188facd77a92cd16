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
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.rewrite import Replacement, Rewriter, rewrite

_Key = tuple[object, ...]


def merge_equal(graph: Graph) -> Graph:
    """The graph with one op of each kind."""
    first: dict[_Key, tuple[Value, ...]] = {}

    def rule(rewriter: Rewriter, op: Op) -> Replacement:
        key = _key(op)
        if key is None:
            return None
        known = first.setdefault(key, op.results)
        return None if known is op.results else known

    return rewrite(graph, rule)


def _key(op: Op) -> _Key | None:
    """Equal for two ops exactly if they give the same bits; None for an op that stays alone."""
    if op.body is not None or op.opcode == "copy":
        return None
    if op.opcode == "library" and _draws(str(op["target"])):
        return None
    operands: list[object] = [_operand_key(operand) for operand in op.operands]
    if has(op, Tag.COMMUTATIVE):
        operands.sort(key=repr)
    return (op.opcode, *operands, repr(op.attributes), *(value.type for value in op.results))


def _operand_key(operand: Operand) -> object:
    """Python holds 1, 1.0 and true equal, 0.0 and -0.0 as well: their texts differ."""
    return operand.name if isinstance(operand, Value) else (repr(operand),)


@functools.cache
def _draws(target: str) -> bool:
    tags = getattr(library_function(target), "tags", ())
    return torch.Tag.nondeterministic_seeded in tags
