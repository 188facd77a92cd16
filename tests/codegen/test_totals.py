"""Reductions of everything: shared by blocks, on any number of threads alike; CUDA too."""

from __future__ import annotations

import pytest
import torch

from rudagraph.ir.graph import Op
from tests.codegen import cuda_run
from tests.codegen.compare import bits, check, operands_for
from tests.codegen.run import fused, lower, run

BODY = """
%x: {0}[{1}] = input operand
%double: {0}[{1}] = add(%x, %x)
%total: {0}[] = {2}(%double) [axes=[{3}], keepdim=false]
output result = %total
"""


def total(dtype: str, shape: str, opcode: str) -> Op:
    axes = ", ".join(map(str, range(shape.count(",") + 1)))
    text = BODY.format(dtype, shape, opcode, axes)
    extra = f", dtype={dtype}]" if opcode == "sum" else "]"
    return fused(text.replace("keepdim=false]", f"keepdim=false{extra}").strip())


@pytest.mark.parametrize("opcode", ["sum", "amax", "amin"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "f64"])
@pytest.mark.parametrize("shape", ["1,50001", "7,300", "3,20,11"])
def test_totals_are_the_interpreters(opcode: str, dtype: str, shape: str) -> None:
    op = total(dtype, shape, opcode)
    check(op, *operands_for(op))


@pytest.mark.parametrize("opcode", ["sum", "amax"])
def test_bits_do_not_depend_on_threads(opcode: str) -> None:
    op = total("f32", "1,300001", opcode)
    (x,) = operands_for(op)
    assert lower(op, x).calls[0].source.blocks > 3
    first = bits(run(op, x, threads=1)[0])
    for threads in (2, 3):
        assert torch.equal(bits(run(op, x, threads=threads)[0]), first)


@pytest.mark.parametrize("opcode", ["amax", "amin"])
def test_a_nan_anywhere_is_the_largest_and_the_smallest(opcode: str) -> None:
    op = total("f32", "1,50001", opcode)
    for place in (0, 1, 25_000, 50_000):
        x = torch.randn(1, 50001)
        x[0, place] = torch.nan
        assert run(op, x, threads=2)[0].isnan()


@pytest.mark.parametrize("opcode", ["sum", "amax", "amin"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_totals_on_cuda(opcode: str, dtype: str) -> None:
    op = total(dtype, "1,20000", opcode)
    (x,) = operands_for(op)
    wanted = run(op, x)[0]
    torch.testing.assert_close(cuda_run.run(op, x)[0].cpu(), wanted, rtol=2e-2, atol=1e-3)
