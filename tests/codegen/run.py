"""Lower, build, load and run one op on torch tensors; what code generation tests and timings share.

`run(op, x, w)` gives the results as new tensors; `Runner` keeps the loaded kernels for timing.
Operands may have any strides; their storage is read where it lies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rudagraph.build.cpu import compile_kernel
from rudagraph.codegen.cpu import generate
from rudagraph.ir.graph import Graph, Op, Role, Value
from rudagraph.ir.infer import infer
from rudagraph.ir.text import parse_graph
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import row_major_strides
from rudagraph.runtime.cpu_kernels import Launcher, load
from rudagraph.schedule.kernel import KernelSource
from rudagraph.schedule.lowered import KernelArgument, Lowered

_LOADED: dict[str, Launcher] = {}


def fused(text: str) -> Op:
    """A fused op from the lines of its body, in IR text without the enclosing braces."""
    return fused_op(parse_graph("graph body {\n" + text + "\n}"))


def fused_op(body: Graph) -> Op:
    """A fused op around a body; operands have the names of its inputs."""
    operands = tuple(port.value for port in body.inputs)
    types = infer("fused", operands, {"kind": "rows"}, body)
    results = tuple(
        Value(f"out{index}.{port.value.name}", type)
        for index, (port, type) in enumerate(zip(body.outputs, types, strict=True))
    )
    assert all(port.role is Role.OPERAND for port in body.inputs)
    return Op("fused", operands, results, (("kind", "rows"),), body=body)


def lower(op: Op, *tensors: torch.Tensor, shared: tuple[tuple[int, int], ...] = ()) -> Lowered:
    """The kernel calls of an op whose operands are laid out as the tensors are."""
    given = iter(tensors)
    strides = tuple(
        tuple(next(given).stride()) if isinstance(operand, Value) else None
        for operand in op.operands
    )
    results = tuple(row_major_strides(value.type.shape) for value in op.results)
    lowered = generate(op, strides, results, shared)
    assert lowered is not None, f"no kernel for {op.opcode}"
    return lowered


@dataclass
class Runner:
    """The loaded kernels of one op, bound to operands and fresh results."""

    op: Op
    tensors: Sequence[torch.Tensor]
    threads: int = 1
    shared: tuple[tuple[int, int], ...] = ()
    results: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lowered = lower(self.op, *self.tensors, shared=self.shared)
        given = iter(self.tensors)
        self.operands = [
            next(given) if isinstance(operand, Value) else None for operand in self.op.operands
        ]
        sharing = {result: operand for operand, result in self.shared}
        for index, value in enumerate(self.op.results):
            operand = self.operands[sharing[index]] if index in sharing else None
            result = _garbage(value) if operand is None else operand
            self.results.append(result)
        self.workspaces = [
            torch.full((size + 64,), 0xA5, dtype=torch.uint8) for size in self.lowered.workspaces
        ]
        self.errors = torch.zeros((max(self.lowered.errors, 1), 2), dtype=torch.int64)
        self.launches = [self._launch(call.source, call.arguments) for call in self.lowered.calls]

    def _launch(
        self, source: KernelSource, arguments: tuple[KernelArgument, ...]
    ) -> tuple[Launcher, ctypes.Array]:
        addresses = [self._address(argument) for argument in arguments]
        return _load(source), (ctypes.c_int64 * max(len(addresses), 1))(*addresses)

    def _address(self, argument: KernelArgument) -> int:
        match argument.kind:
            case "number":
                return argument.index
            case "operand":
                return self.operands[argument.index].data_ptr()
            case "result":
                return self.results[argument.index].data_ptr()
            case "workspace":
                return -(-self.workspaces[argument.index].data_ptr() // 64) * 64
        return self.errors[argument.index].data_ptr()

    def __call__(self) -> list[torch.Tensor]:
        for launcher, block in self.launches:
            launcher(ctypes.addressof(block), self.threads)
        return self.results


def _load(source: KernelSource) -> Launcher:
    if source.name not in _LOADED:
        _LOADED[source.name] = load(compile_kernel(source))
    return _LOADED[source.name]


def _garbage(value: Value) -> torch.Tensor:
    """Memory that holds no zero by chance."""
    tensor = torch.empty(value.type.shape, dtype=to_torch_dtype(value.type.dtype))
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).fill_(1 if tensor.dtype is torch.bool else 0xA5)
    return tensor


def run(
    op: Op,
    *tensors: torch.Tensor,
    threads: int = 1,
    shared: tuple[tuple[int, int], ...] = (),
) -> list[torch.Tensor]:
    """The results of one op."""
    return Runner(op, tensors, threads, shared)()
