"""The op table: every opcode with its arity, attributes, tags and type inference.

This is the one list of what the IR can say. Passes ask for tags, never for names; infer.py asks for
result types. Reference semantics are in interpret.py, scalar text in codegen/expressions.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rudagraph.ir import composite_rules as composites
from rudagraph.ir import type_rules as rules
from rudagraph.ir.graph import Attribute, Graph, Op, Operand
from rudagraph.ir.types import TensorType

Infer = Callable[
    [tuple[Operand, ...], Mapping[str, Attribute], Graph | None], tuple[TensorType, ...]
]


class Tag(enum.Flag):
    """What passes may know of an op."""

    NONE = 0
    POINTWISE = enum.auto()  # each result element from the broadcast operand elements at its index
    REDUCTION = enum.auto()  # folds the axes of attribute `axes`
    VIEW = enum.auto()  # same elements, another shape or order; no arithmetic
    CREATION = enum.auto()  # no tensor operands: a pure function of attributes and index
    RANDOM = enum.auto()  # reads the key
    MATMUL = enum.auto()  # a product run by PyTorch's libraries
    LIBRARY = enum.auto()  # run by PyTorch, not fused
    COMPOSITE = enum.auto()  # expands into simpler ops before fusion
    GATHER = enum.auto()  # reads rows by index
    SCATTER = enum.auto()  # adds rows by index, in order
    EXPENSIVE = enum.auto()  # a transcendental: dearer to recompute than to keep nearby
    COMMUTATIVE = enum.auto()
    FUSED = enum.auto()  # carries a body


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row of the table. `operands` is (least, most); `most` None means any number."""

    opcode: str
    operands: tuple[int, int | None]
    attributes: tuple[str, ...]
    tags: Tag
    infer: Infer
    summary: str


_P = Tag.POINTWISE
_PX = Tag.POINTWISE | Tag.EXPENSIVE
_PC = Tag.POINTWISE | Tag.COMMUTATIVE


def _rows(
    names: str,
    operands: tuple[int, int | None],
    tags: Tag,
    infer: Infer,
    summary: str,
    attributes: tuple[str, ...] = (),
) -> list[OpSpec]:
    return [OpSpec(name, operands, attributes, tags, infer, summary) for name in names.split()]


_TABLE: list[OpSpec] = [
    # pointwise, one operand
    *_rows("copy", (1, 1), _P, rules.same, "the same elements in memory of their own, row-major"),
    *_rows("neg abs", (1, 1), _P, rules.numeric, "arithmetic on numbers"),
    *_rows("sqrt rsqrt reciprocal", (1, 1), _P, rules.floating, "algebraic functions"),
    *_rows("floor ceil trunc round", (1, 1), _P, rules.numeric, "rounding; round is half to even"),
    *_rows("sign relu", (1, 1), _P, rules.numeric, "sign in {-1,0,1}; maximum with 0, NaN kept"),
    *_rows(
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh sigmoid erf",
        (1, 1),
        _PX,
        rules.floating,
        "elementary functions",
    ),
    *_rows("silu", (1, 1), _PX, rules.floating, "x * sigmoid(x)"),
    *_rows(
        "gelu",
        (1, 1),
        _PX,
        rules.floating,
        "x * Phi(x); approximate is none or tanh",
        ("approximate",),
    ),
    *_rows("isnan isinf logical_not", (1, 1), _P, rules.predicate, "tests, to b8"),
    *_rows("bitwise_not", (1, 1), _P, rules.integral, "complement; on b8 logical"),
    *_rows("cast", (1, 1), _P, rules.cast, "convert to another dtype", ("dtype",)),
    # pointwise, two operands
    *_rows("add mul maximum minimum", (2, 2), _PC, rules.arithmetic, "arithmetic; NaN propagates"),
    *_rows("sub", (2, 2), _P, rules.arithmetic, "arithmetic"),
    *_rows("div", (2, 2), _P, rules.arithmetic_floating, "true division, floating only"),
    *_rows(
        "floor_divide truncate_divide remainder fmod",
        (2, 2),
        _P,
        rules.arithmetic,
        "division with rounding; remainder has the divisor's sign, fmod the dividend's",
    ),
    *_rows("pow atan2", (2, 2), _PX, rules.arithmetic, "binary elementary functions"),
    *_rows("eq ne", (2, 2), _PC, rules.comparison, "comparison, to b8"),
    *_rows("lt le gt ge", (2, 2), _P, rules.comparison, "comparison, to b8"),
    *_rows("logical_and logical_or logical_xor", (2, 2), _PC, rules.comparison, "on truth, to b8"),
    *_rows("bitwise_and bitwise_or bitwise_xor", (2, 2), _PC, rules.arithmetic_integral, "on bits"),
    *_rows("shift_left shift_right", (2, 2), _P, rules.arithmetic_integral, "bit shifts"),
    *_rows("silu_backward", (2, 2), _PX, rules.arithmetic_floating, "(gradient, x) of silu"),
    *_rows(
        "gelu_backward",
        (2, 2),
        _PX,
        rules.arithmetic_floating,
        "(gradient, x) of gelu",
        ("approximate",),
    ),
    *_rows(
        "sigmoid_backward tanh_backward",
        (2, 2),
        _P,
        rules.arithmetic_floating,
        "(gradient, y), y the forward result",
    ),
    *_rows(
        "check_index",
        (1, 1),
        _P,
        rules.integral,
        "the operand; a value outside [0,extent) other than ignore is an error at run time",
        ("extent", "ignore"),
    ),
    *_rows("multiply_add", (3, 3), _P, rules.arithmetic_floating, "a * b + c, rounded once"),
    *_rows("where", (3, 3), _P, rules.where, "condition b8 ? second : third", ("dtype",)),
    # reductions
    *_rows(
        "sum",
        (1, 1),
        Tag.REDUCTION,
        rules.sum_type,
        "accumulates in the compute type; dtype is the result's",
        ("axes", "keepdim", "dtype"),
    ),
    *_rows("mean", (1, 1), Tag.REDUCTION, rules.reduction_floating, "mean", ("axes", "keepdim")),
    *_rows(
        "amax amin",
        (1, 1),
        Tag.REDUCTION,
        rules.reduction,
        "extremes, NaN propagates",
        ("axes", "keepdim"),
    ),
    # views
    *_rows("reshape", (1, 1), Tag.VIEW, rules.reshape, "row-major reinterpretation", ("shape",)),
    *_rows("permute", (1, 1), Tag.VIEW, rules.permute, "axis i is old axis axes[i]", ("axes",)),
    *_rows("expand", (1, 1), Tag.VIEW, rules.expand, "broadcast to a shape", ("shape",)),
    *_rows(
        "slice",
        (1, 1),
        Tag.VIEW,
        rules.slice_type,
        "start:stop:step of one axis, normalised, step positive",
        ("axis", "start", "stop", "step"),
    ),
    *_rows("flip", (1, 1), Tag.VIEW, rules.flip, "one axis backwards", ("axis",)),
    # creation
    *_rows("full", (0, 0), Tag.CREATION, rules.full, "one number", ("dtype", "shape", "value")),
    *_rows(
        "iota",
        (0, 0),
        Tag.CREATION,
        rules.iota,
        "start + step * row-major index; one axis unless a shape is given",
        ("dtype", "length", "shape", "start", "step"),
    ),
    *_rows(
        "bernoulli",
        (1, 1),
        Tag.RANDOM,
        rules.bernoulli,
        "true with 1-probability: Philox(key; stream, row-major index)",
        ("bits", "probability", "shape", "stream"),
    ),
    # joining
    *_rows("concatenate", (1, None), Tag.LIBRARY, rules.concatenate, "along one axis", ("axis",)),
    *_rows(
        "pad",
        (1, 1),
        Tag.LIBRARY,
        rules.pad,
        "low and high elements a axis around, negative cuts",
        ("high", "low", "value"),
    ),
    # products
    *_rows(
        "matmul",
        (2, 2),
        Tag.MATMUL,
        rules.matmul,
        "[..,m,k] x [..,k,n], equal batch axes; dtype is the result's; again keeps it apart",
        ("again", "dtype"),
    ),
    *_rows(
        "addmm",
        (3, 3),
        Tag.MATMUL,
        rules.addmm,
        "first + second x third; first is [n] or [m,n]; dtype is the result's and first's",
        ("again", "dtype"),
    ),
    # indexing
    *_rows(
        "embedding",
        (2, 2),
        Tag.GATHER,
        rules.embedding,
        "rows of (weight [rows,width]) at ids; an id out of range is an error",
    ),
    *_rows(
        "embedding_backward",
        (2, 2),
        Tag.SCATTER,
        rules.embedding_backward,
        "(gradient, ids): sum of gradient rows by id, in order of index",
        ("padding_index", "rows", "scale_by_frequency"),
    ),
    # composites
    *_rows(
        "softmax log_softmax",
        (1, 1),
        Tag.COMPOSITE,
        composites.softmax,
        "along axis, in the compute type; dtype is the result's",
        ("axis", "dtype"),
    ),
    *_rows(
        "softmax_backward log_softmax_backward",
        (2, 2),
        Tag.COMPOSITE,
        composites.softmax_backward,
        "(gradient, y)",
        ("axis", "dtype"),
    ),
    *_rows(
        "layer_norm",
        (3, 3),
        Tag.COMPOSITE,
        composites.layer_norm,
        "(x, weight?, bias?) over the last `axes` axes -> y, mean, rstd (statistics f32 or f64)",
        ("axes", "epsilon"),
    ),
    *_rows(
        "layer_norm_backward",
        (5, 5),
        Tag.COMPOSITE,
        composites.layer_norm_backward,
        "(gradient, x, mean, rstd, weight?) -> dx, dweight?, dbias? as `needs` says",
        ("axes", "needs"),
    ),
    *_rows(
        "rms_norm",
        (2, 2),
        Tag.COMPOSITE,
        composites.rms_norm,
        "(x, weight?) -> y, rstd; style torch, llama (x^ rounds before the weight) or gemma (1+w)",
        ("axes", "epsilon", "style"),
    ),
    *_rows(
        "rms_norm_backward",
        (4, 4),
        Tag.COMPOSITE,
        composites.rms_norm_backward,
        "(gradient, x, rstd, weight?) -> dx, dweight? as `needs` says",
        ("axes", "needs", "style"),
    ),
    *_rows(
        "dropout",
        (2, 2),
        Tag.COMPOSITE | Tag.RANDOM,
        rules.dropout,
        "(x, key): kept elements scaled by 1/(1-p); its own derivative",
        ("probability", "stream"),
    ),
    *_rows(
        "cross_entropy",
        (3, 3),
        Tag.COMPOSITE,
        composites.cross_entropy,
        "(logits [rows,classes], target [rows], class weight?) -> loss, logsumexp, divisor",
        ("ignore_index", "label_smoothing", "reduction"),
    ),
    *_rows(
        "cross_entropy_backward",
        (6, 6),
        Tag.COMPOSITE,
        composites.cross_entropy_backward,
        "(gradient, logits, target, class weight?, logsumexp, divisor) -> dlogits",
        ("ignore_index", "label_smoothing", "reduction"),
    ),
    # attention: products and softmax inside PyTorch's libraries
    *_rows(
        "attention",
        (4, 4),
        Tag.LIBRARY,
        composites.attention,
        "(q [B,H,S,D], k, v [B,G,T,D], additive or b8 mask?) -> out, logsumexp [B,H,S]",
        ("causal", "scale"),
    ),
    *_rows(
        "attention_backward",
        (7, 7),
        Tag.LIBRARY,
        composites.attention_backward,
        "(gradient, q, k, v, mask?, out, logsumexp) -> dq, dk, dv",
        ("causal", "scale"),
    ),
    # everything else that PyTorch can run with static shapes
    *_rows(
        "library",
        (0, None),
        Tag.LIBRARY,
        rules.declared,
        "an ATen op by name; `arguments` is its call with holes for operands",
        ("arguments", "keywords", "target"),
    ),
    *_rows("fused", (0, None), Tag.FUSED, rules.fused, "the body, in one kernel", ("form", "kind")),
]

OPS: dict[str, OpSpec] = {spec.opcode: spec for spec in _TABLE}
_BITS: dict[str, int] = {spec.opcode: spec.tags._value_ for spec in _TABLE}


def tags(op: Op) -> Tag:
    return OPS[op.opcode].tags


def opcodes(tag: Tag) -> frozenset[str]:
    """The opcodes that carry any of the tags given: faster than `has` where many ops are asked."""
    return frozenset(opcode for opcode, bits in _BITS.items() if bits & tag._value_)


def has(op: Op, tag: Tag) -> bool:
    """Whether the op carries any of the tags given."""
    # Flags by their numbers: `&` on them builds an object, and passes ask a million times.
    return bool(_BITS[op.opcode] & tag._value_)
