"""Rules of simplify for shapes: views that compose or do nothing, broadcasts left to the reader.

%a = permute(%x) [axes=[1, 0]]            %y = reshape(%x) [shape=[8]]
%b = permute(%a) [axes=[1, 0]]
%y = reshape(%b) [shape=[8]]

%e = expand(%s) [shape=[4, 8]]            %y = mul(%x, %s)
%y = mul(%x, %e)
"""

from __future__ import annotations

from typing import cast as typed

from rudagraph.ir.graph import Op, Operand, Value
from rudagraph.ir.rewrite import Replacement, Rewriter, Rule
from rudagraph.ir.types import broadcast_shapes
from rudagraph.passes.kernel_shapes import fold_of

Shape = tuple[int, ...]


def _ints(op: Op, name: str) -> Shape:
    return typed(Shape, op[name])


def _leading_ones(source: Value, view: Value) -> bool:
    """Whether the view is its source with axes of extent 1 in front: broadcasting adds those."""
    extra = view.type.rank - source.type.rank
    return extra > 0 and view.type.shape == (1,) * extra + source.type.shape


# -- one view, or two


def _reshape(rewriter: Rewriter, op: Op) -> Replacement:
    (x,) = op.inputs
    if x.type == op.result.type:
        return x
    inner = rewriter.producer(x, "reshape")
    return None if inner is None else rewriter.like(op, inner.operands[0])


def _permute(rewriter: Rewriter, op: Op) -> Replacement:
    (x,) = op.inputs
    axes = _ints(op, "axes")
    if axes == tuple(range(len(axes))):
        return x
    moved = [axis for axis in axes if x.type.shape[axis] != 1]
    if moved == sorted(moved) or x.type.numel == 0:  # no element changes its place
        return rewriter.one("reshape", x, shape=op.result.type.shape)
    inner = rewriter.producer(x, "permute")
    if inner is None:
        return None
    first = _ints(inner, "axes")
    return rewriter.one("permute", inner.operands[0], axes=tuple(first[axis] for axis in axes))


def _expand(rewriter: Rewriter, op: Op) -> Replacement:
    (x,) = op.inputs
    if x.type == op.result.type:
        return x
    if x.type.numel == op.result.type.numel:
        return rewriter.one("reshape", x, shape=op.result.type.shape)
    inner = rewriter.producer(x)
    if inner is None:
        return None
    if inner.opcode == "expand":
        return rewriter.like(op, inner.operands[0])
    if inner.opcode == "reshape" and _leading_ones(inner.inputs[0], x):
        return rewriter.like(op, inner.operands[0])
    return None


def _slice(rewriter: Rewriter, op: Op) -> Replacement:
    (x,) = op.inputs
    if x.type == op.result.type:
        return x
    inner = rewriter.producer(x)
    if inner is None:
        return None
    axis, start, stop, step = (typed(int, op[name]) for name in ("axis", "start", "stop", "step"))
    if inner.opcode == "slice" and inner["axis"] == axis and stop > start:
        origin, stride = typed(int, inner["start"]), typed(int, inner["step"])
        last = origin + (start + (stop - start - 1) // step * step) * stride
        begin = origin + start * stride
        return rewriter.one(
            "slice", inner.operands[0], axis=axis, start=begin, stop=last + 1, step=step * stride
        )
    if inner.opcode == "concatenate" and inner["axis"] == axis and step == 1:
        return _part(inner, axis, start, stop)
    return None


def _part(joined: Op, axis: int, start: int, stop: int) -> Value | None:
    """The operand of a concatenation that lies exactly there, if one does."""
    offset = 0
    for part in joined.inputs:
        extent = part.type.shape[axis]
        if (offset, offset + extent) == (start, stop):
            return part
        offset += extent
    return None


def _concatenate(rewriter: Rewriter, op: Op) -> Replacement:
    """Parts without elements go; one part alone is the result."""
    axis = typed(int, op["axis"])
    parts = [part for part in op.inputs if part.type.shape[axis]]
    if len(parts) == 1:
        return parts[0]
    if not parts or len(parts) == len(op.inputs):
        return None
    return rewriter.like(op, *parts)


def _pad(rewriter: Rewriter, op: Op) -> Replacement:
    nothing = not any(_ints(op, "low")) and not any(_ints(op, "high"))
    return op.operands[0] if nothing else None


# -- reductions of axes with one element


def _reduction(rewriter: Rewriter, op: Op) -> Replacement:
    """Axes of extent 1 need no reduction, but a sum starts at 0.0 and so turns -0.0 into 0.0.

    A sum adds in the compute type anyway, so it reads what was cast to that.
    """
    (x,) = op.inputs
    inner = rewriter.producer(x, "cast") if op.opcode == "sum" else None
    if inner is not None and inner.inputs[0].type.dtype.compute is x.type.dtype:
        wide = {**dict(op.attributes), "dtype": op.result.type.dtype}
        return rewriter.one("sum", inner.inputs[0], name=rewriter.name, **wide)
    axes = _ints(op, "axes")
    real = tuple(axis for axis in axes if x.type.shape[axis] != 1)
    if (real == axes and axes) or (real and fold_of(op) is not None):
        return None  # nothing to leave out, or a form that kernels have as it is
    result = op.result
    if real:
        attributes = {**dict(op.attributes), "axes": real}
        y = rewriter.one(op.opcode, x, name=f"{rewriter.name}.folded", **attributes)
    elif axes and op.opcode in ("sum", "mean") and x.type.dtype.is_floating:
        y = rewriter.one("add", x, 0.0, name=f"{rewriter.name}.sum")
    else:
        y = x
    if y.type.dtype is not result.type.dtype:
        y = rewriter.one("cast", y, name=f"{rewriter.name}.wide", dtype=result.type.dtype)
    return y if y.type == result.type else rewriter.one("reshape", y, shape=result.type.shape)


# -- broadcasts


def broadcast_instead(rewriter: Rewriter, op: Op) -> Replacement:
    """A pointwise op broadcasts by itself: it reads what an expand reads.

    Where all operands were expanded the op works on the small ones, and its result is expanded.
    Axes of extent 1 put in front are left out only where the result keeps its shape without.
    """
    small = [_source(rewriter, operand, ("expand", "reshape")) for operand in op.operands]
    if small == list(op.operands):
        return None
    wanted = op.result.type.shape
    if _broadcast(small) == wanted:
        return rewriter.like(op, *small)
    small = [_source(rewriter, operand, ("expand",)) for operand in op.operands]
    if small == list(op.operands):
        return None
    if _broadcast(small) == wanted:
        return rewriter.like(op, *small)
    narrow = rewriter.like(op, *small, name=f"{rewriter.name}.narrow")
    return rewriter.one("expand", narrow, shape=wanted)


def _source(rewriter: Rewriter, operand: Operand, opcodes: tuple[str, ...]) -> Operand:
    """What the operand is expanded from, by an op of one of these kinds; else the operand."""
    inner = rewriter.producer(operand)
    if inner is None or inner.opcode not in opcodes or not isinstance(operand, Value):
        return operand
    (source,) = inner.inputs
    return source if inner.opcode == "expand" or _leading_ones(source, operand) else operand


def _broadcast(operands: list[Operand]) -> Shape:
    return broadcast_shapes(*(o.type.shape for o in operands if isinstance(o, Value)))


VIEWS: dict[str, Rule] = {
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduction),
}
