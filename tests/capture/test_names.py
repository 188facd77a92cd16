"""What values are called and where they are said to be: above all the gradients."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rudagraph.capture import capture
from rudagraph.ir.graph import Graph, Op, Role


class Gated(nn.Module):
    """Two layers read what the first gives; the loss is a function of the output's view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        logits = self.left(hidden) * self.right(hidden)
        return F.cross_entropy(logits.view(-1, 4), labels)


@pytest.fixture(params=["recorded", "traced"])
def graph(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """Both ways to a joint graph give the same names."""
    if request.param == "traced":
        module = sys.modules["rudagraph.capture.capture"]
        monkeypatch.setattr(module, "record_joint", lambda *arguments: None)
    batch = torch.randn(2, 3, 4), torch.randint(4, (6,))
    return capture(Gated(), batch, {}).graph


def backward(graph: Graph) -> dict[str, Op]:
    return {op.results[0].name: op for op in graph.ops if op.results[0].name.startswith("grad.")}


def test_a_gradient_is_called_after_its_value(graph: Graph) -> None:
    ops = backward(graph)
    assert ops["grad.mul"].opcode == "cross_entropy_backward"  # the view has no module: its source
    assert ops["grad.left"].opcode == ops["grad.right"].opcode == "mul"
    for port in graph.outputs:
        if port.role is Role.GRADIENT:
            assert port.value.name == f"grad.{port.target}"


def test_a_value_that_two_read_has_a_sum_of_parts(graph: Graph) -> None:
    total = backward(graph)["grad.tanh"]
    assert total.opcode == "add"
    assert [value.name for value in total.inputs] == ["grad.tanh.part", "grad.tanh.part_2"]


def test_a_sum_is_where_its_value_is_made(graph: Graph) -> None:
    ops = {op.results[0].name: op for op in graph.ops}
    assert ops["grad.tanh"].location == ops["tanh"].location
    assert re.search(r"test_names\.py:\d+$", ops["tanh"].location.line)


def test_further_results_say_what_they_are(graph: Graph) -> None:
    loss = next(op for op in graph.ops if op.opcode == "cross_entropy")
    names = [value.name for value in loss.results]
    assert names == ["cross_entropy", "cross_entropy.logsumexp", "cross_entropy.divisor"]


def test_attention_gives_gradients_of_its_operands() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = (layer(x) for layer in (self.query, self.key, self.value))
            return F.scaled_dot_product_attention(*parts).sum()

    captured = capture(Attention(), (torch.randn(2, 2, 3, 4),), {})
    (derivative,) = (op for op in captured.graph.ops if op.opcode == "attention_backward")
    names = [value.name for value in derivative.results]
    assert names == ["grad.query", "grad.key", "grad.value"]


def test_an_upstream_gradient_that_is_turned_at_once() -> None:
    """The full trace, which a batch norm takes, marks upstream gradients as backward's too."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.norm(x))

    graph = capture(Turned(), (torch.randn(3, 4),), {}).graph
    gradients = {
        port.target: port.value.name for port in graph.outputs if port.role is Role.GRADIENT
    }
    assert gradients == {target: f"grad.{target}" for target in gradients}
