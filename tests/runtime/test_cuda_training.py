"""Training loops around replayed steps on a GPU, as people write them, against eager."""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rudagraph as rg
from tests.models import build_model

pytestmark = pytest.mark.cuda

Tensor = torch.Tensor


class Attention(nn.Module):
    """Attention allocates its results itself: memory that graphs share if nobody takes care."""

    def __init__(self, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.head = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            q, k, v = layer(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.mse_loss(self.head(x), y), x


def made(
    width: int = 128, tokens: int = 64, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, nn.Module, rg.runtime.step.Step, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    model = Attention(width).to("cuda", dtype)
    batches = [
        tuple(torch.randn(2, 8, tokens, width, device="cuda", dtype=dtype)) for _ in range(8)
    ]
    return model, copy.deepcopy(model), rg.StaticGraph(model).compile(*batches[0]), batches


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


# ---- gradients that are held


@pytest.mark.parametrize("every", [1, 2, 4])
def test_sums_over_batches_with_library_ops(every: int) -> None:
    model, other, step, batches = made(256, 256)
    for turn, (x, y) in enumerate(batches * 2):
        if turn % every == 0:
            model.zero_grad()
            other.zero_grad()
        step(x, y)[0].backward()
        other(x, y)[0].backward()
        assert_close(gradients(model), gradients(other))


def test_gradients_are_whole_while_the_next_forward_runs() -> None:
    model, other, step, batches = made(256, 256)
    for x, y in batches:
        before = gradients(model)
        loss = step(x, y)[0]
        for now, was in zip(gradients(model), before, strict=True):
            assert torch.equal(now, was)
        model.zero_grad()
        other.zero_grad()
        loss.backward()
        other(x, y)[0].backward()
        assert_close(gradients(model), gradients(other))


def test_results_and_gradients_of_signatures_in_turn() -> None:
    model, other, step, batches = made(256, 256)
    smaller = [(x[:3].clone(), y[:3].clone()) for x, y in batches]
    step.add(*smaller[0])
    held: list[tuple[Tensor, Tensor]] = []
    for turn in range(12):
        x, y = (batches if turn % 3 else smaller)[turn % 8]
        if turn % 4 == 0:
            model.zero_grad()
            other.zero_grad()
        loss, features = step(x, y)
        want, expected = other(x, y)
        loss.backward()
        want.backward()
        held.append((features.detach(), expected.detach()))
        assert_close(gradients(model), gradients(other))
        for got, wanted in held[-3:]:
            assert_close(got, wanted)


def test_another_stream_reads_gradients_before_the_next_call() -> None:
    model, other, step, batches = made(256, 256)
    side = torch.cuda.Stream()
    copies: list[list[Tensor]] = []
    wanted: list[list[Tensor]] = []
    for x, y in batches:
        step(x, y)[0].backward()
        other(x, y)[0].backward()
        wanted.append(gradients(other))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = [p.grad for p in model.parameters()]
            copies.append([torch.empty(g.shape, pin_memory=True) for g in found])
            for copied, gradient in zip(copies[-1], found, strict=True):
                copied.copy_(gradient, non_blocking=True)
                gradient.record_stream(side)
        del found, gradient
        # A replay writes its memory again without asking an allocator: say that it has to wait.
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad()
        other.zero_grad()
    torch.cuda.synchronize()
    for copied, want in zip(copies, wanted, strict=True):
        assert_close(copied, [gradient.cpu() for gradient in want])


# ---- what is around a step


def test_pinned_batches_copied_without_blocking() -> None:
    model, other, step, batches = made()
    data = TensorDataset(*(torch.cat([batch[i].cpu() for batch in batches]) for i in range(2)))
    loader = DataLoader(data, batch_size=8, pin_memory=True, num_workers=0)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, other)]
    for _ in range(2):
        for pinned in loader:
            assert pinned[0].is_pinned()
            losses = []
            for call, optimizer in zip((step, other), optimizers, strict=True):
                x, y = (tensor.to("cuda", non_blocking=True) for tensor in pinned)
                optimizer.zero_grad()
                loss = call(x, y)[0]
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            assert_close(losses[0], losses[1])


def test_hooks_see_every_gradient() -> None:
    model, other, step, batches = made()
    seen: list[list[Any]] = [[], []]
    for module, found in ((model, seen[0]), (other, seen[1])):
        first, *rest = module.parameters()
        first.register_hook(lambda gradient: 3 * gradient)
        for parameter in rest:
            parameter.register_post_accumulate_grad_hook(
                lambda p, found=found: found.append(p.grad.clone())
            )
    for x, y in batches:
        for module, call in ((model, step), (other, other)):
            module.zero_grad()
            loss, features = call(x, y)
            loss.register_hook(lambda gradient: 2 * gradient)
            (loss + features.square().mean()).backward()
        assert_close(gradients(model), gradients(other))
    count = len(list(model.parameters())) - 1
    assert len(seen[0]) == len(seen[1]) == count * len(batches)
    norms = [sorted(float(g.norm()) for g in found) for found in seen]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


def test_a_scaler_that_meets_infinity_skips_the_step() -> None:
    model, _, step, batches = made(dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14, growth_interval=1000)
    master = [p.detach().clone() for p in model.parameters()]
    skipped = 0
    for turn, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        loss = step(x * (1e4 if turn == 5 else 1), y)[0].float()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        for parameter in model.parameters():  # the scaler refuses to unscale gradients in f16
            parameter.grad = parameter.grad / 1
        found = not all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
        if found:
            scaler.update(before / 2)
            skipped += 1
        else:
            for parameter in model.parameters():
                parameter.grad /= before
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert skipped >= 1
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert any(not torch.equal(p, m) for p, m in zip(model.parameters(), master, strict=True))


# ---- streams and threads


def in_threads(work: Callable[[int], None], count: int) -> None:
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_train_steps_of_their_own_on_streams_of_their_own() -> None:
    sets = [made() for _ in range(3)]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[] for _ in sets]

    def train(index: int) -> None:
        model, _, step, batches = sets[index]
        with torch.cuda.stream(torch.cuda.Stream()):
            for x, y in batches:
                model.zero_grad()
                loss = step(x, y)[0]
                loss.backward()
                found[index].append(loss.detach())
            torch.cuda.current_stream().synchronize()

    in_threads(train, len(sets))
    for (model, other, _, batches), losses in zip(sets, found, strict=True):
        for (x, y), loss in zip(batches, losses, strict=True):
            other.zero_grad()
            want = other(x, y)[0]
            want.backward()
            assert_close(loss, want.detach())
        assert_close(gradients(model), gradients(other))


def test_random_keys_may_be_drawn_while_another_thread_captures() -> None:
    sets = [build_model("gpt2", torch.float32, 0.2) for _ in range(3)]
    steps = []
    for model, batch in sets:
        batch = {name: tensor.cuda() for name, tensor in batch.items()}
        steps.append((rg.StaticGraph(model.cuda(), outputs="loss").compile(**batch), model, batch))

    def train(index: int) -> None:
        step, model, batch = steps[index]
        for _ in range(6):
            model.zero_grad()
            step(**batch).loss.backward()

    in_threads(train, len(steps))
    for step, _, _ in steps:
        for frame in step._signatures[0].executor._frames.values():
            assert not frame.graphs.refused


# ---- memory


def test_out_of_memory_names_the_plan_the_device_and_the_way_out() -> None:
    model, other, step, batches = made(1024, 4096)  # some gigabytes
    x, y = batches[0]
    del batches
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    limit = torch.cuda.memory_reserved() + step.memory.peak_bytes // 3
    torch.cuda.set_per_process_memory_fraction(limit / total)
    planned = f"{step.memory.peak_bytes / 2**30:.1f} GiB"
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError, match=re.escape(planned)) as caught:
            step(x, y)
        assert isinstance(caught.value, rg.errors.OutOfMemoryError)
        for words in ("cuda:0", "are free", "memory_budget", "forward of a step"):
            assert words in str(caught.value)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    del caught
    step(x, y)[0].backward()
    other(x, y)[0].backward()
    assert_close(gradients(model), gradients(other))


def test_large_values_lie_outside_the_arena_and_the_peak_is_as_planned() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32000, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 32000))
    model = model.to("cuda", torch.bfloat16)
    ids = torch.randint(32000, (2048,), device="cuda")
    loss = F.cross_entropy
    step = rg.StaticGraph(model, loss=loss).compile(ids, targets=(ids,))
    kinds = {buffer.kind.value for buffer in step.plan.buffers}
    assert "apart" in kinds
    other = copy.deepcopy(model)
    loss(other(ids), ids).backward()
    want = gradients(other)
    del other
    torch.cuda.empty_cache()
    start = torch.cuda.memory_allocated()
    for turn in range(3):
        model.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step(ids, targets=(ids,)).backward()
        peak = torch.cuda.max_memory_allocated() - start
        slack = 80 << 20  # workspaces of cuBLAS, for two streams
        assert peak <= 1.05 * step.memory.peak_bytes + slack, (turn, peak)
        torch.testing.assert_close(gradients(model), want, rtol=3e-2, atol=1e-3)
    model.zero_grad()
    result = step(ids, targets=(ids,))
    result.backward(retain_graph=True)
    result.backward()
    twice = [2 * gradient for gradient in want]
    torch.testing.assert_close(gradients(model), twice, rtol=3e-2, atol=2e-3)
