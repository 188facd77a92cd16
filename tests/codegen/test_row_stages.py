"""Which pass over a row computes what: dear functions, and the sums that follow them."""

from __future__ import annotations

import pytest

from rudagraph.ir.graph import Op
from tests.codegen.compare import check, operands_for
from tests.codegen.run import fused, lower

BODY = """
%x: f32[48,512] = input operand
%weight: f32[512] = input operand
%y: f32[48,512] = FUNCTION
%z: f32[48,512] = add(%y, %x)
%square: f32[48,512] = mul(%z, %z)
%mean: f32[48,1] = mean(%square) [axes=[1], keepdim=true]
%scaled: f32[48,512] = mul(%z, %mean)
output result = %scaled
"""


def passes(op: Op) -> list[str]:
    """The text of each loop over a row's elements."""
    text = lower(op, *operands_for(op)).calls[0].source.text.split('"""')[2]
    return text.split("for j in ")[1:]


def test_sum_waits_for_the_pass_after_gelu() -> None:
    op = fused(BODY.replace("FUNCTION", "gelu(%x)").strip())
    first, second, _ = passes(op)
    assert "gelu_erf" in first and "accumulate_add" not in first
    assert "store_f32(kept_z, j, z)" in first  # the one value that the sum is made of
    assert "kept_square" not in first
    assert "mul(z, z)" in second and "accumulate_add" in second
    check(op, *operands_for(op))


@pytest.mark.parametrize("function", ["exp(%x)", "mul(%x, %weight)"])
def test_sum_stays_beside_cheaper_functions(function: str) -> None:
    op = fused(BODY.replace("FUNCTION", function).strip())
    first = passes(op)[0]
    assert function.split("(")[0] in first and "accumulate_add" in first
    check(op, *operands_for(op))


def test_sum_of_several_values_begins_itself() -> None:
    body = BODY.replace("FUNCTION", "gelu(%x)").replace("mul(%z, %z)", "mul(%z, %weight)")
    op = fused(body.strip())
    first, second, _ = passes(op)
    assert "square = mul(z, weight)" in first and "accumulate_add" not in first
    assert "accumulate_add" in second
    check(op, *operands_for(op))
