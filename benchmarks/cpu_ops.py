"""Single operators on a CPU, forward and backward: norms, softmax, gates, GELU, dropout, loss.

`python -m benchmarks.cpu_ops [--json FILE] [--quick] [--case rms_norm-f32]`
The geometric means over all cases stand under the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.harness import Case, Workload, benchmark

ROWS, WIDTH = 4096, 1024
# None slower than this against either; the geometric means are asked to be far below.
WORST = {"eager": 1.15, "torch.compile": 1.15}


class Operator(nn.Module):
    """A function of inputs and of as many learned vectors as it takes."""

    def __init__(self, function: Callable[..., torch.Tensor], vectors: int) -> None:
        super().__init__()
        self.function = function
        self.vectors = nn.ParameterList(1 + 0.1 * torch.randn(WIDTH) for _ in range(vectors))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs, *self.vectors)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (WIDTH,), weight, 1e-5)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (WIDTH,), weight, bias, 1e-5)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def silu_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * gate


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias)


def bias_gelu_tanh(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias, approximate="tanh")


def dropout(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.1, True)


def no_dropout(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.0, True)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, target)


# name -> function, matrices it takes, learned vectors it takes
OPERATORS: dict[str, tuple[Callable[..., torch.Tensor], int, int]] = {
    "rms_norm": (rms_norm, 1, 1),
    "layer_norm": (layer_norm, 1, 2),
    "softmax": (softmax, 1, 0),
    "silu_gate": (silu_gate, 2, 0),
    "bias_gelu": (bias_gelu, 1, 1),
    "bias_gelu_tanh": (bias_gelu_tanh, 1, 1),
    "dropout": (dropout, 1, 0),
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def operator(
    function: Callable[..., torch.Tensor], matrices: int, vectors: int, dtype: torch.dtype
) -> Workload:
    torch.manual_seed(0)
    module = Operator(function, vectors).to(dtype)
    inputs = (torch.randn(ROWS, WIDTH).to(dtype).requires_grad_() for _ in range(matrices))
    return Workload(module, tuple(inputs))


def loss(dtype: torch.dtype, rows: int, classes: int) -> Workload:
    torch.manual_seed(0)
    logits = torch.randn(rows, classes).to(dtype).requires_grad_()
    return Workload(Operator(cross_entropy, 0), (logits, torch.randint(classes, (rows,))))


def cases_of(suffix: str, dtype: torch.dtype) -> list[Case]:
    slack = 1e-5 if dtype == torch.float32 else 8e-3
    builds: dict[str, Callable[[], Workload]] = {
        name: partial(operator, function, matrices, vectors, dtype)
        for name, (function, matrices, vectors) in OPERATORS.items()
    }
    builds["cross_entropy_4096"] = partial(loss, dtype, 1024, 4096)
    builds["cross_entropy_32000"] = partial(loss, dtype, 512, 32000)
    without = Case("no_dropout", partial(operator, no_dropout, 1, 0, dtype))
    checks = {"dropout": without}
    return [
        Case(f"{name}-{suffix}", build, check=checks.get(name), slack=slack, targets=WORST)
        for name, build in builds.items()
    ]


CASES = [case for suffix, dtype in DTYPES.items() for case in cases_of(suffix, dtype)]
MEANS = {"eager": 0.45, "torch.compile": 0.65}

if __name__ == "__main__":
    sys.exit(benchmark("cpu_ops", CASES, means=MEANS))
