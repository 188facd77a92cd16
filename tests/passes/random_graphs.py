"""Random joint graphs for the oracle: interpret(before) == interpret(after) for every pass.

Forward ops are drawn over a few shapes that reshape, transpose and broadcast into each other; the
"backward" is more ops that read tangents and forward values, so that every kind of edge between
the two halves occurs. Not derivatives of anything: passes must not care.
"""

from __future__ import annotations

import random

import torch

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import DType, TensorType

B, S, H = 2, 3, 4
SHAPES = ((B, S, H), (B * S, H), (B, H, S), (B, S * H), (B, S, 1), (B * S, 1), (B, S), (H,), ())


class RandomGraph:
    """Builds one graph from a seed."""

    def __init__(self, seed: int, dtype: DType = DType.F32) -> None:
        self.random = random.Random(seed)
        self.builder = GraphBuilder("joint")
        self.dtype = dtype
        self.values: list[Value] = []

    def build(self, forward: int = 14, backward: int = 14) -> Graph:
        for index, shape in enumerate(SHAPES):
            role = Role.PARAMETER if index % 2 else Role.ARGUMENT
            self.add_input(f"in{index}", shape, role)
        self.add_input("state", (H,), Role.BUFFER)
        self.key = self.builder.input("key", TensorType(DType.I64, ()), Role.KEY)
        for _ in range(forward):
            self.step()
        results = [self.pick() for _ in range(3)]
        for index, value in enumerate(results):
            self.builder.output(value, Role.RESULT, f"out{index}")
        state = next((v for v in reversed(self.values) if v.type.shape == (H,)), self.values[0])
        self.builder.output(state, Role.UPDATE, "buffer:state")
        for index, value in enumerate(results):
            tangent = self.builder.input(f"t{index}", value.type, Role.TANGENT, f"out{index}")
            self.values += [tangent] * 4
        for _ in range(backward):
            self.step()
        for index in range(4):
            self.builder.output(self.pick(), Role.GRADIENT, f"p{index}")
        return self.builder.finish()

    def add_input(self, name: str, shape: tuple[int, ...], role: Role) -> None:
        type = TensorType(self.dtype, shape)
        self.values.append(self.builder.input(name, type, role, name))

    def pick(self) -> Value:
        recent = self.random.random() < 0.7
        return self.random.choice(self.values[-8:] if recent else self.values)

    def step(self) -> None:
        kind = self.random.choice(
            ("unary", "unary", "binary", "binary", "binary", "reduce", "view", "view", "norm")
            + ("matmul", "cast", "dropout", "softmax", "full", "rotation")
        )
        self.values.append(getattr(self, f"make_{kind}")())

    def make_unary(self) -> Value:
        opcode = self.random.choice(("neg", "tanh", "relu", "sigmoid", "abs", "gelu"))
        return self.builder.one(opcode, self.pick())

    def make_binary(self) -> Value:
        left = self.pick()
        fitting = [v for v in self.values if _fits(v.type.shape, left.type.shape)]
        right = self.random.choice(fitting) if fitting else 0.5
        opcode = self.random.choice(("add", "sub", "mul", "maximum"))
        return self.builder.one(opcode, left, right)

    def make_reduce(self) -> Value:
        value = self.pick()
        rank = value.type.rank
        if rank == 0:
            return self.builder.one("neg", value)
        axes = tuple(axis for axis in range(rank) if self.random.random() < 0.5) or (rank - 1,)
        keepdim = self.random.random() < 0.5
        opcode = self.random.choice(("sum", "mean", "amax"))
        return self.builder.one(opcode, value, axes=axes, keepdim=keepdim)

    def make_view(self) -> Value:
        value = self.pick()
        same_size = [s for s in SHAPES if TensorType(self.dtype, s).numel == value.type.numel]
        if value.type.rank > 1 and self.random.random() < 0.3:
            axes = list(range(value.type.rank))
            self.random.shuffle(axes)
            return self.builder.one("permute", value, axes=tuple(axes))
        if value.type.rank and value.type.shape[0] > 1 and self.random.random() < 0.2:
            stop = value.type.shape[0]
            return self.builder.one("slice", value, axis=0, start=1, stop=stop, step=1)
        if not same_size:
            return self.builder.one("neg", value)
        return self.builder.one("reshape", value, shape=self.random.choice(same_size))

    def make_norm(self) -> Value:
        value = self.pick()
        if value.type.rank == 0:
            return value
        y, _, _ = self.builder.emit(
            "layer_norm", value, None, None, name="norm", axes=1, epsilon=1e-5
        )
        return y

    def make_rotation(self) -> Value:
        value = self.pick()
        if not value.type.rank or value.type.shape[-1] % 2:
            return self.builder.one("neg", value)
        axis, extent = value.type.rank - 1, value.type.shape[-1]
        first, second = (
            self.builder.one("slice", value, axis=axis, start=start, stop=stop, step=1)
            for start, stop in ((0, extent // 2), (extent // 2, extent))
        )
        if self.random.random() < 0.5:
            negated = self.builder.one("neg", second)
            return self.builder.one("concatenate", negated, first, axis=axis)
        none, half = (0,) * (axis + 1), (0,) * axis + (extent // 2,)
        low = self.builder.one("pad", second, low=none, high=half, value=0.0)
        negated = self.builder.one("neg", first)
        high = self.builder.one("pad", negated, low=half, high=none, value=0.0)
        return self.builder.one("add", low, high)

    def make_matmul(self) -> Value:
        left = next(v for v in reversed(self.values) if v.type.rank == 2)
        width = left.type.shape[1]
        fitting = [v for v in self.values if v.type.rank == 2 and v.type.shape[0] == width]
        right = (
            self.random.choice(fitting)
            if fitting
            else self.builder.one("permute", left, axes=(1, 0))
        )
        return self.builder.one("matmul", left, right)

    def make_cast(self) -> Value:
        narrow = self.builder.one("cast", self.pick(), dtype=DType.BF16)
        return self.builder.one("cast", narrow, dtype=self.dtype)

    def make_dropout(self) -> Value:
        stream = len(self.values)
        return self.builder.one("dropout", self.pick(), self.key, probability=0.25, stream=stream)

    def make_softmax(self) -> Value:
        value = self.pick()
        axis = self.random.randrange(max(value.type.rank, 1))
        return self.builder.one("softmax", value, axis=axis)

    def make_full(self) -> Value:
        shape = self.random.choice(SHAPES)
        return self.builder.one("full", dtype=self.dtype, shape=shape, value=0.5)


def _fits(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    if len(shape) > len(other):
        return False
    tail = other[len(other) - len(shape) :]
    return all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    """A tensor for every input; integers are small, the key is large."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for port in graph.inputs:
        type = port.value.type
        if port.role is Role.KEY:
            tensors[port.value.name] = torch.tensor(0x1234_5678_9ABC)
        elif type.dtype.is_floating:
            dtype = to_torch_dtype(type.dtype)
            tensors[port.value.name] = torch.randn(type.shape, generator=generator).to(dtype)
        else:
            tensors[port.value.name] = torch.randint(
                0, 4, type.shape, generator=generator, dtype=to_torch_dtype(type.dtype)
            )
    return tensors
