"""As run.py, for CUDA: on the GPU where there is one, else on the PTX emulator.

The same names with the same meaning, so that a test of the CPU's generator runs for both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from rudagraph.build.cuda import compile_kernel, compile_ptx
from rudagraph.codegen.cuda import generate
from rudagraph.ir.graph import Op, Value
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import row_major_strides
from rudagraph.runtime.cuda_kernels import Launcher, load
from rudagraph.schedule.kernel import KernelSource
from rudagraph.schedule.lowered import KernelArgument, Lowered
from tests.build import ptx_emulator

TARGET = "sm_90"


def lower(op: Op, *tensors: torch.Tensor, shared: tuple[tuple[int, int], ...] = ()) -> Lowered:
    """The kernel calls of an op whose operands are laid out as the tensors are."""
    given = iter(tensors)
    strides = tuple(
        tuple(next(given).stride()) if isinstance(operand, Value) else None
        for operand in op.operands
    )
    results = tuple(row_major_strides(value.type.shape) for value in op.results)
    lowered = generate(op, strides, results, shared, target=TARGET)
    assert lowered is not None, f"no kernel for {op.opcode}"
    return lowered


@cache
def ptx_of(source: KernelSource) -> str:
    return compile_ptx(source)


@cache
def _loaded(source: KernelSource) -> Launcher:
    return load(compile_kernel(source))


@dataclass
class Runner:
    """The kernels of one op, over operands and fresh results."""

    op: Op
    tensors: Sequence[torch.Tensor]
    threads: int = 1
    shared: tuple[tuple[int, int], ...] = ()
    results: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.lowered = lower(self.op, *self.tensors, shared=self.shared)
        given = iter(_on_device(tensor, self.device) for tensor in self.tensors)
        self.operands = [
            next(given) if isinstance(operand, Value) else None for operand in self.op.operands
        ]
        sharing = {result: operand for operand, result in self.shared}
        for index, value in enumerate(self.op.results):
            operand = self.operands[sharing[index]] if index in sharing else None
            self.results.append(_garbage(value, self.device) if operand is None else operand)
        self.workspaces = [
            torch.full((size,), 0xA5, dtype=torch.uint8, device=self.device)
            for size in self.lowered.workspaces
        ]
        count = max(self.lowered.errors, 1)
        self.errors = torch.zeros((count, 2), dtype=torch.int64, device=self.device)

    def __call__(self) -> list[torch.Tensor]:
        if self.device == "cuda":
            self._launch()
        else:
            self._emulate()
        return [result.cpu() for result in self.results]

    def _launch(self) -> None:
        self._copy_operands()
        stream = torch.cuda.current_stream().cuda_stream
        for call in self.lowered.calls:
            addresses = [
                argument.index if argument.kind == "number" else self._tensor(argument).data_ptr()
                for argument in call.arguments
            ]
            block = (ctypes.c_int64 * max(len(addresses), 1))(*addresses)
            _loaded(call.source).bind(ctypes.addressof(block))(stream)
            torch.cuda.synchronize()

    def _copy_operands(self) -> None:
        """What the test has changed since the last call; not where results have taken the place."""
        given, taken = iter(self.tensors), {operand for operand, _ in self.shared}
        for index, operand in enumerate(self.op.operands):
            if isinstance(operand, Value):
                tensor = next(given)
                if index not in taken:
                    self.operands[index] = _on_device(tensor, self.device)

    def _emulate(self) -> None:
        memory = ptx_emulator.Memory()
        storages: dict[int, np.ndarray] = {}

        def address(argument: KernelArgument) -> int:
            if argument.kind == "number":
                return argument.index
            tensor = self._tensor(argument)
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            if start not in storages:
                raw = torch.empty(0, dtype=torch.uint8).set_(storage)
                storages[start] = raw.numpy()
            return memory.add(storages[start]) + tensor.data_ptr() - start

        for call in self.lowered.calls:
            source = call.source
            assert source.cuda is not None
            ptx_emulator.run(
                ptx_of(source),
                source.blocks,
                source.cuda.threads,
                [address(argument) for argument in call.arguments],
                memory,
                source.cuda.shared_bytes,
                source.cuda.cluster,
            )
        memory.copy_back()

    def _tensor(self, argument: KernelArgument) -> torch.Tensor:
        match argument.kind:
            case "operand":
                operand = self.operands[argument.index]
                assert operand is not None
                return operand
            case "result":
                return self.results[argument.index]
            case "workspace":
                return self.workspaces[argument.index]
        return self.errors[argument.index]


def _on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """There with the same strides: `to` alone packs a tensor with gaps."""
    if device == "cpu":
        return tensor
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return whole.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _garbage(value: Value, device: str) -> torch.Tensor:
    """Memory that holds no zero by chance."""
    shape = value.type.shape
    tensor = torch.empty(shape, dtype=to_torch_dtype(value.type.dtype), device=device)
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
