"""Compares kernels with the interpreter, whatever the body: operands, tolerance, sharing."""

from __future__ import annotations

import torch

from rudagraph.ir.graph import Op, Value
from rudagraph.ir.interpret import interpret
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import DType
from tests.codegen.run import lower, run

# Room for another order of sums and an ulp of a function, per op that rounds.
BOUNDS = {DType.F16: 4e-3, DType.BF16: 3e-2, DType.F32: 1e-5, DType.F64: 1e-12}


def operands_for(op: Op, seed: int = 0) -> list[torch.Tensor]:
    """Random operands; integers are small, `weight`s near one, statistics positive."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for value in op.inputs:
        dtype = to_torch_dtype(value.type.dtype)
        shape = value.type.shape
        if value.name == "key":
            tensor = torch.tensor(0x1234_5678_9ABC_DEF0)
        elif value.type.dtype is DType.B8:
            tensor = torch.rand(shape, generator=generator) < 0.5
        elif not value.type.dtype.is_floating:
            tensor = torch.randint(0, 3, shape, generator=generator, dtype=dtype)
        elif value.name.endswith(("rstd", "weight")):
            tensor = (1 + 0.1 * torch.randn(shape, generator=generator)).to(dtype)
        else:
            tensor = torch.randn(shape, generator=generator).to(dtype)
        tensors.append(tensor)
    return tensors


def check(op: Op, *tensors: torch.Tensor, threads: int = 2, looser: float = 1.0) -> None:
    """Results equal the interpreter's, also with every pair that may share memory sharing it."""
    body = op.body
    assert body is not None
    named = {port.value.name: t for port, t in zip(body.inputs, tensors, strict=True)}
    wanted = interpret(body, named)
    references = [wanted[port.value.name] for port in body.outputs]
    results = run(op, *tensors, threads=threads)
    for value, result, reference in zip(op.results, results, references, strict=True):
        assert_near(value, result, reference, looser)
    for pairs in sharings(lower(op, *tensors).inplace):
        copies = [tensor.clone(memory_format=torch.preserve_format) for tensor in tensors]
        shared = run(op, *copies, threads=threads, shared=pairs)
        for value, result, alone in zip(op.results, shared, results, strict=True):
            assert torch.equal(bits(result), bits(alone)), (
                f"%{value.name} changes when {pairs} share"
            )


def sharings(pairs: tuple[tuple[int, int], ...]) -> list[tuple[tuple[int, int], ...]]:
    """Each pair alone, and one set of several whose operands and results are distinct."""
    alone = [(pair,) for pair in pairs]
    together: list[tuple[int, int]] = []
    for operand, result in pairs:
        if all(operand != o and result != r for o, r in together):
            together.append((operand, result))
    return [*alone, tuple(together)] if len(together) > 1 else alone


def assert_near(
    value: Value, result: torch.Tensor, wanted: torch.Tensor, looser: float = 1.0
) -> None:
    """Within the dtype's bound, relative to the largest number of the result."""
    bound = looser * BOUNDS.get(value.type.dtype, 0.0)
    finite = wanted[torch.isfinite(wanted)].double().abs()
    scale = max(float(finite.max()) if finite.numel() else 1.0, 1e-3)
    torch.testing.assert_close(
        result,
        wanted,
        rtol=bound,
        atol=bound * scale,
        equal_nan=True,
        msg=lambda text: f"%{value.name}: {value.type}: {text}",
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
