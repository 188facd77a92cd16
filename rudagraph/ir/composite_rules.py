"""Type inference rules of composites and attention, in the manner of type_rules.py."""

from __future__ import annotations

from typing import cast as typed

from rudagraph.ir.graph import Graph, Operand
from rudagraph.ir.type_rules import (
    Attributes,
    Types,
    dtype_of,
    fail_unless,
    floating,
    ids_type,
    integer,
    number,
    value_type,
)
from rudagraph.ir.types import DType, TensorType, broadcast_shapes


def softmax(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    (type,) = floating(operands, attributes, body)
    axis = integer(attributes, "axis")
    fail_unless(0 <= axis < max(type.rank, 1), f"axis {axis} is not an axis of {type}")
    return (type if attributes.get("dtype") is None else type.with_dtype(dtype_of(attributes)),)


def softmax_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    gradient, result = value_type(operands[0]), value_type(operands[1])
    fail_unless(gradient.shape == result.shape, f"gradient {gradient} does not match {result}")
    return softmax(operands[1:], attributes, body)


def _normalised(type: TensorType, attributes: Attributes) -> tuple[int, ...]:
    count = integer(attributes, "axes")
    fail_unless(0 < count <= type.rank, f"cannot normalise {count} axes of {type}")
    return type.shape[type.rank - count :]


def _statistic(type: TensorType, attributes: Attributes) -> TensorType:
    count = integer(attributes, "axes")
    shape = type.shape[: type.rank - count] + (1,) * count
    return TensorType(type.dtype.compute, shape)


def _affine(operand: Operand, shape: tuple[int, ...], what: str) -> None:
    if operand is None:
        return
    type = value_type(operand)
    fail_unless(type.shape == shape, f"{what} {type} does not match the normalised {list(shape)}")


def layer_norm(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    (type,) = floating(operands, attributes, body)
    shape = _normalised(type, attributes)
    number(attributes, "epsilon")
    _affine(operands[1], shape, "weight")
    _affine(operands[2], shape, "bias")
    statistic = _statistic(type, attributes)
    return (type, statistic, statistic)


def _needed(attributes: Attributes, count: int) -> tuple[bool, ...]:
    needs = attributes.get("needs")
    fail_unless(
        isinstance(needs, tuple) and len(needs) == count and any(needs),
        f"needs must be {count} booleans, at least one true",
    )
    return typed(tuple[bool, ...], needs)


def layer_norm_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    (x,) = floating(operands[1:2], attributes, body)
    shape = _normalised(x, attributes)
    statistic = _statistic(x, attributes)
    _match(operands, {"gradient": x, "x": x, "mean": statistic, "rstd": statistic})
    _affine(operands[4], shape, "weight")
    weight = x if operands[4] is None else value_type(operands[4])
    all_types = (x, weight.with_shape(shape), weight.with_shape(shape))
    needs = _needed(attributes, 3)
    return tuple(type for type, needed in zip(all_types, needs, strict=True) if needed)


def _style(attributes: Attributes) -> None:
    style = attributes.get("style")
    fail_unless(
        style in ("torch", "llama", "gemma"), f"style is torch, llama or gemma, not {style!r}"
    )


def _match(operands: tuple[Operand, ...], wanted: dict[str, TensorType]) -> None:
    """The leading operands have these types, but for the dtype of a gradient."""
    for operand, (name, type) in zip(operands, wanted.items(), strict=False):
        given = value_type(operand)
        same = given.shape == type.shape and (name == "gradient" or given == type)
        fail_unless(same, f"{name} is {given}, it must be {type}")


def rms_norm(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    (type,) = floating(operands, attributes, body)
    _affine(operands[1], _normalised(type, attributes), "weight")
    number(attributes, "epsilon")
    _style(attributes)
    return (type, _statistic(type, attributes))


def rms_norm_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    (x,) = floating(operands[1:2], attributes, body)
    shape = _normalised(x, attributes)
    _match(operands, {"gradient": x, "x": x, "rstd": _statistic(x, attributes)})
    _affine(operands[3], shape, "weight")
    _style(attributes)
    weight = x if operands[3] is None else value_type(operands[3])
    needs = _needed(attributes, 2)
    all_types = (x, weight.with_shape(shape))
    return tuple(type for type, needed in zip(all_types, needs, strict=True) if needed)


def cross_entropy(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    (logits,), target = floating(operands, attributes, body), ids_type(operands[1])
    fail_unless(
        logits.rank == 2 and target.shape == logits.shape[:1],
        f"logits {logits} and target {target} must be [rows,classes] and [rows]",
    )
    _affine(operands[2], logits.shape[1:], "class weight")
    integer(attributes, "ignore_index")
    smoothing, reduction = number(attributes, "label_smoothing"), attributes.get("reduction")
    fail_unless(0 <= smoothing <= 1, f"label_smoothing must lie in [0,1], not {smoothing!r}")
    fail_unless(
        reduction in ("none", "sum", "mean"), f"reduction is none, sum or mean, not {reduction!r}"
    )
    statistic = TensorType(logits.dtype.compute, logits.shape[:1])
    loss = logits.with_shape(logits.shape[:1] if reduction == "none" else ())
    return (loss, statistic, statistic.with_shape(()))


def cross_entropy_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    loss, logsumexp, divisor = cross_entropy(operands[1:4], attributes, body)
    _match(operands, {"gradient": loss})
    _match(operands[4:], {"logsumexp": logsumexp, "divisor": divisor})
    return (value_type(operands[1]),)


def attention(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    query, key, value = (value_type(operand) for operand in operands[:3])
    fail_unless(
        query.dtype.is_floating
        and query.dtype == key.dtype == value.dtype
        and query.rank == key.rank == value.rank == 4
        and key.shape[:3] == value.shape[:3]
        and query.shape[0] == key.shape[0]
        and query.shape[3] == key.shape[3]
        and query.shape[1] % max(key.shape[1], 1) == 0,
        f"attention cannot take q {query}, k {key}, v {value}",
    )
    fail_unless(type(attributes.get("causal", False)) is bool, "causal must be true or false")
    if "scale" in attributes:
        number(attributes, "scale")
    _mask(operands[3], query.shape[:3] + key.shape[2:3])
    out = query.with_shape(query.shape[:3] + value.shape[3:])
    return (out, TensorType(query.dtype.compute, query.shape[:3]))


def _mask(operand: Operand, scores: tuple[int, ...]) -> None:
    if operand is None:
        return
    mask = value_type(operand)
    fail_unless(
        mask.dtype is DType.B8 or mask.dtype.is_floating,
        f"a mask is b8 (true keeps) or floating (added), not {mask}",
    )
    try:
        fits = broadcast_shapes(mask.shape, scores) == scores
    except ValueError:
        fits = False
    fail_unless(fits, f"mask {mask} does not broadcast to the scores {list(scores)}")


def attention_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    out, logsumexp = attention(operands[1:5], attributes, body)
    _match(operands, {"gradient": out})
    _match(operands[5:], {"out": out, "logsumexp": logsumexp})
    return tuple(value_type(operand) for operand in operands[1:4])
