"""The fast trace gives what PyTorch's own gives, or leaves it to that one."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rudagraph.capture import capture
from rudagraph.capture.record import record_joint
from rudagraph.capture.shapes import Traced
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Graph
from rudagraph.ir.interpret import interpret
from rudagraph.ir.text import print_graph
from tests.models import MODELS, build_model

captures = sys.modules["rudagraph.capture.capture"]


class Function(nn.Module):
    """A function of one tensor with a weight of its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("total", torch.zeros(4))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x * self.weight)


def spelled(graph: Graph) -> str:
    """The graph as text. The full trace guesses where sums of gradients come from: their names
    and places, and what is named after them, are left out by numbering the values of backward."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"%grad_{len(numbers)}")

    text = re.sub(r"%grad\.[\w.]+", number, print_graph(graph))
    return re.sub(r"(%grad_\d+: \S+ = (?:add|full)\(.*?)  # .*", r"\1", text)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str, bool]]:
    """The captured graph by the fast trace and by the full one, and whether the first sufficed."""

    def both(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[str, str, bool]:
        sufficed = []

        def watched(*given: Any) -> Any:
            sufficed.append(record_joint(*given))
            return sufficed[-1]

        monkeypatch.setattr(captures, "record_joint", watched)
        fast = spelled(capture(model, args, kwargs).graph)
        monkeypatch.setattr(captures, "record_joint", lambda *_: None)
        full = spelled(capture(model, args, kwargs).graph)
        return fast, full, sufficed[0] is not None

    return both


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"t5"}))
def test_models_are_recorded_as_the_full_trace_sees_them(name: str, traced: Any) -> None:
    sample = build_model(name, torch.float32, 0.1)
    fast, full, sufficed = traced(sample.model, **sample.batch)
    assert sufficed
    assert fast == full


def _adds_in_place(module: Function, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y += 1.5
    return y.sigmoid().sum()


def _reads_a_view_after_a_write(module: Function, x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    row = y[0]
    y.add_(1)
    return row.sum()


def _writes_a_part(module: Function, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = 0.0
    return y.sum()


def _catches_everything(module: Function, x: torch.Tensor) -> torch.Tensor:
    """What the recorder raises to give up is nothing that the function itself would see."""
    y = x.clone()
    try:
        y[0] = 0.0
    except Exception:
        y = y * 3
    return y.sum()


def _updates_a_buffer(module: Function, x: torch.Tensor) -> torch.Tensor:
    module.total.add_(x.detach().sum(0))
    return x.sum()


def _makes_a_tensor(module: Function, x: torch.Tensor) -> torch.Tensor:
    return (x * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum()


def _pools(module: Function, x: torch.Tensor) -> torch.Tensor:
    return F.max_pool1d(x.unsqueeze(0), 2).logsumexp(-1).sum()


def _keeps_statistics(module: Function, x: torch.Tensor) -> torch.Tensor:
    """An operator that writes into its operands and does not say so."""
    normal, _, _ = torch.native_batch_norm(
        x, None, None, module.total, module.total + 1, True, 0.1, 1e-5
    )
    return normal.square().sum()


@pytest.mark.parametrize(
    ("function", "suffices"),
    [
        (_adds_in_place, True),
        (_makes_a_tensor, True),
        (_pools, True),
        (_reads_a_view_after_a_write, False),
        (_writes_a_part, False),
        (_catches_everything, False),
        (_updates_a_buffer, False),
        (_keeps_statistics, False),
    ],
    ids=lambda item: getattr(item, "__name__", None),
)
def test_writes(function: Any, suffices: bool, traced: Any) -> None:
    x = torch.arange(12.0).reshape(3, 4).requires_grad_()
    fast, full, sufficed = traced(Function(function), x)
    assert sufficed is suffices
    assert fast == full


def test_a_view_read_after_a_write_has_the_new_numbers() -> None:
    """What the fast trace must not get wrong: memory that two tensors share."""
    model = Function(_reads_a_view_after_a_write)
    x = torch.arange(12.0).reshape(3, 4)
    captured = capture(model, (x,))
    graph = captured.graph
    given = {"weight": model.weight.detach(), "x": x, "tangent": torch.tensor(1.0)}
    result = interpret(graph, given)[graph.outputs[0].value.name]
    assert result.item() == pytest.approx(model(x).item())


def test_errors_are_those_of_the_full_trace() -> None:
    model = Function(lambda module, x: x.sum() if x.sum() > 0 else x.mean())
    with pytest.raises(UnsupportedError, match="a shape or a branch depends on data"):
        capture(model, (torch.ones(3, 4),))
    assert "forward" not in vars(model)


def test_nothing_of_a_trace_stays() -> None:
    """Autograd's graph is beyond Python's collector: what its hooks held would never go."""

    def count() -> int:
        gc.collect()
        return sum(type(item) is Traced for item in gc.get_objects())

    before = count()
    model = Function(lambda module, x: x.sigmoid().sum())
    capture(model, (torch.ones(3, 4),))
    assert count() == before
