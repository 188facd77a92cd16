"""Autocast around the step and inside it, against eager under the same autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rudagraph.capture import capture
from tests.capture.support import assert_same, eager, run

# PyTorch's own lists of operators import expecttest, which not every machine has.
AutocastCPUTestLists = pytest.importorskip(
    "torch.testing._internal.autocast_test_lists", exc_type=ImportError
).AutocastCPUTestLists


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.n(F.gelu(self.a(x)))
        q = h.view(2, 1, 5, 8)
        h = h + F.scaled_dot_product_attention(q, q, q).view(2, 5, 8)
        with torch.autocast("cpu", enabled=False):
            h = h.float() * 2
        return F.cross_entropy(self.b(h).flatten(0, 1), y.flatten())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 5, 4), torch.randint(0, 3, (2, 5))


def test_a_block_under_autocast() -> None:
    x, y = batch()
    model = Block()
    with torch.autocast("cpu", torch.bfloat16):
        captured = capture(model, (x, y))
        output = model(x, y)
        assert torch.is_autocast_enabled("cpu")
    got = run(captured, model, (x, y))
    output.backward()
    assert got.results[""].dtype is output.dtype is torch.float32
    for name, parameter in model.named_parameters():
        error = (got.gradients[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 2e-2, name
    by_opcode = {op.opcode: op for op in captured.graph.ops}
    assert str(by_opcode["attention"].results[0].type.dtype) == "bf16"
    assert str(by_opcode["addmm"].results[0].type.dtype) == "bf16"


def test_autocast_inside_forward_only() -> None:
    class Inside(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    model, x = Inside(4, 3), torch.randn(5, 4)
    got = run(capture(model, (x,)), model, (x,))
    assert_same(got, eager(model, (x,)), 0, 0)


def test_backward_is_traced_outside_autocast() -> None:
    class Powers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).tanh()

    x = torch.randn(3, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        captured = capture(Powers(), (x,))
    got = run(captured, Powers(), (x,))
    Powers()(x).sum().backward()
    assert torch.equal(got.gradients["argument:x"], x.grad)


class Call(nn.Module):
    def __init__(self, function: Callable[..., Any], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.keywords = function, keywords

    def forward(self, *args: Any) -> Any:
        return self.function(*args, **self.keywords)


def _listed() -> list[Any]:
    torch.manual_seed(0)
    lists = AutocastCPUTestLists(torch.device("cpu"))
    found = []
    for group in ("nn_16", "nn_fp32", "torch_16", "torch_fp32", "torch_need_autocast_promote"):
        for name, args, *rest in getattr(lists, group):
            keywords = next((item for item in rest if isinstance(item, dict)), {})
            owner = torch if group.startswith("torch") else torch._C._nn
            found.append(pytest.param(getattr(owner, name), args, keywords, id=f"{group}-{name}"))
    softly = torch.randn(4, 6, dtype=torch.bfloat16)
    labels = torch.tensor([1, 2, 0, 5])
    found.append(pytest.param(F.cross_entropy, (softly, labels), {}, id="cross_entropy"))
    found.append(pytest.param(F.layer_norm, (softly, (6,)), {}, id="layer_norm"))
    found.append(pytest.param(F.softmax, (softly, -1), {}, id="softmax"))
    return found


@pytest.mark.parametrize(("function", "args", "keywords"), _listed())
def test_listed_functions_have_eagers_dtype(
    function: Callable[..., Any], args: Any, keywords: dict[str, Any]
) -> None:
    if "_native" in function.__name__:
        pytest.skip("an inference kernel without a derivative")
    args = args if isinstance(args, tuple) else (args,)
    model = Call(function, keywords)
    with torch.autocast("cpu", torch.bfloat16):
        want = eager(model, args)
        captured = capture(model, args)
    got = run(captured, model, args)
    for path, value in want.results.items():
        assert got.results[path].dtype == value.dtype
        torch.testing.assert_close(got.results[path], value, rtol=1e-2, atol=1e-2, equal_nan=True)
