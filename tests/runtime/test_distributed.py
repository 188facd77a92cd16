"""DistributedDataParallel around a step: gradients are reduced as eager's are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import rudagraph as rg
from rudagraph.errors import UsageError
from tests.runtime.ranks import meeting_point, train

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch has no gloo here"
)


def spawn(world: int, backend: str, device: str, folder: Path) -> None:
    torch.multiprocessing.spawn(
        train, (world, backend, device, meeting_point(folder)), nprocs=world
    )


def test_one_process(tmp_path: Path) -> None:
    train(0, 1, "gloo", "cpu", meeting_point(tmp_path))


@pytest.mark.full
def test_two_processes(tmp_path: Path) -> None:
    spawn(2, "gloo", "cpu", tmp_path)


@pytest.mark.cuda
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_one_process_on_a_gpu(backend: str, tmp_path: Path) -> None:
    spawn(1, backend, "cuda:0", tmp_path)


@pytest.mark.cuda
def test_two_processes_on_one_gpu(tmp_path: Path) -> None:
    spawn(2, "gloo", "cuda:0", tmp_path)


@pytest.mark.multi_gpu
def test_a_process_for_each_of_two_gpus(tmp_path: Path) -> None:
    spawn(2, "nccl", "cuda", tmp_path)


def test_a_wrapped_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    dist.init_process_group("gloo", f"file://{meeting_point(tmp_path)}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        with pytest.raises(UsageError, match=r"DistributedDataParallel.*\n.*\n.*as_module\(\)"):
            rg.StaticGraph(wrapped)
    finally:
        dist.destroy_process_group()


def test_a_step_as_a_module_is_its_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    x = torch.randn(2, 4)
    step = rg.StaticGraph(model.eval()).compile(x)
    module = step.as_module()
    assert list(module.state_dict()) == list(model.state_dict())
    assert [id(p) for p in module.parameters()] == [id(p) for p in model.parameters()]
    torch.testing.assert_close(module(x), model(x))
    assert not module.training
    assert module.train() is module and model.training and module.training
    model[0].weight = nn.Parameter(torch.zeros(4, 4))
    assert float((module.eval()(x) - model[0].bias).detach().sum()) == pytest.approx(0.0, abs=1e-5)
