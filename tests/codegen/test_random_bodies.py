"""Random fused bodies against the interpreter: shapes, broadcasts, strides, reductions, sharing."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.types import DType, TensorType
from tests.codegen.compare import check, operands_for
from tests.codegen.run import fused_op

EXTENTS = (1, 2, 3, 5, 16, 17, 40)
DTYPES = (DType.F32, DType.BF16, DType.F16, DType.F64)
# Bounded or nearly so: a chain of them neither overflows nor magnifies an ulp by much.
UNARY = ("tanh", "sigmoid", "neg", "abs", "relu", "erf", "gelu", "sin")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


@st.composite
def bodies(draw: st.DrawFn) -> Graph:
    """A body over one domain; comparisons are of operands alone, so that no ulp turns a branch."""
    rank = draw(st.integers(0, 4))
    domain = tuple(draw(st.sampled_from(EXTENTS)) for _ in range(rank))
    builder = GraphBuilder("body")
    values: list[Value] = []
    for index in range(draw(st.integers(1, 4))):
        kept = rank if index == 0 else draw(st.integers(0, rank))
        shape = domain[rank - kept :]
        if index:
            shape = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in shape)
        dtype = draw(st.sampled_from(DTYPES))
        values.append(builder.input(f"x{index}", TensorType(dtype, shape), Role.OPERAND))
    first = values[0]
    key = builder.input("key", TensorType(DType.I64, ()), Role.OPERAND)
    keep = builder.one("bernoulli", key, bits=16, probability=0.3, shape=domain, stream=2)
    below = builder.one("lt", first, 0.25)
    columns: list[Value] = []
    for _ in range(draw(st.integers(1, 10))):
        value = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(("unary", "binary", "cast", "where", "row", "number", "full")))
        if kind == "unary":
            values.append(builder.one(draw(st.sampled_from(UNARY)), value))
        elif kind == "number":
            number = draw(st.sampled_from((0.5, -1.5, 2, 0.1)))
            values.append(builder.one(draw(st.sampled_from(BINARY)), value, number))
        elif kind == "cast":
            values.append(builder.one("cast", value, dtype=draw(st.sampled_from(DTYPES))))
        elif kind == "where":
            condition = draw(st.sampled_from((keep, below)))
            values.append(builder.one("where", condition, value, draw(st.sampled_from((0, 0.3)))))
        elif kind == "row" and rank and value.type.shape == domain:
            opcode = draw(st.sampled_from(("mean", "amax", "amin")))
            values.append(builder.one(opcode, value, axes=(rank - 1,), keepdim=True))
        else:
            same = [other for other in values if other.type.dtype is value.type.dtype]
            other = draw(st.sampled_from(same))
            values.append(builder.one(draw(st.sampled_from(BINARY)), value, other))
    made = [value for value in values if value in builder.finish().producers()]
    full = [value for value in made if value.type.shape == domain]
    for value in full[-2:]:
        if rank and draw(st.booleans()):
            column = draw(st.booleans()) and rank > 1
            axes = tuple(range(rank - 1 if column else rank))
            columns.append(builder.one("sum", value, axes=axes, keepdim=False))
    rows = domain[:-1] + (1,)
    for value in made:
        is_result = value.type.shape in (domain, rows) and draw(st.booleans())
        if is_result or (value is made[-1] and value.type.shape == domain):
            builder.output(value, Role.RESULT)
    for value in columns:
        builder.output(value, Role.RESULT)
    if not builder.outputs:
        builder.output(builder.one("tanh", first), Role.RESULT)
    return without_dead_ops(builder.finish())


def without_dead_ops(body: Graph) -> Graph:
    live = set(body.output_values())
    ops = []
    for op in reversed(body.ops):
        if any(result in live for result in op.results):
            ops.append(op)
            live |= set(op.inputs)
    return body.with_ops(tuple(reversed(ops)))


def strided(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, in memory in another way."""
    kind = draw(st.sampled_from(("dense", "permuted", "gaps", "expanded")))
    if kind == "permuted":
        axes = draw(st.permutations(range(tensor.ndim)))
        back = [axes.index(axis) for axis in range(tensor.ndim)]
        return tensor.permute(axes).contiguous().permute(back)
    if kind == "gaps" and tensor.ndim:
        wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1] + 1, dtype=tensor.dtype)
        view = wide[..., 1::2]
        view.copy_(tensor)
        return view
    if kind == "expanded" and tensor.ndim:
        axis = draw(st.integers(0, tensor.ndim - 1))
        return tensor.narrow(axis, 0, 1).expand(tensor.shape)
    return tensor


@given(st.data())
def test_random_bodies(data: st.DataObject) -> None:
    body = data.draw(bodies())
    op = fused_op(body)
    tensors = [strided(data.draw, tensor) for tensor in operands_for(op)]
    depth = math.sqrt(sum(1 for op in body.ops if not has(op, Tag.REDUCTION)))
    check(op, *tensors, looser=4 * depth)
