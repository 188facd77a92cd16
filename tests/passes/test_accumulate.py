"""Sums of products in whole steps: fewer additions, the memory of one, the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rudagraph
from rudagraph.ir.text import parse_graph


class Branches(nn.Module):
    """Three projections of one input, as attention has them, and one weight used twice."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(3)
        )
        self.twice = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        mixed = torch.sin(self.query(x)) * torch.cos(self.key(x)) + torch.tanh(self.value(x))
        return self.twice(torch.tanh(self.twice(mixed))).float().square().mean()


def gradients(
    module: nn.Module, call: object, x: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    module.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    loss = call(x)  # type: ignore[operator]
    loss.backward()
    grads = [parameter.grad for parameter in module.parameters()]
    return loss.detach(), [grad for grad in (x.grad, *grads) if grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_of_a_step(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module, x = Branches(32, dtype), torch.randn(4, 6, 32).to(dtype)
    eager_loss, eager = gradients(module, module, x)
    step = rudagraph.StaticGraph(module).compile(x.clone().requires_grad_())
    loss, ours = gradients(module, step, x)
    _, exact = gradients(module.double(), module, x.double())
    torch.testing.assert_close(loss, eager_loss)
    # In f64 the yardstick itself is rounded.
    ulp = torch.finfo(dtype).eps * (8 if dtype is torch.float64 else 1)
    for got, reference, wanted in zip(ours, eager, exact, strict=True):
        error = (got.double() - wanted).norm()
        allowed = 1.1 * (reference.double() - wanted).norm() + ulp * wanted.norm()
        assert error <= allowed


def test_the_products_of_a_step_add_up_in_place() -> None:
    module, x = Branches(32, torch.float32), torch.randn(4, 6, 32).requires_grad_()
    step = rudagraph.StaticGraph(module).compile(x)
    backward = parse_graph(step.ir("backward"))
    sums = [op for op in backward.ops if op.opcode == "addmm"]
    # dx of query, key and value: two; the weight used twice: one.
    assert len(sums) == 3
    launches = step.plan.backward.launches
    in_place = [
        launch.arguments[0] == launch.results[0] for launch in launches if launch.opcode == "addmm"
    ]
    assert in_place == [True, True, True]
