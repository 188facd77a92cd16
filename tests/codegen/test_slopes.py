"""GELU's slope beside GELU: made in the pass that has it, and the numbers of the derivative."""

from __future__ import annotations

import pytest
import torch

from rudagraph.ir.graph import Op
from tests.codegen.compare import bits, check, operands_for
from tests.codegen.run import fused, lower, run

# GELU feeds a row reduction, its derivative waits for it.
BODY = """
%x: {0}[40,96] = input operand
%gradient: {0}[40,96] = input operand
%y: {0}[40,96] = gelu(%x) [approximate="{1}"]
%wide: {2}[40,96] = cast(%y) [dtype={2}]
%mean: {2}[40,1] = mean(%wide) [axes=[1], keepdim=true]
%mean.small: {0}[40,1] = cast(%mean) [dtype={0}]
%late: {0}[40,96] = add(%gradient, %mean.small)
%dx: {0}[40,96] = gelu_backward(%late, {3}) [approximate="{1}"]
output result = %dx
"""


def derivative(dtype: str, approximate: str = "none", of: str = "%x") -> Op:
    wide = "f64" if dtype == "f64" else "f32"
    return fused(BODY.format(dtype, approximate, wide, of).strip())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_slope_is_made_beside_the_function(dtype: str, approximate: str) -> None:
    op = derivative(dtype, approximate)
    operands = operands_for(op)
    text = lower(op, *operands).calls[0].source.text.split('"""')[2]
    form = "erf" if approximate == "none" else "tanh"
    first, *others = text.split("for j in ")[1:]
    assert f"gelu_{form}(" in first and f"gelu_{form}_slope(" in first
    assert others and not any("gelu" in other for other in others)
    check(op, *operands)


def test_slope_gives_the_bits_of_the_derivative() -> None:
    """A body without the function calls the derivative itself."""
    op = derivative("f32")
    x, gradient = operands_for(op)
    mean = torch.zeros(40, 1)
    lines = [line for line in BODY.format("f32", "none", "f32", "%x").splitlines() if line]
    plain = [line for line in lines if not line.startswith(("%y", "%wide", "%mean:"))]
    plain.insert(2, "%mean: f32[40,1] = input operand")
    with_slope = [line.replace("mean(%wide)", "mean(%zero)") for line in lines]
    with_slope.insert(4, "%zero: f32[40,96] = mul(%wide, 0)")
    one = run(fused("\n".join(with_slope)), x, gradient)[0]
    other_op = fused("\n".join(plain))
    assert "gelu_erf_backward" in lower(other_op, x, gradient, mean).calls[0].source.text
    other = run(other_op, x, gradient, mean)[0]
    finite = torch.isfinite(x) & torch.isfinite(gradient)
    assert torch.equal(bits(one[finite]), bits(other[finite]))


def test_another_operand_keeps_its_derivative() -> None:
    op = derivative("f32", of="%gradient")
    assert "gelu_erf_backward" in lower(op, *operands_for(op)).calls[0].source.text
    check(op, *operands_for(op))
