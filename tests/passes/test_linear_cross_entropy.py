"""Linear + cross-entropy in chunks: what matches, and what whole steps then give and need."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rudagraph
from rudagraph.capture import capture
from rudagraph.errors import RudagraphError
from rudagraph.ir.graph import Graph, Role
from rudagraph.ir.types import DType
from rudagraph.ir.verify import verify
from rudagraph.passes import linear_cross_entropy as chunked
from rudagraph.passes.linear_cross_entropy import Chunking, linear_cross_entropy
from rudagraph.passes.simplify import simplify
from tests.models import MODELS, build_model
from tests.passes.oracle import assert_same, run
from tests.passes.test_captured import inputs_of

ROWS, WIDTH, CLASSES = 80, 8, 64


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eleven rows a chunk, seven or so chunks, the last one shorter."""
    monkeypatch.setattr(chunked, "CHUNKING", Chunking(bytes=0, least=11, most=16))
    yield


# -- captured models

USUAL = ("llama", "gpt2", "gemma2", "bert")
# T5's loss has 18 rows; a ViT classifies two images.
NAMES = [
    pytest.param(name, marks=() if name in USUAL else pytest.mark.full)
    for name in sorted(MODELS)
    if name != "vit"
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_heads_of_real_models(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "_pays", lambda region, chunking: True)
    sample = build_model(name, dtype, 0.0)
    captured = capture(sample.model, (), sample.batch, outputs="loss")
    before = simplify(captured.graph)
    after = verify(linear_cross_entropy(before))
    (rows,) = rows_of_losses(before)
    assert sum(rows_of_losses(after)) == rows > max(rows_of_losses(after))
    assert any(port.role is Role.RESIDUAL for port in after.outputs)
    inputs = inputs_of(captured, sample)
    exact = run(after, inputs, torch.float64)
    assert_same(exact, run(before, inputs, torch.float64), rtol=1e-9, atol=1e-12)


def rows_of_losses(graph: Graph) -> list[int]:
    return [op.inputs[0].type.shape[0] for op in graph.ops if op.opcode == "cross_entropy"]


def test_logits_that_are_returned_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "_pays", lambda region, chunking: True)
    sample = build_model("llama", torch.float32, 0.0)
    graph = simplify(capture(sample.model, (), sample.batch).graph)
    assert linear_cross_entropy(graph) is graph


# -- whole steps


class Head(nn.Module):
    """Something to differentiate before a head, and a loss."""

    def __init__(self, loss: Callable[..., torch.Tensor], bias: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)
        self.loss = loss

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.head, torch.tanh(x) * self.scale, target)


def usual(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(x), target)


def total(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(x), target, reduction="sum")


def smooth(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(x), target, ignore_index=3, label_smoothing=0.1)


def weighted(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(0.5, 2, CLASSES, dtype=x.dtype)
    return F.cross_entropy(head(x), target, weight, ignore_index=3, label_smoothing=0.05)


def capped(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits = 4 * torch.tanh(head(x).float() / 4)
    return F.cross_entropy(logits, target) + 1e-3 * x.float().square().sum()


def shifted(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits, labels = head(x.view(4, -1, WIDTH)), target.view(4, -1)
    logits, labels = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
    return 0.5 * F.cross_entropy(logits.view(-1, CLASSES), labels.view(-1))


def other_layout(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ head.weight.view(WIDTH, CLASSES), target)


def frozen(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, head.weight.detach(), head.bias), target)


def two_losses(head: nn.Linear, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head(x), target) + 0.3 * F.cross_entropy(head(x.flip(1)), target)


CASES = [
    (usual, False, torch.float32),
    (usual, True, torch.bfloat16),
    (total, True, torch.float64),
    (total, False, torch.bfloat16),
    (smooth, True, torch.float32),
    (weighted, False, torch.float32),
    (capped, True, torch.float32),
    (capped, False, torch.bfloat16),
    (shifted, False, torch.float32),
    (other_layout, False, torch.float32),
    (frozen, True, torch.float32),
    (two_losses, False, torch.float32),
]


def made(loss: Callable[..., torch.Tensor], bias: bool, dtype: torch.dtype) -> tuple[Head, ...]:
    torch.manual_seed(0)
    module = Head(loss, bias).to(dtype)
    x = torch.randn(ROWS, WIDTH).to(dtype)
    target = torch.randint(CLASSES, (ROWS,))
    target[::7] = 3
    return module, x, target  # type: ignore[return-value]


def gradients(
    call: Callable[..., torch.Tensor],
    module: nn.Module,
    x: torch.Tensor,
    target: torch.Tensor,
    factor: float,
) -> dict[str, torch.Tensor | None]:
    module.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    loss = call(x, target)
    (factor * loss).backward()
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {"loss": loss.detach(), "x": x.grad, **found}


@pytest.mark.parametrize(
    ("loss", "bias", "dtype"), CASES, ids=lambda case: getattr(case, "__name__", str(case))
)
def test_steps(loss: Callable[..., torch.Tensor], bias: bool, dtype: torch.dtype) -> None:
    module, x, target = made(loss, bias, dtype)
    step = rudagraph.StaticGraph(module).compile(x.clone().requires_grad_(), target)
    assert "chunks" in step.ir("forward"), "the loss is not in chunks"
    for factor in (1.0, 0.3):
        ours = gradients(step, module, x, target, factor)
        eager = gradients(module, module, x, target, factor)
        wide = Head(loss, bias).double()
        wide.load_state_dict(module.state_dict())
        exact = gradients(wide, wide, x.double(), target, factor)
        assert ours.keys() == eager.keys()
        for name, wanted in exact.items():
            check(name, ours[name], eager[name], wanted)


def check(
    name: str,
    got: torch.Tensor | None,
    eager: torch.Tensor | None,
    exact: torch.Tensor | None,
) -> None:
    """As exact as eager, within a tenth and the roundings of the upstream factor."""
    if exact is None or eager is None or got is None:
        assert got is None and eager is None, name
        return
    assert got.dtype == eager.dtype
    # In f64 the yardstick is rounded as well.
    ulp = torch.finfo(got.dtype).eps * (8 if got.dtype is torch.float64 else 2)
    error, allowed = (got.double() - exact).norm(), (eager.double() - exact).norm()
    assert error <= 1.1 * allowed + ulp * exact.norm(), name


class Tied(nn.Module):
    """One table that embeds tokens and scores classes: its gradient is the sum of both."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.embed(tokens))
        logits = F.linear(hidden, self.embed.weight)
        return F.cross_entropy(logits.view(-1, CLASSES), labels.view(-1))


def test_a_tied_table_sums_both_gradients() -> None:
    torch.manual_seed(0)
    module = Tied()
    tokens, labels = torch.randint(CLASSES, (2, 4, ROWS // 4))
    step = rudagraph.StaticGraph(module).compile(tokens, labels)
    assert "chunks" in step.ir("forward")
    (0.3 * step(tokens, labels)).backward()
    got, module.embed.weight.grad = module.embed.weight.grad, None
    (0.3 * module(tokens, labels)).backward()
    torch.testing.assert_close(got, module.embed.weight.grad)


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    module, x, target = made(usual, True, torch.float32)
    step = rudagraph.StaticGraph(module).compile(x, target)
    loss = step(x, target)
    parameters = list(module.parameters())
    once = torch.autograd.grad(loss, parameters, retain_graph=True)
    doubled = torch.autograd.grad(2 * loss, parameters)
    for first, second in zip(once, doubled, strict=True):
        assert torch.equal(2 * first, second)


def test_nothing_to_count() -> None:
    """All targets ignored: eager's loss is NaN and its gradients are zero, ours as well."""
    module, x, target = made(usual, False, torch.float32)
    step = rudagraph.StaticGraph(module).compile(x.clone().requires_grad_(), target)
    ours = gradients(step, module, x, torch.full_like(target, -100), 1.0)
    eager = gradients(module, module, x, torch.full_like(target, -100), 1.0)
    for name, wanted in eager.items():
        torch.testing.assert_close(ours[name], wanted, equal_nan=True)


def test_a_target_out_of_range_is_an_error() -> None:
    module, x, target = made(usual, False, torch.float32)
    step = rudagraph.StaticGraph(module).compile(x, target)
    target[50] = CLASSES
    with pytest.raises(RudagraphError, match=str(CLASSES)):
        step(x, target)


def test_without_gradients_only_the_loss_is_made() -> None:
    module, x, target = made(usual, False, torch.float32)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    step = rudagraph.StaticGraph(module).compile(x, target)
    text = step.ir("forward")
    assert "chunks" in text and "dlogits" not in text
    torch.testing.assert_close(step(x, target), module(x, target))


def test_a_training_signature_without_grad_mode() -> None:
    module, x, target = made(usual, False, torch.float32)
    step = rudagraph.StaticGraph(module).compile(x, target)
    with torch.no_grad():
        loss = step(x, target)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, module(x, target).detach())
    with torch.no_grad():
        step.add(x, target)
        text = step.explain()
        torch.testing.assert_close(step(x, target), loss)
    assert [line.partition(") ")[2] for line in step.signatures] == [
        "train, forward and backward",
        "train, forward only",
    ]
    assert text.count("their gradient made in forward") == 1
    step(x, target).backward()


def test_memory_of_a_step() -> None:
    """No buffer holds the logits, and the peak falls by most of them."""
    module, x, target = made(usual, False, torch.float32)
    step = rudagraph.StaticGraph(module).compile(x, target)
    logits = ROWS * CLASSES * 4
    assert max(buffer.bytes for buffer in step.plan.buffers) < logits
    assert step.memory.peak_bytes < logits


def test_half_precision_waits_for_the_loss_scale() -> None:
    """The gradient of f16 logits underflows before the scale is known: it is made in backward."""
    module, x, target = made(usual, False, torch.float16)
    step = rudagraph.StaticGraph(module).compile(x.clone().requires_grad_(), target)
    assert "dlogits" not in step.ir("forward")
    assert "[again=true]" in step.ir("backward")
    assert max(buffer.bytes for buffer in step.plan.buffers) < ROWS * CLASSES * 2
    for factor in (1.0, 4096.0):
        ours = gradients(step, module, x, target, factor)
        for name, wanted in gradients(module, module, x, target, factor).items():
            torch.testing.assert_close(ours[name], wanted, rtol=2e-3, atol=1e-3 * factor)


def test_rows_of_a_chunk_depend_on_shapes_alone() -> None:
    chunking = Chunking()
    assert chunking.rows(1024, 4096, DType.F32) == 512
    assert chunking.rows(1024, 32000, DType.F32) == 256
    assert chunking.rows(8192, 128256, DType.BF16) == 512
    assert chunking.rows(100, 1000, DType.F32) == 100
    assert chunking.rows(1200, 2048, DType.F32) == 600
