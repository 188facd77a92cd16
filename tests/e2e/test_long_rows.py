"""A step over one long row: blocks share each of its reductions, on any number of threads alike."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rudagraph import StaticGraph
from rudagraph.passes.shape_reductions import LONG_ROW

LENGTH = LONG_ROW + 1001


class OneRow(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(LENGTH, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "softmax":
            return F.softmax(x * self.weight, -1)
        if self.kind == "layer_norm":
            return F.layer_norm(x, (LENGTH,), self.weight)
        if self.kind == "cross_entropy":
            return F.cross_entropy(x * self.weight, torch.tensor([LENGTH // 2]))
        return x.squeeze(0) * self.weight / torch.linalg.vector_norm(x)


def gradients(call: nn.Module, module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = call(x)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    out.backward(upstream.to(out.dtype))
    return [out.detach(), x.grad, module.weight.grad.clone()]


@pytest.mark.parametrize("kind", ["softmax", "layer_norm", "cross_entropy", "vector_norm"])
def test_blocks_share_the_only_row(kind: str) -> None:
    x = torch.randn(1, LENGTH, generator=torch.Generator().manual_seed(3))
    module = OneRow(kind)
    step = StaticGraph(module).compile(x.clone().requires_grad_())
    # Whatever runs over the row runs in blocks; what is left alone works on single numbers.
    assert all(code.blocks > 1 or code.extent == 1 for code in step.program.kernels)
    threads = torch.get_num_threads()
    try:
        runs = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            runs.append(gradients(step, module, x))
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))
    eager = gradients(module, module, x)
    exact = gradients(module.double(), module, x.double())
    for ours, theirs, true in zip(runs[0], eager, exact, strict=True):
        off, allowed = ((values.double() - true).abs().max() for values in (ours, theirs))
        assert off <= 1.1 * allowed + 2.0**-23 * true.abs().max()
