"""Graphs for tests: random ones from hypothesis, and tensors to run any graph on."""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Location, Number, Role, Value
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import DType, TensorType

FLOATING = (DType.F32, DType.BF16, DType.F64, DType.F16)
SHAPES = ((3, 4), (1, 4), (3, 1), (4,), (), (2, 3, 4), (1, 1, 4))

_UNARY = "neg abs floor relu sign exp tanh sigmoid silu gelu sqrt log1p erf".split()
_BINARY = "add sub mul maximum minimum div silu_backward tanh_backward".split()
_INTEGER = "add sub mul maximum minimum bitwise_and bitwise_or".split()
_COMPARE = "eq ne lt le gt ge".split()
_NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 0.1, math.inf, -math.inf, math.nan])


@st.composite
def random_graphs(draw: st.DrawFn, numbers: st.SearchStrategy[float] = _NUMBERS) -> Graph:
    """A valid graph of pointwise ops, reductions, views, casts, creation, random and norm ops."""
    dtype = draw(st.sampled_from(FLOATING))
    builder = GraphBuilder("random")
    key = builder.input("key", TensorType(DType.I64, ()), Role.KEY)
    floats = [
        builder.input(f"x{i}", TensorType(dtype, draw(st.sampled_from(SHAPES))), Role.ARGUMENT, "x")
        for i in range(3)
    ]
    whole = [builder.input("n", TensorType(DType.I64, (3, 4)), Role.ARGUMENT, "n")]
    truths: list[Value] = []
    for step in range(draw(st.integers(1, 12))):
        builder.location = draw(
            st.sampled_from([Location(), Location("layers.0", f"model.py:{step}"), Location("m")])
        )
        _grow(draw, builder, floats, whole, truths, key, numbers)
    named = [*floats, *whole, *truths]
    for index in range(draw(st.integers(1, 3))):
        builder.output(draw(st.sampled_from(named)), Role.RESULT, f"out[{index}]")
    return builder.finish()


def _grow(
    draw: st.DrawFn,
    builder: GraphBuilder,
    floats: list[Value],
    whole: list[Value],
    truths: list[Value],
    key: Value,
    numbers: st.SearchStrategy[float],
) -> None:
    """Append one op of a kind drawn, if the values at hand fit it."""
    x = draw(st.sampled_from(floats))
    match draw(st.integers(0, 10)):
        case 0:
            floats.append(builder.one(draw(st.sampled_from(_UNARY)), x))
        case 1 | 2:
            y: Value | Number = draw(st.one_of(st.sampled_from(floats), numbers))
            if isinstance(y, Value) and not _fits(x, y):
                y = draw(numbers)
            pair = (x, y) if draw(st.booleans()) else (y, x)
            floats.append(builder.one(draw(st.sampled_from(_BINARY)), *pair))
        case 3:
            floats.append(_view(draw, builder, x))
        case 4:
            axes = tuple(i for i in range(x.type.rank) if draw(st.booleans()))
            opcode, keep = draw(st.sampled_from(["sum", "mean", "amax"])), draw(st.booleans())
            if math.prod(x.type.shape[i] for i in axes) or opcode == "sum":
                floats.append(builder.one(opcode, x, axes=axes, keepdim=keep))
        case 5:
            truths.append(builder.one(draw(st.sampled_from(_COMPARE)), x, draw(numbers)))
        case 6:
            wide = builder.one("cast", x, dtype=draw(st.sampled_from(FLOATING)))
            floats.append(builder.one("cast", wide, dtype=x.type.dtype))
        case 7:
            shape = draw(st.sampled_from(SHAPES))
            value = draw(numbers)
            floats.append(builder.one("full", dtype=x.type.dtype, shape=shape, value=value))
        case 8:
            stream = draw(st.integers(0, 2))
            floats.append(builder.one("dropout", x, key, probability=0.25, stream=stream))
        case 9:
            other = draw(st.sampled_from(whole))
            number = draw(st.integers(-2, 3))
            whole.append(builder.one(draw(st.sampled_from(_INTEGER)), other, number))
        case 10:
            if truths and _fits(x, condition := draw(st.sampled_from(truths))):
                floats.append(builder.one("where", condition, x, draw(numbers)))


def _view(draw: st.DrawFn, builder: GraphBuilder, x: Value) -> Value:
    shape = x.type.shape
    match draw(st.integers(0, 3)):
        case 0:
            return builder.one(
                "reshape", x, shape=draw(st.sampled_from([(*shape, 1), (1, *shape)]))
            )
        case 1:
            return builder.one("permute", x, axes=tuple(draw(st.permutations(range(len(shape))))))
        case 2:
            return builder.one("expand", x, shape=(draw(st.integers(1, 2)), *shape))
    if not shape:
        return builder.one("reshape", x, shape=(1,))
    stop = draw(st.integers(1, shape[0]))
    return builder.one("slice", x, axis=0, start=0, stop=stop, step=draw(st.integers(1, 2)))


def _fits(left: Value, right: Value) -> bool:
    if left.type.dtype != right.type.dtype and right.type.dtype is not DType.B8:
        return False
    try:
        shape = torch.broadcast_shapes(left.type.shape, right.type.shape)
    except RuntimeError:
        return False
    return math.prod(shape) <= 64


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    """A tensor for each input: normal floats, small non-negative integers that are valid ids."""
    generator = torch.Generator().manual_seed(seed)
    below = {value.name: 2 for value in graph.values()}
    for op in graph.ops:
        match op.opcode:
            case "embedding":
                below[op.inputs[1].name] = op.inputs[0].type.shape[0]
            case "embedding_backward":
                below[op.inputs[1].name] = op.result.type.shape[0]
            case "cross_entropy" | "cross_entropy_backward":
                logits, target = op.inputs[0:2] if op.opcode == "cross_entropy" else op.inputs[1:3]
                below[target.name] = logits.type.shape[1]
    return {
        port.value.name: _random_tensor(port.value, below[port.value.name], generator)
        for port in graph.inputs
    }


def _random_tensor(value: Value, below: int, generator: torch.Generator) -> torch.Tensor:
    dtype, shape = to_torch_dtype(value.type.dtype), value.type.shape
    if value.type.dtype.is_floating:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if value.type.dtype is DType.B8:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randint(0, max(below, 1), shape, generator=generator).to(dtype)
