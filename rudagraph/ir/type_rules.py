"""Type inference rules that rows of the op table name.

Each rule maps (operands, attributes, body) to the result types and raises TypeRuleError with a
sentence where they do not fit. Operands of an arithmetic op have one dtype: lowering casts them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast as typed

from rudagraph.ir.graph import Attribute, Graph, Number, Operand, Value
from rudagraph.ir.types import DType, TensorType, broadcast_shapes

Attributes = Mapping[str, Attribute]
Types = tuple[TensorType, ...]


class TypeRuleError(Exception):
    """Operands or attributes that an op cannot take; the verifier adds where."""


def fail_unless(condition: bool, message: str) -> None:
    if not condition:
        raise TypeRuleError(message)


def value_type(operand: Operand) -> TensorType:
    if isinstance(operand, Value):  # no text is made where all is well: passes verify every op
        return operand.type
    raise TypeRuleError(f"expected a tensor operand, not {operand!r}")


def integers(attributes: Attributes, name: str) -> tuple[int, ...]:
    value = attributes.get(name)
    if isinstance(value, tuple) and all(type(item) is int for item in value):
        return typed(tuple[int, ...], value)
    raise TypeRuleError(f"attribute {name} must be a list of integers, not {value!r}")


def integer(attributes: Attributes, name: str) -> int:
    value = attributes.get(name)
    fail_unless(type(value) is int, f"attribute {name} must be an integer, not {value!r}")
    return typed(int, value)


def number(attributes: Attributes, name: str) -> float:
    value = attributes.get(name)
    fail_unless(
        isinstance(value, (int, float)), f"attribute {name} must be a number, not {value!r}"
    )
    return typed(float, value)


def dtype_of(attributes: Attributes, name: str = "dtype") -> DType:
    value = attributes.get(name)
    fail_unless(isinstance(value, DType), f"attribute {name} must be a dtype, not {value!r}")
    return typed(DType, value)


def _broadcast(operands: tuple[Operand, ...]) -> tuple[int, ...]:
    fail_unless(None not in operands, "no operand may be left out")
    shapes = [operand.type.shape for operand in operands if isinstance(operand, Value)]
    try:
        return broadcast_shapes(*shapes)
    except ValueError as error:
        raise TypeRuleError(str(error)) from None


def _common_dtype(operands: tuple[Operand, ...]) -> DType:
    dtypes = dict.fromkeys(operand.type.dtype for operand in operands if isinstance(operand, Value))
    fail_unless(bool(dtypes), "at least one operand must be a tensor")
    if len(dtypes) != 1:
        names = ", ".join(map(str, dtypes))
        raise TypeRuleError(f"operands must have one dtype, not {names}")
    (dtype,) = dtypes
    _check_numbers(operands, dtype)
    return dtype


def _check_numbers(operands: tuple[Operand, ...], dtype: DType) -> None:
    for operand in operands:
        if isinstance(operand, (int, float)):
            fail_unless(_fits(operand, dtype), f"the number {operand!r} is no {dtype}: cast first")


def _fits(number: Number, dtype: DType) -> bool:
    """PyTorch would promote to another dtype where a number does not fit; the IR casts instead."""
    if dtype.is_floating:
        return True
    return not isinstance(number, float) and (dtype is not DType.B8 or number in (0, 1))


# -- pointwise


def same(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    return (value_type(operands[0]),)


def numeric(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    fail_unless(type.dtype is not DType.B8, f"needs numbers, not {type}")
    return (type,)


def floating(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    if not type.dtype.is_floating:
        raise TypeRuleError(f"needs a floating operand, not {type}")
    return (type,)


def integral(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    fail_unless(not type.dtype.is_floating, f"needs an integer or b8 operand, not {type}")
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
    fail_unless(dtype.is_floating, f"needs floating operands, not {dtype}")
    return (TensorType(dtype, _broadcast(operands)),)


def arithmetic_integral(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    dtype = _common_dtype(operands)
    fail_unless(not dtype.is_floating, f"needs integer or b8 operands, not {dtype}")
    return (TensorType(dtype, _broadcast(operands)),)


def comparison(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    _common_dtype(operands)
    return (TensorType(DType.B8, _broadcast(operands)),)


def where(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    condition = value_type(operands[0])
    fail_unless(condition.dtype is DType.B8, f"the condition must be b8, not {condition}")
    branches = operands[1:]
    if any(isinstance(branch, Value) for branch in branches):
        dtype = _common_dtype(branches)
        given = attributes.get("dtype", dtype)
        fail_unless(given is dtype, f"the branches are {dtype}, the attribute says {given}")
    else:
        dtype = dtype_of(attributes)
        _check_numbers(branches, dtype)
    return (TensorType(dtype, _broadcast(operands)),)


# -- reductions


def _reduced_shape(type: TensorType, attributes: Attributes) -> tuple[int, ...]:
    axes = integers(attributes, "axes")
    keepdim = attributes.get("keepdim", False)
    fail_unless(
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
    fail_unless(value_type(operands[0]).dtype.is_floating, "needs a floating operand")
    return reduction(operands, attributes, body)


def sum_type(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    dtype = type.dtype if attributes.get("dtype") is None else dtype_of(attributes)
    return (TensorType(dtype, _reduced_shape(type, attributes)),)


# -- views


def reshape(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    result = type.with_shape(integers(attributes, "shape"))
    if result.numel != type.numel:
        raise TypeRuleError(f"cannot reshape {type} to {result}")
    return (result,)


def permute(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    axes = integers(attributes, "axes")
    if sorted(axes) != list(range(type.rank)):
        raise TypeRuleError(f"axes {list(axes)} are not a permutation of the axes of {type}")
    return (type.with_shape(tuple(type.shape[axis] for axis in axes)),)


def expand(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    shape = integers(attributes, "shape")
    padded = (1,) * (len(shape) - type.rank) + type.shape
    fits = len(padded) == len(shape) and all(
        a == b or a == 1 for a, b in zip(padded, shape, strict=True)
    )
    fail_unless(fits, f"cannot expand {type} to {list(shape)}")
    return (type.with_shape(shape),)


def flip(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type, axis = value_type(operands[0]), integer(attributes, "axis")
    fail_unless(0 <= axis < type.rank, f"axis {axis} is not an axis of {type}")
    return (type,)


def slice_type(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    axis, start, stop, step = (
        integer(attributes, name) for name in ("axis", "start", "stop", "step")
    )
    fail_unless(0 <= axis < type.rank, f"axis {axis} is not an axis of {type}")
    extent = type.shape[axis]
    fail_unless(
        0 <= start <= stop <= extent and step > 0,
        f"{start}:{stop}:{step} is not a normalised slice of an axis of {extent}",
    )
    length = -(-(stop - start) // step)
    return (type.with_shape(type.shape[:axis] + (length,) + type.shape[axis + 1 :]),)


# -- creation and random


def full(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    value, dtype = number(attributes, "value"), dtype_of(attributes)
    fail_unless(_fits(value, dtype), f"the number {value!r} is no {dtype}")
    return (TensorType(dtype, integers(attributes, "shape")),)


def iota(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    dtype = dtype_of(attributes)
    for name in ("start", "step"):
        fits = _fits(number(attributes, name), dtype)
        fail_unless(fits, f"{name} {attributes[name]!r} is no {dtype}")
    length = integer(attributes, "length")
    shape = (length,) if attributes.get("shape") is None else integers(attributes, "shape")
    fail_unless(math.prod(shape) == length, f"shape {list(shape)} does not hold {length} elements")
    return (TensorType(dtype, shape),)


def _key(operand: Operand) -> None:
    type = value_type(operand)
    fail_unless(type == TensorType(DType.I64, ()), f"the key must be i64[], not {type}")


def bernoulli(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    _key(operands[0])
    integer(attributes, "stream")
    bits = integer(attributes, "bits")
    fail_unless(bits in (16, 32), f"bits must be 16 or 32, not {bits}")
    _probability(attributes)
    return (TensorType(DType.B8, integers(attributes, "shape")),)


def _probability(attributes: Attributes) -> None:
    p = attributes.get("probability")
    fail_unless(
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
    fail_unless(0 <= axis < len(first), f"axis {axis} is not an axis of {list(first)}")
    for shape in shapes:
        fits = len(shape) == len(first) and all(
            a == b for i, (a, b) in enumerate(zip(shape, first, strict=True)) if i != axis
        )
        fail_unless(fits, f"cannot join {list(first)} and {list(shape)} along axis {axis}")
    total = sum(shape[axis] for shape in shapes)
    return (TensorType(dtype, first[:axis] + (total,) + first[axis + 1 :]),)


def pad(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    type = value_type(operands[0])
    low, high = integers(attributes, "low"), integers(attributes, "high")
    fail_unless(len(low) == len(high) == type.rank, f"low and high need {type.rank} numbers each")
    shape = tuple(n + a + b for n, a, b in zip(type.shape, low, high, strict=True))
    fail_unless(all(n >= 0 for n in shape), f"padding {type} gives a negative size")
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
    if not fits:
        raise TypeRuleError(f"cannot multiply {left} by {right}")
    dtype = left.dtype if attributes.get("dtype") is None else dtype_of(attributes)
    return (TensorType(dtype, left.shape[:-1] + right.shape[-1:]),)


def addmm(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    (product,) = matmul(operands[1:], attributes, body)
    added = value_type(operands[0])
    fits = added.dtype == product.dtype and product.rank == 2
    fits = fits and added.shape in (product.shape, product.shape[-1:])
    fail_unless(fits, f"cannot add {added} to a product of type {product}")
    return (product,)


# -- indexing


def ids_type(operand: Operand) -> TensorType:
    type = value_type(operand)
    fail_unless(type.dtype in (DType.I32, DType.I64), f"ids must be i32 or i64, not {type}")
    return type


def embedding(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    weight, ids = value_type(operands[0]), ids_type(operands[1])
    fail_unless(weight.rank == 2, f"the table must have two axes, not {weight}")
    return (weight.with_shape(ids.shape + weight.shape[1:]),)


def embedding_backward(
    operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None
) -> Types:
    gradient, ids = value_type(operands[0]), ids_type(operands[1])
    fail_unless(gradient.shape[:-1] == ids.shape, f"gradient {gradient} does not match ids {ids}")
    return (gradient.with_shape((integer(attributes, "rows"), gradient.shape[-1])),)


# -- the rest


def declared(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    """Library ops declare their result types when lowered: PyTorch alone knows them."""
    raise TypeRuleError("a library op's result types are declared, not inferred")


def fused(operands: tuple[Operand, ...], attributes: Attributes, body: Graph | None) -> Types:
    fail_unless(body is not None, "a fused op needs a body")
    graph = typed(Graph, body)
    given = [operand.type if isinstance(operand, Value) else operand for operand in operands]
    wanted = [port.value.type for port in graph.inputs]
    if given != wanted:
        raise TypeRuleError(
            f"operands {list(map(str, given))} do not match the body's inputs "
            f"{list(map(str, wanted))}"
        )
    return tuple(port.value.type for port in graph.outputs)
