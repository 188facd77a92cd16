"""Type inference rules that rows of the op table name.

Each rule maps (operands, attributes, body) to the result types and raises TypeRuleError with a
sentence where they do not fit. Operands of an arithmetic op have one dtype: lowering casts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast as typed

from rudagraph.ir.graph import Attribute, Graph, Operand, Value
from rudagraph.ir.types import DType, TensorType, broadcast_shapes

Attributes = Mapping[str, Attribute]
Types = tuple[TensorType, ...]


class TypeRuleError(Exception):
    """Operands or attributes that an op cannot take; the verifier adds where."""


def _fail_unless(condition: bool, message: str) -> None:
    if not condition:
        raise TypeRuleError(message)


def value_type(operand: Operand) -> TensorType:
    _fail_unless(isinstance(operand, Value), f"expected a tensor operand, not {operand!r}")
    return typed(Value, operand).type


def integers(attributes: Attributes, name: str) -> tuple[int, ...]:
    value = attributes.get(name)
    _fail_unless(
        isinstance(value, tuple) and all(type(item) is int for item in value),
        f"attribute {name} must be a list of integers, not {value!r}",
    )
    return typed(tuple[int, ...], value)


def integer(attributes: Attributes, name: str) -> int:
    value = attributes.get(name)
    _fail_unless(type(value) is int, f"attribute {name} must be an integer, not {value!r}")
    return typed(int, value)


def dtype_of(attributes: Attributes, name: str = "dtype") -> DType:
    value = attributes.get(name)
    _fail_unless(isinstance(value, DType), f"attribute {name} must be a dtype, not {value!r}")
    return typed(DType, value)


def _broadcast(operands: tuple[Operand, ...]) -> tuple[int, ...]:
    shapes = [operand.type.shape for operand in operands if isinstance(operand, Value)]
    try:
        return broadcast_shapes(*shapes)
    except ValueError as error:
        raise TypeRuleError(str(error)) from None


def _common_dtype(operands: tuple[Operand, ...]) -> DType:
    dtypes = dict.fromkeys(operand.type.dtype for operand in operands if isinstance(operand, Value))
    _fail_unless(bool(dtypes), "at least one operand must be a tensor")
    names = ", ".join(map(str, dtypes))
    _fail_unless(len(dtypes) == 1, f"operands must have one dtype, not {names}")
    return next(iter(dtypes))


# -- pointwise


def same(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    return (value_type(operands[0]),)


def floating(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    _fail_unless(type.dtype.is_floating, f"needs a floating operand, not {type}")
    return (type,)


def integral(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    _fail_unless(not type.dtype.is_floating, f"needs an integer or b8 operand, not {type}")
    return (type,)


def predicate(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    return (value_type(operands[0]).with_dtype(DType.B8),)


def cast(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    return (value_type(operands[0]).with_dtype(dtype_of(attributes)),)


def arithmetic(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    return (TensorType(_common_dtype(operands), _broadcast(operands)),)


def arithmetic_floating(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    dtype = _common_dtype(operands)
    _fail_unless(dtype.is_floating, f"needs floating operands, not {dtype}")
    return (TensorType(dtype, _broadcast(operands)),)


def arithmetic_integral(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    dtype = _common_dtype(operands)
    _fail_unless(not dtype.is_floating, f"needs integer or b8 operands, not {dtype}")
    return (TensorType(dtype, _broadcast(operands)),)


def comparison(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    _common_dtype(operands)
    return (TensorType(DType.B8, _broadcast(operands)),)


def where(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    condition = value_type(operands[0])
    _fail_unless(condition.dtype is DType.B8, f"the condition must be b8, not {condition}")
    dtype = attributes.get("dtype")
    branches = operands[1:]
    if dtype is None:
        dtype = _common_dtype(branches)
    return (TensorType(typed(DType, dtype), _broadcast(operands)),)


# -- reductions


def _reduced_shape(type: TensorType, attributes: Attributes) -> tuple[int, ...]:
    axes = integers(attributes, "axes")
    keepdim = attributes.get("keepdim", False)
    _fail_unless(
        tuple(sorted(set(axes))) == axes and all(0 <= axis < type.rank for axis in axes),
        f"axes {list(axes)} are not increasing axes of {type}",
    )
    if keepdim:
        return tuple(1 if axis in axes else n for axis, n in enumerate(type.shape))
    return tuple(n for axis, n in enumerate(type.shape) if axis not in axes)


def reduction(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    return (type.with_shape(_reduced_shape(type, attributes)),)


def reduction_floating(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    _fail_unless(value_type(operands[0]).dtype.is_floating, "needs a floating operand")
    return reduction(operands, attributes, body)


def sum_type(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    dtype = type.dtype if attributes.get("dtype") is None else dtype_of(attributes)
    return (TensorType(dtype, _reduced_shape(type, attributes)),)


# -- views


def reshape(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    result = type.with_shape(integers(attributes, "shape"))
    _fail_unless(result.numel == type.numel, f"cannot reshape {type} to {result}")
    return (result,)


def permute(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    axes = integers(attributes, "axes")
    _fail_unless(
        tuple(sorted(axes)) == tuple(range(type.rank)),
        f"axes {list(axes)} are not a permutation of the axes of {type}",
    )
    return (type.with_shape(tuple(type.shape[axis] for axis in axes)),)


def expand(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    shape = integers(attributes, "shape")
    padded = (1,) * (len(shape) - type.rank) + type.shape
    fits = len(padded) == len(shape) and all(
        a == b or a == 1 for a, b in zip(padded, shape, strict=True)
    )
    _fail_unless(fits, f"cannot expand {type} to {list(shape)}")
    return (type.with_shape(shape),)


def slice_type(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    axis, start, stop, step = (
        integer(attributes, name) for name in ("axis", "start", "stop", "step")
    )
    _fail_unless(0 <= axis < type.rank, f"axis {axis} is not an axis of {type}")
    extent = type.shape[axis]
    _fail_unless(
        0 <= start <= stop <= extent and step > 0,
        f"{start}:{stop}:{step} is not a normalised slice of an axis of {extent}",
    )
    length = -(-(stop - start) // step)
    return (type.with_shape(type.shape[:axis] + (length,) + type.shape[axis + 1 :]),)


# -- creation and random


def full(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    _fail_unless(isinstance(attributes.get("value"), (bool, int, float)), "value must be a number")
    return (TensorType(dtype_of(attributes), integers(attributes, "shape")),)


def iota(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    return (TensorType(dtype_of(attributes), (integer(attributes, "length"),)),)


def _key(operand: Operand) -> None:
    type = value_type(operand)
    _fail_unless(type == TensorType(DType.I64, ()), f"the key must be i64[], not {type}")


def bernoulli(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    _key(operands[0])
    integer(attributes, "stream")
    bits = integer(attributes, "bits")
    _fail_unless(bits in (16, 32), f"bits must be 16 or 32, not {bits}")
    _probability(attributes)
    return (TensorType(DType.B8, integers(attributes, "shape")),)


def _probability(attributes: Attributes) -> None:
    p = attributes.get("probability")
    _fail_unless(
        isinstance(p, (int, float)) and 0 <= p <= 1, f"probability must lie in [0,1], not {p!r}"
    )


def dropout(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    _key(operands[1])
    integer(attributes, "stream")
    _probability(attributes)
    return floating(operands, attributes, body)


# -- joining


def concatenate(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    axis = integer(attributes, "axis")
    dtype = _common_dtype(operands)
    shapes = [value_type(operand).shape for operand in operands]
    first = shapes[0]
    _fail_unless(0 <= axis < len(first), f"axis {axis} is not an axis of {list(first)}")
    for shape in shapes:
        fits = len(shape) == len(first) and all(
            a == b for i, (a, b) in enumerate(zip(shape, first, strict=True)) if i != axis
        )
        _fail_unless(fits, f"cannot join {list(first)} and {list(shape)} along axis {axis}")
    total = sum(shape[axis] for shape in shapes)
    return (TensorType(dtype, first[:axis] + (total,) + first[axis + 1 :]),)


def pad(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    low, high = integers(attributes, "low"), integers(attributes, "high")
    _fail_unless(len(low) == len(high) == type.rank, f"low and high need {type.rank} numbers each")
    shape = tuple(n + a + b for n, a, b in zip(type.shape, low, high, strict=True))
    _fail_unless(all(n >= 0 for n in shape), f"padding {type} gives a negative size")
    return (type.with_shape(shape),)


# -- products


def matmul(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    left, right = value_type(operands[0]), value_type(operands[1])
    fits = (
        left.dtype == right.dtype
        and left.rank == right.rank >= 2
        and left.shape[:-2] == right.shape[:-2]
        and left.shape[-1] == right.shape[-2]
    )
    _fail_unless(fits, f"cannot multiply {left} by {right}")
    return (left.with_shape(left.shape[:-1] + right.shape[-1:]),)


def addmm(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    (product,) = matmul(operands[1:], attributes, body)
    added = value_type(operands[0])
    fits = added.dtype == product.dtype and product.rank == 2
    fits = fits and added.shape in (product.shape, product.shape[-1:])
    _fail_unless(fits, f"cannot add {added} to a product of type {product}")
    return (product,)


# -- indexing


def _ids(operand: Operand) -> TensorType:
    type = value_type(operand)
    _fail_unless(type.dtype in (DType.I32, DType.I64), f"ids must be i32 or i64, not {type}")
    return type


def embedding(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    weight, ids = value_type(operands[0]), _ids(operands[1])
    _fail_unless(weight.rank == 2, f"the table must have two axes, not {weight}")
    return (weight.with_shape(ids.shape + weight.shape[1:]),)


def embedding_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    gradient, ids = value_type(operands[0]), _ids(operands[1])
    _fail_unless(gradient.shape[:-1] == ids.shape, f"gradient {gradient} does not match ids {ids}")
    return (gradient.with_shape((integer(attributes, "rows"), gradient.shape[-1])),)


# -- composites


def softmax(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    (type,) = floating(operands, attributes, body)
    axis = integer(attributes, "axis")
    _fail_unless(0 <= axis < max(type.rank, 1), f"axis {axis} is not an axis of {type}")
    return (type if attributes.get("dtype") is None else type.with_dtype(dtype_of(attributes)),)


def softmax_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    gradient, result = value_type(operands[0]), value_type(operands[1])
    _fail_unless(gradient.shape == result.shape, f"gradient {gradient} does not match {result}")
    return softmax(operands[1:], attributes, body)


def _normalised(type: TensorType, attributes: Attributes) -> tuple[int, ...]:
    count = integer(attributes, "axes")
    _fail_unless(0 < count <= type.rank, f"cannot normalise {count} axes of {type}")
    return type.shape[type.rank - count :]


def _statistic(type: TensorType, attributes: Attributes) -> TensorType:
    count = integer(attributes, "axes")
    shape = type.shape[: type.rank - count] + (1,) * count
    return TensorType(type.dtype.compute, shape)


def _affine(operand: Operand, shape: tuple[int, ...], what: str) -> None:
    if operand is None:
        return
    type = value_type(operand)
    _fail_unless(type.shape == shape, f"{what} {type} does not match the normalised {list(shape)}")


def layer_norm(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    (type,) = floating(operands, attributes, body)
    shape = _normalised(type, attributes)
    _affine(operands[1], shape, "weight")
    _affine(operands[2], shape, "bias")
    statistic = _statistic(type, attributes)
    return (type, statistic, statistic)


def _needed(attributes: Attributes, count: int) -> tuple[bool, ...]:
    needs = attributes.get("needs")
    _fail_unless(
        isinstance(needs, tuple) and len(needs) == count and any(needs),
        f"needs must be {count} booleans, at least one true",
    )
    return typed(tuple[bool, ...], needs)


def layer_norm_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    x = value_type(operands[1])
    shape = _normalised(x, attributes)
    _affine(operands[4], shape, "weight")
    weight = x if operands[4] is None else value_type(operands[4])
    all_types = (x, weight.with_shape(shape), weight.with_shape(shape))
    needs = _needed(attributes, 3)
    return tuple(type for type, needed in zip(all_types, needs, strict=True) if needed)


def rms_norm(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    (type,) = floating(operands, attributes, body)
    _affine(operands[1], _normalised(type, attributes), "weight")
    _fail_unless(
        attributes.get("style") in ("torch", "llama", "gemma"), "style: torch, llama or gemma"
    )
    return (type, _statistic(type, attributes))


def rms_norm_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    x = value_type(operands[1])
    shape = _normalised(x, attributes)
    _affine(operands[3], shape, "weight")
    weight = x if operands[3] is None else value_type(operands[3])
    needs = _needed(attributes, 2)
    all_types = (x, weight.with_shape(shape))
    return tuple(type for type, needed in zip(all_types, needs, strict=True) if needed)


def cross_entropy(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    logits, target = value_type(operands[0]), _ids(operands[1])
    _fail_unless(
        logits.rank == 2 and target.shape == logits.shape[:1],
        f"logits {logits} and target {target} must be [rows,classes] and [rows]",
    )
    _affine(operands[2], logits.shape[1:], "class weight")
    reduction = attributes.get("reduction")
    _fail_unless(reduction in ("none", "sum", "mean"), "reduction: none, sum or mean")
    statistic = TensorType(logits.dtype.compute, logits.shape[:1])
    loss = logits.with_shape(logits.shape[:1] if reduction == "none" else ())
    return (loss, statistic, statistic.with_shape(()))


def cross_entropy_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    logits = value_type(operands[1])
    loss, statistic, divisor = cross_entropy(operands[1:4], attributes, body)
    given = tuple(value_type(operands[i]) for i in (0, 4, 5))
    _fail_unless(
        given[0].shape == loss.shape and given[1:] == (statistic, divisor),
        f"gradient, logsumexp and divisor {list(map(str, given))} do not match {logits}",
    )
    return (logits,)


def attention(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    query, key, value = (value_type(operand) for operand in operands[:3])
    _fail_unless(
        query.rank == key.rank == value.rank == 4
        and key.shape[:3] == value.shape[:3]
        and query.shape[0] == key.shape[0]
        and query.shape[3] == key.shape[3]
        and query.shape[1] % max(key.shape[1], 1) == 0,
        f"attention cannot take q {query}, k {key}, v {value}",
    )
    out = query.with_shape(query.shape[:3] + value.shape[3:])
    return (out, TensorType(query.dtype.compute, query.shape[:3]))


def attention_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    return tuple(value_type(operand) for operand in operands[1:4])


# -- the rest


def declared(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    """Library ops declare their result types when lowered: PyTorch alone knows them."""
    raise TypeRuleError("a library op's result types are declared, not inferred")


def fused(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    _fail_unless(body is not None, "a fused op needs a body")
    graph = typed(Graph, body)
    given = [operand.type if isinstance(operand, Value) else None for operand in operands]
    wanted = [port.value.type for port in graph.inputs]
    _fail_unless(given == wanted, f"operands {given} do not match the body's inputs {wanted}")
    return tuple(port.value.type for port in graph.outputs)
