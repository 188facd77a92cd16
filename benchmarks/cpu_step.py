"""Whole training steps on a CPU: a Llama-shaped model, and a fused block without products.

`python -m benchmarks.cpu_step [--json FILE] [--quick] [--case llama]`
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.harness import Case, Workload, benchmark


class Block(nn.Module):
    """residual + LayerNorm, bias + GELU, dropout, residual + RMSNorm, softmax cross-entropy."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(0.1 * torch.randn(width))
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        stream = hidden + residual
        branch = F.gelu(self.norm(stream) + self.bias)
        stream = F.dropout(branch, self.dropout, self.training) + stream
        return F.cross_entropy(F.rms_norm(stream, self.scale.shape, self.scale, 1e-5), target)


def block(dropout: float, dtype: torch.dtype, rows: int = 4096, width: int = 1024) -> Workload:
    torch.manual_seed(0)
    module = Block(width, dropout).to(dtype)
    hidden, residual = (torch.randn(rows, width).to(dtype).requires_grad_() for _ in range(2))
    return Workload(module, (hidden, residual, torch.randint(width, (rows,))))


def llama(layers: int = 6) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
        attn_implementation="sdpa",
    )
    tokens = torch.randint(4096, (4, 256))
    return Workload(LlamaForCausalLM(config), kwargs={"input_ids": tokens, "labels": tokens})


def block_case(name: str, dropout: float, dtype: torch.dtype, targets: dict[str, float]) -> Case:
    without = Case(name, lambda: block(0.0, dtype))
    return Case(
        name,
        lambda: block(dropout, dtype),
        check=without if dropout else None,
        slack=1e-4 if dtype == torch.float32 else 8e-3,
        targets=targets,
    )


CASES = [
    Case(
        "llama",
        llama,
        options={"outputs": "loss"},
        targets={"eager": 0.90, "torch.compile": 1.00},
        peak_targets={"eager": 0.60},
    ),
    block_case("block", 0.1, torch.float32, {"eager": 0.13, "torch.compile": 0.15}),
    block_case("block-bf16", 0.1, torch.bfloat16, {"eager": 0.13, "torch.compile": 0.15}),
    block_case("block-no-dropout", 0.0, torch.float32, {"torch.compile": 0.30}),
    block_case("block-bf16-no-dropout", 0.0, torch.bfloat16, {"torch.compile": 0.30}),
]

if __name__ == "__main__":
    sys.exit(benchmark("cpu_step", CASES))
