"""Golden files of generated CPU kernels: what people read, and what a refactor must not change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rudagraph.codegen.source import CPU_PREAMBLE
from rudagraph.ir.graph import Op
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import DType
from rudagraph.schedule.lowered import Lowered
from tests.codegen import bodies
from tests.codegen.run import fused, lower
from tests.codegen.test_embedding import gather, scatter

CASES = {
    "residual_layer_norm": ("residual_layer_norm", "bf16", 64, 256),
    "layer_norm_backward": ("layer_norm_backward", "f32", 2048, 768),
    "rms_norm": ("rms_norm", "bf16", 8192, 2048),
    "softmax": ("softmax", "f32", 128, 512),
    "softmax_of_many_classes": ("softmax", "f32", 16, 200_000),
    "silu_mul": ("silu_mul", "bf16", 1024, 2816),
    "bias_gelu_backward": ("bias_gelu_backward", "f32", 512, 3072),
    "dropout": ("dropout", "f32", 100, 1000),
    "cross_entropy": ("cross_entropy", "bf16", 256, 32000),
    "block_backward": ("block_backward", "bf16", 4096, 1024),
}


def shown(lowered: Lowered) -> str:
    """The calls as text, without the import that all share."""
    parts = []
    for call in lowered.calls:
        source = call.source
        pointers = ", ".join(
            f"{name}={argument.kind} {argument.index}"
            for name, argument in zip(source.parameters, call.arguments, strict=True)
        )
        parts.append(f"# {source.extent} rows in {source.blocks} blocks; {pointers}")
        parts.append(source.text.removeprefix(CPU_PREAMBLE).strip("\n") + "\n")
    parts.append(f"# workspaces {list(lowered.workspaces)}, in place {list(lowered.inplace)}")
    return "\n".join(parts)


def empty_operands(op: Op) -> list[torch.Tensor]:
    return [
        torch.empty(value.type.shape, dtype=to_torch_dtype(value.type.dtype), device="meta")
        for value in op.inputs
    ]


@pytest.mark.parametrize("name", CASES)
def test_layers(name: str, golden: Callable[[str, str], None]) -> None:
    body, dtype, rows, length = CASES[name]
    op = fused(getattr(bodies, body)(dtype, rows, length))
    golden(shown(lower(op, *empty_operands(op))), f"{name}.cpu.py")


def test_strided_operands(golden: Callable[[str, str], None]) -> None:
    op = fused("""
%x: f32[2,12,64,32] = input operand
%mask: b8[2,1,64,32] = input operand
%y: f32[2,12,64,32] = where(%mask, %x, 0)
output result = %y
""")
    x = torch.empty(2, 64, 12, 32, device="meta").transpose(1, 2)
    mask = torch.empty(2, 1, 64, 32, dtype=torch.bool, device="meta")
    golden(shown(lower(op, x, mask)), "strided.cpu.py")


def test_an_operand_and_a_result_in_one_memory(golden: Callable[[str, str], None]) -> None:
    op = fused(bodies.silu_mul("f32", 8, 100))
    lowered = lower(op, *empty_operands(op), shared=((1, 0),))
    golden(shown(lowered), "shared.cpu.py")


def test_embedding(golden: Callable[[str, str], None]) -> None:
    ids = torch.empty(6, 50, dtype=torch.int64, device="meta")
    op = gather(DType.BF16)
    weight = torch.empty(op.inputs[0].type.shape, device="meta")
    golden(shown(lower(op, weight, ids)), "embedding.cpu.py")
    back = scatter(DType.BF16, padding_index=0)
    gradient = torch.empty(back.inputs[0].type.shape, device="meta")
    golden(shown(lower(back, gradient, ids)), "embedding_backward.cpu.py")
