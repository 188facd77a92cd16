"""Peak memory counts every byte alive at once, and nothing that was there before."""

from __future__ import annotations

import torch
from torch import nn

from rudagraph.measure import peak_bytes

MEGA = 2**20


def test_peak_is_what_was_alive_at_once() -> None:
    kept = []

    def work() -> None:
        first = torch.empty(MEGA)
        second = torch.empty(2 * MEGA)
        del first
        third = torch.empty(MEGA // 2)
        del second
        kept.append(third)

    assert peak_bytes(work) == 12 * MEGA


def test_memory_from_before_does_not_count() -> None:
    old = [torch.empty(MEGA)]

    def work() -> None:
        old.clear()
        torch.empty(MEGA // 4)

    assert peak_bytes(work) == MEGA


def test_memory_from_an_earlier_measurement_does_not_count() -> None:
    """PyTorch's profiler remembers the sizes of what it saw and did not see go."""
    kept: list[torch.Tensor] = []
    peak_bytes(lambda: kept.append(torch.empty(MEGA)))

    def work() -> None:
        kept.clear()
        torch.empty(MEGA // 4)

    assert peak_bytes(work) == MEGA


def test_a_training_step_holds_its_activations_and_gradients() -> None:
    width, rows, depth = 64, 4096, 6
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    batch = torch.randn(rows, width)
    activations = depth * rows * width * 4
    gradients = sum(p.numel() * 4 for p in model.parameters())
    peak = peak_bytes(lambda: model(batch).sum().backward())
    # The gradient that travels back comes on top while the first activations are still there.
    assert activations + gradients < peak < activations + gradients + 3 * rows * width * 4
