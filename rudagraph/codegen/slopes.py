"""Takes the slope out of GELU's derivative where a body has GELU of the same operand.

    %y = gelu(%x)                              %y = gelu(%x)
    %dx = gelu_backward(%g, %x)    becomes     %slope: f32 = gelu(%x) [slope=true]
                                               %dx = mul(%g, %slope)

Input: a body. Output: a body that computes the same numbers; the mark is read by the expression
table alone. Beside each other both take a tenth more than one (33 instructions and 4), so whatever
pass has the one makes the other, and keeps it in the place of %x.
"""

from __future__ import annotations

from dataclasses import replace

from rudagraph.ir.graph import Graph, Op, Operand, Value, make_attributes
from rudagraph.ir.types import TensorType

SLOPE = "slope"


def share_slopes(body: Graph) -> Graph:
    """The body with a slope of its own for each derivative whose function is there too."""
    functions = {_key(op.operands[0], op) for op in body.ops if op.opcode == "gelu"}
    ops: list[Op] = []
    slopes: dict[tuple[object, object], Value] = {}
    for op in body.ops:
        if op.opcode != "gelu_backward" or _key(op.operands[1], op) not in functions:
            ops.append(op)
            continue
        gradient, x = op.operands
        key = _key(x, op)
        if key not in slopes:
            assert isinstance(x, Value), "functions of numbers are folded before"
            # In a register's own type: the derivative rounds once, after the product.
            type = TensorType(x.type.dtype.compute, x.type.shape)
            slopes[key] = Value(f"{op.result.name}.slope", type)
            attributes = make_attributes(**dict(op.attributes), **{SLOPE: True})
            ops.append(Op("gelu", (x,), (slopes[key],), attributes, op.location))
        operands = (gradient, slopes[key])
        ops.append(replace(op, opcode="mul", operands=operands, attributes=()))
    return replace(body, ops=tuple(ops)) if slopes else body


def is_slope(op: Op) -> bool:
    return op.opcode == "gelu" and bool(op.get(SLOPE))


def is_function_of(op: Op, slope: Op) -> bool:
    """Whether `op` is the function that the slope is of."""
    same = op.opcode == "gelu" and not is_slope(op)
    return same and _key(op.operands[0], op) == _key(slope.operands[0], slope)


def _key(x: Operand, op: Op) -> tuple[object, object]:
    return x, op.get("approximate")
