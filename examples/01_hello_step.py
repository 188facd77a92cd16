"""Compile a small model's training step and train with it: the shortest whole program."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import rudagraph as rg


def main(steps: int = 200) -> float:
    """Fit y = sin(3 x) and return the last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1, 64),
        nn.GELU(),
        nn.Linear(64, 64),
        nn.LayerNorm(64),
        nn.GELU(),
        nn.Linear(64, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.linspace(-2, 2, 256).unsqueeze(1)
    y = torch.sin(3 * x)

    # The example batch fixes shapes and types; nothing is executed and no state is changed.
    step = rg.StaticGraph(model, loss=F.mse_loss).compile(x, targets=(y,))

    for _ in range(steps):
        loss = step(x, targets=(y,))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss after {steps} steps: {loss.item():.5f}")
    return loss.item()


if __name__ == "__main__":
    main()
