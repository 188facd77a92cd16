"""Replayed steps: nothing that the caller holds changes, whatever moves is found, eager's values.

The same program of calls runs on the model itself and on the step; every value has to agree.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rudagraph as rg
from rudagraph.runtime.cuda_graph import SMALL, Graphs
from rudagraph.runtime.step import Step

pytestmark = pytest.mark.cuda

Tensor = torch.Tensor


class Net(nn.Module):
    """A loss and large features, a buffer that forward changes, a product saved for backward."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.second = nn.Linear(width, width, bias=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        features = self.second(F.gelu(self.norm(self.first(x))))
        return F.mse_loss(features, y), features


def made(width: int = 64, rows: int = 32) -> tuple[Net, Step, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    model = Net(width).cuda()
    batches = [
        (torch.randn(rows, width, device="cuda"), torch.randn(rows, width, device="cuda"))
        for _ in range(6)
    ]
    return model, rg.StaticGraph(model).compile(*batches[0]), batches


def graphs_of(step: Step) -> list[Graphs]:
    frames = step._signatures[0].executor._frames.values()
    return [frame.graphs for frame in frames]


def assert_close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def reference(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def test_the_second_call_is_captured_and_all_agree_with_eager() -> None:
    model, step, batches = made()
    other = reference(model)
    for x, y in batches:
        model.zero_grad()
        other.zero_grad()
        loss, features = step(x, y)
        loss.backward()
        want, want_features = other(x, y)
        want.backward()
        assert_close(loss, want)
        assert_close(features, want_features)
        assert_close(gradients(model), gradients(other))
    (graphs,) = graphs_of(step)
    assert not graphs.refused
    assert len(graphs.pairs) == 1 and graphs.pairs[0].backward is not None
    assert graphs.spare_uses == 0
    assert int(model.calls) == int(other.calls) == len(batches)


def test_what_the_caller_holds_is_never_overwritten() -> None:
    model, step, batches = made(512, 1024)  # features are larger than what is copied
    assert SMALL < 4 * 512 * 1024
    held: list[tuple[Tensor, Tensor]] = []
    kept: list[tuple[Tensor, Tensor]] = []
    for x, y in batches:
        model.zero_grad()
        loss, features = step(x, y)
        loss.backward()
        kept += [(features, loss), *((p.grad, p.grad) for p in model.parameters())]
        held += [(a.detach().clone(), b.detach().clone()) for a, b in kept[len(held) :]]
    for (a, b), (was_a, was_b) in zip(kept, held, strict=True):
        assert torch.equal(a, was_a) and torch.equal(b, was_b)
    (graphs,) = graphs_of(step)
    assert graphs.spare_uses > 0


def test_a_list_of_losses_holds_nothing() -> None:
    model, step, batches = made()
    losses = []
    for _ in range(3):
        for x, y in batches:
            model.zero_grad()
            losses.append(step(x, y)[0])
            losses[-1].backward()
    assert graphs_of(step)[0].spare_uses == 0
    assert_close(losses[:6], losses[6:12])


def test_gradients_accumulate() -> None:
    model, step, batches = made()
    other = reference(model)
    for _ in range(3):
        model.zero_grad()
        other.zero_grad()
        for x, y in batches:
            step(x, y)[0].backward()
            other(x, y)[0].backward()
        assert_close(gradients(model), gradients(other))
    assert len(graphs_of(step)[0].pairs) == 2


def test_zero_grad_between_forward_and_backward_needs_one_pair() -> None:
    model, step, batches = made()
    for x, y in batches:
        loss = step(x, y)[0]
        model.zero_grad()
        loss.backward()
    (graphs,) = graphs_of(step)
    assert len(graphs.pairs) == 1


def test_moved_and_exchanged_parameters_are_followed() -> None:
    model, step, batches = made()
    other = reference(model)
    for turn, (x, y) in enumerate(batches):
        if turn == 3:
            for module in (model, other):
                module.first.weight.data = module.first.weight.data * 2
        if turn == 4:
            for module in (model, other):
                torch.manual_seed(5)
                module.second.weight = nn.Parameter(torch.randn(64, 64, device="cuda"))
        model.zero_grad()
        other.zero_grad()
        got, want = step(x, y)[0], other(x, y)[0]
        got.backward()
        want.backward()
        assert_close(got, want)
        assert_close(gradients(model), gradients(other))


def test_large_arguments_may_come_from_anywhere() -> None:
    model, step, batches = made(512, 1024)
    other = reference(model)
    for turn in range(8):
        x, y = batches[0] if turn < 4 else batches[turn - 3]
        if turn == 6:
            x = x.t().contiguous().t()
        model.zero_grad()
        other.zero_grad()
        got, want = step(x, y), other(x, y)
        (got[0] + got[1].sum()).backward()
        (want[0] + want[1].sum()).backward()
        assert_close(got[0], want[0])
        torch.testing.assert_close(gradients(model), gradients(other), rtol=1e-3, atol=1e-3)


def test_a_large_argument_that_lies_otherwise_at_last_is_not_missed() -> None:
    model, step, batches = made(512, 1024)
    other = reference(model)
    x, y = batches[0]
    strided = batches[1][0].t().contiguous().t()
    for turn in range(5):
        got, want = step(x, y)[0], other(x, y)[0]
        got.backward()
        assert_close(got, want)
        model.zero_grad()
        if turn == 3:
            x = strided  # replayed graphs read the one that lay there until now


def test_upstream_gradients_of_every_output() -> None:
    model, step, batches = made()
    other = reference(model)
    for turn, (x, y) in enumerate(batches):
        model.zero_grad()
        other.zero_grad()
        got, want = step(x, y), other(x, y)
        if turn % 2:
            got[1].sin().sum().backward()
            want[1].sin().sum().backward()
        else:
            (3 * got[0]).backward()
            (3 * want[0]).backward()
        assert_close(gradients(model), gradients(other))


def test_no_grad_and_retained_graphs_in_between() -> None:
    model, step, batches = made()
    other = reference(model)
    for x, y in batches:
        model.zero_grad()
        other.zero_grad()
        with torch.no_grad():
            quiet = step(x, y)[1]
        loss = step(x, y)[0]
        with torch.no_grad():
            assert_close(step(x, y)[1], quiet)
        loss.backward(retain_graph=True)
        loss.backward()
        other(x, y)[0].backward()
        want = [2 * gradient for gradient in gradients(other)]
        assert_close(gradients(model), want)


@pytest.mark.parametrize("retained", [False, True])
def test_a_frame_holds_nothing_of_a_replayed_call(retained: bool) -> None:
    model, step, batches = made()
    executor = step._signatures[0].executor
    for x, y in batches:
        model.zero_grad()
        step(x, y)[0].backward(retain_graph=retained)
    (frame,) = executor._frames.values()
    assert [slot for slot in executor.wiring.dynamic_slots if frame.tensors[slot] is not None] == []


def test_two_forwards_in_flight() -> None:
    torch.manual_seed(0)
    model = Net().cuda()
    x, y = torch.randn(2, 32, 64, device="cuda")
    step = rg.StaticGraph(model, in_flight=2).compile(x, y)
    other = reference(model)
    for turn in range(4):
        model.zero_grad()
        other.zero_grad()
        first, second = step(x, y)[0], step(y, x)[0]
        (first if turn % 2 else second).backward()
        (second if turn % 2 else first).backward()
        other(x, y)[0].backward()
        other(y, x)[0].backward()
        assert_close(gradients(model), gradients(other))


def test_other_streams_and_threads() -> None:
    model, step, batches = made()
    other = reference(model)
    x, y = batches[0]
    want = other(x, y)[0].detach()
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for turn in range(9):
        with torch.cuda.stream(streams[turn % 3]):
            loss = step(x, y)[0]
            loss.backward()
            model.zero_grad()
            assert_close(loss.detach(), want)
    torch.cuda.synchronize()
    found: list[Any] = []

    def work() -> None:
        for _ in range(5):
            with torch.no_grad():
                found.append(step(x, y)[0])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    for loss in found:
        assert_close(loss, want)


def test_two_steps_and_a_grown_one_share_nothing() -> None:
    model, step, batches = made()
    x, y = batches[0]
    small = (x[:8].clone(), y[:8].clone())
    step.add(*small)
    second_model, second, _ = made()
    for _ in range(4):
        for arguments in ((x, y), small):
            for chosen, module in ((step, model), (second, second_model)):
                if chosen is second and arguments is small:
                    continue
                module.zero_grad()
                other = reference(module)
                got, want = chosen(*arguments)[0], other(*arguments)[0]
                got.backward()
                want.backward()
                assert_close(got, want)
                assert_close(gradients(module), gradients(other))


def test_scaler_and_clipping() -> None:
    model, step, batches = made()
    other = reference(model)
    runs = []
    for module, call in ((model, step), (other, other)):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            loss = call(x, y)[0]
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.detach()))
        runs.append(losses)
    assert_close(torch.tensor(runs[0]), torch.tensor(runs[1]))


def test_peak_memory_is_what_the_plan_says() -> None:
    model, step, batches = made(1024, 4096)
    x, y = batches[0]
    before = torch.cuda.memory_allocated()
    for turn in range(4):
        model.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step(x, y)[0].backward()
        peak = torch.cuda.max_memory_allocated() - before
        slack = 80 << 20  # workspaces of cuBLAS, for two streams
        assert peak <= 1.05 * step.memory.peak_bytes + slack, (turn, peak, step.memory.peak_bytes)
