"""Read what a compiled step is made of: its graphs, its kernels, its memory."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import rudagraph as rg


class Gate(nn.Module):
    """A norm and a gated unit on a residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    step = rg.StaticGraph(Gate(64)).compile(x)

    print("---- forward and backward as captured")
    print(step.ir("forward", stage="capture"))
    print("---- forward as it runs")
    print(step.ir("forward"))
    print("---- backward as it runs")
    print(step.ir("backward"))
    print("---- what it does and why")
    print(step.explain())
    print("---- memory, known before anything has run")
    print(step.memory)


if __name__ == "__main__":
    main()
