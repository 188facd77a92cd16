"""A value put together from its own two halves is one elementwise op: rotary embeddings fuse.

    %a = slice(%x) [stop=4, ...]                  %split = reshape(%x) [shape=[8, 2, 4]]
    %b = slice(%x) [start=4, ...]                 %turned = flip(%split) [axis=1]
    %n = neg(%b)                                  %is_negated = eq(iota() [shape=[2, 1]], 0)
    %y = concatenate(%n, %a) [axis=1]             %both = where(%is_negated, neg(%turned), %turned)
                                                  %y = reshape(%both) [shape=[8, 8]]
The derivative, a sum of two paddings of such halves, becomes the same. Cheap elementwise ops in
front of the halves are done on both views, so that nothing is stored for the sake of turning it.
Other slices, concatenations and paddings stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast as typed

from rudagraph.ir.graph import Graph, Op, Operand, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.rewrite import Replacement, Rewriter, remove_dead, rewrite
from rudagraph.ir.types import DType

# How many cheap ops in front of the halves are done twice rather than stored.
_DEPTH = 3


@dataclass(frozen=True)
class _Half:
    """Half of `source` along `axis`: the first or the second, and whether it is negated."""

    source: Value
    axis: int
    second: bool
    negated: bool


def rotate_halves(graph: Graph) -> Graph:
    """The graph with rotations of halves as elementwise ops."""
    return remove_dead(rewrite(graph, _rotate))


def _rotate(rewriter: Rewriter, op: Op) -> Replacement:
    padded = op.opcode == "add"
    if padded:
        halves = _padded_halves(rewriter, op)
    elif op.opcode == "concatenate" and len(op.inputs) == 2:
        halves = (_half(rewriter, op.inputs[0]), _half(rewriter, op.inputs[1]))
    else:
        return None
    first, second = halves
    if first is None or second is None:
        return None
    fits = (first.source, first.axis) == (second.source, second.axis)
    if not fits or first.second == second.second:
        return None
    if op.opcode == "concatenate" and op["axis"] != first.axis:
        return None
    return _turned(rewriter, op, first, second, padded)


def _half(rewriter: Rewriter, operand: Operand) -> _Half | None:
    """What half of what the operand is, if it is one."""
    negation = rewriter.producer(operand, "neg")
    part = rewriter.producer(operand if negation is None else negation.operands[0], "slice")
    if part is None or part["step"] != 1:
        return None
    source, axis = part.inputs[0], typed(int, part["axis"])
    extent = source.type.shape[axis]
    for second, bounds in enumerate(((0, extent // 2), (extent // 2, extent))):
        if extent % 2 == 0 and (part["start"], part["stop"]) == bounds:
            return _Half(source, axis, bool(second), negation is not None)
    return None


def _padded_halves(rewriter: Rewriter, op: Op) -> tuple[_Half | None, _Half | None]:
    """The halves that two paddings put into place, in the order of their places."""
    places: dict[bool, _Half | None] = {}
    for operand in op.operands:
        padding = rewriter.producer(operand, "pad")
        half = None if padding is None else _half(rewriter, padding.operands[0])
        if padding is None or half is None or padding["value"] != 0:
            return None, None
        low, high = typed(tuple[int, ...], padding["low"]), typed(tuple[int, ...], padding["high"])
        rank, extent = len(low), half.source.type.shape[half.axis] // 2
        only = tuple(extent if axis == half.axis else 0 for axis in range(rank))
        none = (0,) * rank
        if (low, high) not in ((only, none), (none, only)):
            return None, None
        places[low == only] = half
    return places.get(False), places.get(True)


def _turned(rewriter: Rewriter, op: Op, first: _Half, second: _Half, padded: bool) -> Replacement:
    source, axis = first.source, first.axis
    shape = source.type.shape
    split = (*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :])
    value = _view(rewriter, source, shape, split, axis, _DEPTH, flipped=first.second)
    if first.negated and second.negated:
        value = rewriter.one("neg", value, name=f"{rewriter.name}.negated")
    elif first.negated or second.negated:
        index_shape = (2,) + (1,) * (len(split) - axis - 1)
        index = rewriter.one(
            "iota",
            name=f"{rewriter.name}.half",
            dtype=DType.I32,
            length=2,
            shape=index_shape,
            start=0,
            step=1,
        )
        place = 0 if first.negated else 1
        which = rewriter.one("eq", index, place, name=f"{rewriter.name}.is_negated")
        negated = rewriter.one("neg", value, name=f"{rewriter.name}.negated")
        value = rewriter.one("where", which, negated, value, name=f"{rewriter.name}.rotated")
    if padded:
        # The zeros around the halves were added: -0.0 has become 0.0.
        value = rewriter.one("add", value, 0.0, name=f"{rewriter.name}.zeros_added")
    return rewriter.one("reshape", value, shape=shape)


def _view(
    rewriter: Rewriter,
    value: Value,
    domain: tuple[int, ...],
    split: tuple[int, ...],
    axis: int,
    depth: int,
    *,
    flipped: bool,
) -> Value:
    """The value over the split domain, its halves exchanged; elementwise ops are done on views."""
    if not flipped:
        return rewriter.one("reshape", value, name=f"{rewriter.name}.split", shape=split)
    own = axis - (len(domain) - value.type.rank)
    if own < 0:
        return value  # the same in both halves: it broadcasts along the axis and those before
    shape = value.type.shape
    if shape[own] == 1:
        halves = (*shape[:own], 1, 1, *shape[own + 1 :])
        return rewriter.one("reshape", value, name=f"{rewriter.name}.split", shape=halves)
    op = rewriter.producer(value)
    if op is not None and depth and _is_cheap(op):
        operands = tuple(
            _view(rewriter, operand, domain, split, axis, depth - 1, flipped=True)
            if isinstance(operand, Value)
            else operand
            for operand in op.operands
        )
        return rewriter.like(op, *operands, name=f"{rewriter.name}.{_last_part(value)}")
    halves = (*shape[:own], 2, shape[own] // 2, *shape[own + 1 :])
    parts = rewriter.one("reshape", value, name=f"{rewriter.name}.split", shape=halves)
    return rewriter.one("flip", parts, name=f"{rewriter.name}.flipped", axis=own)


def _last_part(value: Value) -> str:
    return value.name.rpartition(".")[2]


def _is_cheap(op: Op) -> bool:
    return has(op, Tag.POINTWISE) and not has(op, Tag.EXPENSIVE) and op.opcode != "check_index"
