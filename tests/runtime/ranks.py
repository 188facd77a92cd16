"""What each process of a distributed test does: the same steps as eager's DistributedDataParallel.

Importable by name, because the processes are spawned.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rudagraph as rg

Tensor = torch.Tensor


class Net(nn.Module):
    """Products, a norm, a buffer that forward changes, and a part that one flag leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU())
        self.head = nn.Linear(32, 8)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.body(x)), y)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def train(rank: int, world: int, backend: str, device: str, meeting: str) -> None:
    """Steps with a reduction each, and one pair of which only the second reduces.

    A device without a number is one for each process.
    """
    place = torch.device("cuda", rank) if device == "cuda" else torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(backend, f"file://{meeting}", rank=rank, world_size=world)
    try:
        for bucket_view in (False, True):
            _train(rank, place, bucket_view)
    finally:
        dist.destroy_process_group()


def _train(rank: int, place: torch.device, bucket_view: bool) -> None:
    torch.manual_seed(0)
    model = Net().to(place)
    other = copy.deepcopy(model)
    torch.manual_seed(1 + rank)  # each process has batches of its own
    batches = [
        (torch.randn(12, 16, device=place), torch.randn(12, 8, device=place)) for _ in range(6)
    ]
    step = rg.StaticGraph(model).compile(*batches[0])
    settings = {"find_unused_parameters": True, "gradient_as_bucket_view": bucket_view}
    runs = [
        (DistributedDataParallel(step.as_module(), **settings), model),
        (DistributedDataParallel(other, **settings), other),
    ]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for _, module in runs]
    for turn, (x, y) in enumerate(batches):
        found = []
        for (wrapped, module), optimizer in zip(runs, optimizers, strict=True):
            with wrapped.no_sync() if turn == 2 else nullcontext():
                loss = wrapped(x, y)
                loss.backward()
            norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            found.append((loss.detach(), norm, gradients(module), dict(module.named_buffers())))
            if turn != 2:
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
        if turn != 2:
            _same_everywhere(found[0][2])


def _same_everywhere(values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        total = value.clone()
        dist.all_reduce(total)
        torch.testing.assert_close(total / dist.get_world_size(), value, msg=name)


def meeting_point(folder: Path) -> str:
    """A file by which the processes of one test find each other."""
    return str(folder / "meeting")
