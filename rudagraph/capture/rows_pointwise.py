"""Rows of the lowering table: pointwise ops.

Operands are cast to the dtype in which PyTorch computes the op, so that an IR op sees one dtype.
Python numbers stay numbers; comparisons round them first, as eager does.
"""

from __future__ import annotations

from typing import Any

import torch

from rudagraph.capture.lowering import Lowering, rounded
from rudagraph.capture.nodes import Node
from rudagraph.capture.table import Row, arguments, row
from rudagraph.ir.graph import Value
from rudagraph.ir.torch_types import from_torch_dtype
from rudagraph.ir.types import DType

aten = torch.ops.aten

_UNARY = (
    "neg abs sqrt rsqrt reciprocal floor ceil trunc round sign relu exp exp2 expm1 log log2 "
    "log10 log1p sin cos tan asin acos atan sinh cosh tanh sigmoid erf silu bitwise_not"
).split()
_BINARY = {
    aten.add.Tensor: "add",
    aten.add.Scalar: "add",
    aten.sub.Tensor: "sub",
    aten.sub.Scalar: "sub",
    aten.mul.Tensor: "mul",
    aten.mul.Scalar: "mul",
    aten.div.Tensor: "div",
    aten.div.Scalar: "div",
    aten.maximum.default: "maximum",
    aten.minimum.default: "minimum",
    aten.remainder.Tensor: "remainder",
    aten.remainder.Scalar: "remainder",
    aten.remainder.Scalar_Tensor: "remainder",
    aten.fmod.Tensor: "fmod",
    aten.fmod.Scalar: "fmod",
    aten.atan2.default: "atan2",
    aten.bitwise_and.Tensor: "bitwise_and",
    aten.bitwise_and.Scalar: "bitwise_and",
    aten.bitwise_or.Tensor: "bitwise_or",
    aten.bitwise_or.Scalar: "bitwise_or",
    aten.bitwise_xor.Tensor: "bitwise_xor",
    aten.bitwise_xor.Scalar: "bitwise_xor",
    aten.bitwise_left_shift.Tensor: "shift_left",
    aten.bitwise_left_shift.Tensor_Scalar: "shift_left",
    aten.__lshift__.Tensor: "shift_left",
    aten.__lshift__.Scalar: "shift_left",
    aten.bitwise_right_shift.Tensor: "shift_right",
    aten.bitwise_right_shift.Tensor_Scalar: "shift_right",
    aten.__rshift__.Tensor: "shift_right",
    aten.__rshift__.Scalar: "shift_right",
    aten.sigmoid_backward.default: "sigmoid_backward",
    aten.tanh_backward.default: "tanh_backward",
    aten.silu_backward.default: "silu_backward",
}
_SAME_ON_INTEGERS = frozenset({"floor", "ceil", "trunc", "round"})
_SAME_ON_TRUTH = frozenset({"sign", "relu", "abs"})
_ON_TRUTH = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or"}
_ON_TRUTH |= {"minimum": "logical_and", "bitwise_and": "logical_and", "bitwise_or": "logical_or"}
_ON_TRUTH |= {"bitwise_xor": "logical_xor", "bitwise_not": "logical_not"}


def _unary(opcode: str) -> Row:
    def lower(low: Lowering, node: Node) -> Value:
        dtype = low.dtype(node)
        if opcode in _SAME_ON_INTEGERS and not dtype.is_floating:
            return low.cast(low.value(node.args[0]), dtype)
        if opcode in _SAME_ON_TRUTH and dtype is DType.B8:
            return low.cast(low.value(node.args[0]), dtype)
        name = _ON_TRUTH.get(opcode, opcode) if dtype is DType.B8 else opcode
        return low.pointwise(node, name, node.args[:1], dtype)

    return lower


def _binary(opcode: str) -> Row:
    def lower(low: Lowering, node: Node) -> Value:
        dtype = low.dtype(node)
        left, right = node.args[:2]
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        if opcode in ("add", "sub") and alpha != 1:
            return _scaled(low, node, opcode, left, right, alpha)
        name = _ON_TRUTH.get(opcode, opcode) if dtype is DType.B8 else opcode
        return low.pointwise(node, name, (left, right), dtype)

    return lower


def _scaled(low: Lowering, node: Node, opcode: str, left: Any, right: Any, alpha: Any) -> Value:
    """left + alpha * right with one rounding, as eager computes it."""
    dtype = low.dtype(node)
    wide = dtype.compute
    operands = [
        low.cast(low.cast(low.value(item), dtype), wide) if isinstance(item, Node) else item
        for item in (left, right)
    ]
    if isinstance(operands[1], Value):
        operands[1] = low.one("mul", operands[1], alpha)
    else:
        operands[1] = operands[1] * alpha
    return low.cast(low.one(opcode, *operands), dtype)


for _name in _UNARY:
    row(getattr(aten, _name).default)(_unary(_name))
for _target, _opcode in _BINARY.items():
    row(_target)(_binary(_opcode))


@row(aten.isnan.default, aten.isinf.default, aten.logical_not.default)
def _predicate(low: Lowering, node: Node) -> Value:
    name = node.target._opname
    return low.one(name, low.value(node.args[0]))


@row(aten.gelu.default)
def _gelu(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    approximate = given["approximate"]
    return low.pointwise(node, "gelu", (given["self"],), low.dtype(node), approximate=approximate)


@row(aten.gelu_backward.default)
def _gelu_backward(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    operands = (given["grad_output"], given["self"])
    approximate = given["approximate"]
    return low.pointwise(node, "gelu_backward", operands, low.dtype(node), approximate=approximate)


@row(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _divide(low: Lowering, node: Node) -> Value:
    modes = {None: "div", "floor": "floor_divide", "trunc": "truncate_divide"}
    opcode = modes[arguments(node)["rounding_mode"]]
    return low.pointwise(node, opcode, node.args[:2], low.dtype(node))


@row(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(low: Lowering, node: Node) -> Value:
    return low.pointwise(node, "floor_divide", node.args[:2], low.dtype(node))


@row(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _power(low: Lowering, node: Node) -> Value:
    dtype = low.dtype(node)
    base, exponent = node.args[:2]
    if node.target is aten.pow.Tensor_Scalar and exponent == 2:
        return low.pointwise(node, "mul", (base, base), dtype)
    if node.target is aten.pow.Tensor_Scalar and exponent == 1:
        return low.cast(low.value(base), dtype)
    return low.pointwise(node, "pow", (base, exponent), dtype)


def common_dtype(*operands: Any) -> DType:
    """The dtype to which PyTorch promotes these nodes and numbers."""
    return from_torch_dtype(torch.result_type(*(_sample(operand) for operand in operands)))


def _sample(operand: Any) -> Any:
    if not isinstance(operand, Node):
        return operand
    value = operand.traced
    return torch.empty((1,) * value.dim(), dtype=value.dtype, device="meta")


def _comparison(opcode: str) -> Row:
    def lower(low: Lowering, node: Node) -> Value:
        dtype = common_dtype(*node.args[:2])
        operands = [
            rounded(item, dtype) if isinstance(item, (bool, int, float)) else item
            for item in node.args[:2]
        ]
        return low.pointwise(node, opcode, operands, dtype)

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    row(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_name))


def _logical(opcode: str) -> Row:
    def lower(low: Lowering, node: Node) -> Value:
        return low.pointwise(node, opcode, node.args[:2], DType.B8)

    return lower


for _name in ("logical_and", "logical_or", "logical_xor"):
    row(getattr(aten, _name).default)(_logical(_name))


@row(aten.where.self)
def _where(low: Lowering, node: Node) -> Value:
    condition, *branches = node.args
    dtype = low.dtype(node)
    always = low.everywhere(condition)
    if always is not None:
        chosen = low.value(branches[0 if always else 1])
        return low.expand(low.cast(chosen, dtype), node.traced.shape)
    test = low.cast(low.value(condition), DType.B8)
    operands: list[Any] = []
    for branch in branches:
        number = low.number(branch, dtype)
        operands.append(low.cast(low.value(branch), dtype) if number is None else number)
    result = low.one("where", test, *operands, dtype=_needed_dtype(operands, dtype))
    return low.expand(result, node.traced.shape)


def _needed_dtype(operands: list[Any], dtype: DType) -> DType | None:
    """`where` names its dtype only where no branch is a tensor that tells it."""
    return None if any(isinstance(operand, Value) for operand in operands) else dtype


@row(aten.clamp.default, aten.clamp.Tensor)
def _clamp(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    dtype = low.dtype(node)
    result = low.cast(low.value(given["self"]), dtype)
    for opcode, bound in (("maximum", given["min"]), ("minimum", given["max"])):
        if bound is None:
            continue
        number = low.number(bound, dtype) if isinstance(bound, Node) else bound
        operand = number if number is not None else low.cast(low.value(bound), dtype)
        result = low.one(opcode, result, operand)
    return result


@row(aten._to_copy.default, torch.ops.prims.convert_element_type.default)
def _to_copy(low: Lowering, node: Node) -> Value:
    return low.cast(low.value(node.args[0]), low.dtype(node), low.name)


@row(
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.positive.default,
)
def _same(low: Lowering, node: Node) -> Value:
    value: Value = low.value(node.args[0])
    return value


@row(aten.copy.default)
def _copy(low: Lowering, node: Node) -> Value:
    source = low.cast(low.value(node.args[1]), low.dtype(node))
    return low.expand(source, node.traced.shape)


@row(aten.fill.Scalar)
def _fill(low: Lowering, node: Node) -> Value:
    type = low.type(node)
    return low.full(type, rounded(node.args[1], type.dtype))
