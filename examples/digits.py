"""Classify handwritten digits with a compiled step: BatchNorm, dropout, three signatures.

One step serves full batches, the smaller last batch, and evaluation; each is added by an example.

    python examples/digits.py --epochs 12
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
import typer
from rich.console import Console
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

import rudagraph as rg


def build_model(width: int = 32) -> nn.Module:
    """Two convolutions with BatchNorm on 8 x 8 pixels, then two layers with dropout."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(2 * width * 16, 4 * width),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(4 * width, 10),
    )


def load_data(seed: int) -> list[torch.Tensor]:
    """Training images, test images, training labels, test labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(
        torch.arange(len(labels)).numpy(), test_size=0.2, random_state=seed, stratify=labels
    )
    return [images[train], images[test], labels[train], labels[test]]


def shuffled(count: int, batch: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Indices of the batches of one epoch; the last one holds what is left over."""
    yield from torch.randperm(count, generator=generator).split(batch)


def main(
    epochs: Annotated[int, typer.Option(help="passes over the training images")] = 12,
    batch: Annotated[int, typer.Option(help="images a step")] = 64,
    seed: Annotated[int, typer.Option(help="of weights, batches and dropout")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    compiled: Annotated[bool, typer.Option(help="--no-compiled trains in eager")] = True,
) -> float:
    """Train and return the share of test images that are classified correctly."""
    console = Console()
    torch.manual_seed(seed)
    images, test_images, labels, test_labels = (part.to(device) for part in load_data(seed))
    model = build_model().to(device)

    step = model
    if compiled:
        step = rg.StaticGraph(model).compile(images[:batch])
        if left_over := len(images) % batch:
            step.add(images[:left_over])
        model.eval()
        step.add(test_images)
        model.train()

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(seed)
    accuracy = 0.0
    for epoch in range(epochs):
        total = 0.0
        for indices in shuffled(len(images), batch, generator):
            chosen = indices.to(device)
            loss = F.cross_entropy(step(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(chosen)
        model.eval()
        with torch.no_grad():
            accuracy = (step(test_images).argmax(1) == test_labels).float().mean().item()
        model.train()
        console.print(
            f"epoch {epoch + 1:2}  loss {total / len(images):.4f}  test accuracy {accuracy:.2%}"
        )
    return accuracy


if __name__ == "__main__":
    typer.run(main)
