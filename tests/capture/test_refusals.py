"""What a step cannot hold is refused with what, where and what to do."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rudagraph.capture import capture
from rudagraph.errors import RudagraphError, UnsupportedError

OUTSIDE = torch.ones(3)
LEARNED = torch.ones(3, requires_grad=True)


class Inner(nn.Module):
    """Runs any function of (module, hidden) at the path `body.inner`."""

    def __init__(self, function: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.count = 0
        self.seen: list[int] = []
        self.fc = nn.Linear(3, 3)
        self.register_buffer("table", torch.zeros(4, 3))
        self.register_buffer("rows", self.table[:2])

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def model_of(function: Callable[[Any, torch.Tensor], Any]) -> nn.Module:
    model = nn.Module()
    model.body = nn.Sequential()
    model.body.add_module("inner", Inner(function))
    model.forward = lambda x: model.body(x)  # type: ignore[method-assign]
    return model


def counted(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.count += 1
    return x * 2


def listed(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.seen.append(1)
    return x * 2


def stored(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.last = x * 2
    return x


def cached(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.register_buffer("cache", x.detach())
    return x


def other_shape(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.table = x.detach()
    return x


def overlapping(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.rows.add_(1)
    return x * module.table[0]


def clamped(module: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        module.fc.weight.clamp_(-0.1, 0.1)
    return module.fc(x)


def second_order(module: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    return module.fc(g)


def other_memory(module: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.data = x * 3
    return y


def other_default(module: Any, x: torch.Tensor) -> torch.Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        return x * torch.special.i0e(torch.arange(4))
    finally:
        torch.set_default_dtype(before)


REFUSED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], tuple[str, ...]]] = {
    "branch on data": (lambda m, x: x if x.sum() > 0 else -x, ("depends on data", "torch.where")),
    "number of data": (lambda m, x: x * x.sum().item(), ("depends on data", "item()")),
    "numpy": (lambda m, x: x * float(x.detach().numpy().mean()), ("depends on data", "numpy()")),
    "array": (lambda m, x: x * float(np.asarray(x.detach()).mean()), ("depends on data",)),
    "shape of data": (lambda m, x: x[x > 0], ("depends on data", "masks")),
    "nonzero": (lambda m, x: x.nonzero(), ("depends on data",)),
    "rand": (lambda m, x: x + torch.rand(3), ("random numbers", "argument")),
    "randn_like": (lambda m, x: x + torch.randn_like(x), ("random numbers",)),
    "bernoulli": (lambda m, x: x * torch.bernoulli(x.sigmoid()), ("random numbers",)),
    "multinomial": (lambda m, x: torch.multinomial(x.softmax(-1), 1), ("random numbers",)),
    "rrelu": (lambda m, x: F.rrelu(x, training=True), ("random numbers",)),
    "normal_": (lambda m, x: x + torch.empty(3).normal_(), ("random numbers",)),
    "layer drop": (lambda m, x: x if torch.rand([]) < 0.5 else m.fc(x), ("random number", "acts")),
    "python random": (lambda m, x: x * random.random(), ("random module",)),
    "numpy random": (lambda m, x: x * float(np.random.rand()), ("random module",)),
    "written parameter": (clamped, ("body.inner.fc.weight", "requires grad")),
    "torch.cond": (
        lambda m, x: torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,)),
        ("torch.cond", "torch.where"),
    ),
    "attribute": (counted, ("body.inner.count", "register_buffer")),
    "list attribute": (listed, ("body.inner.seen",)),
    "stored tensor": (stored, ("body.inner.last",)),
    "new buffer": (cached, ("body.inner.cache",)),
    "buffer of another shape": (other_shape, ("body.inner.table", "shape")),
    "overlapping write": (overlapping, ("body.inner.rows", "body.inner.table", "memory")),
    "second order": (second_order, ("first order",)),
    "backward in forward": (lambda m, x: m.fc(x).sum().backward() or x, ("first order",)),
    "complex": (lambda m, x: torch.view_as_complex(x.reshape(-1, 2)).abs(), ("complex",)),
    "sparse": (lambda m, x: x.to_sparse().to_dense(), ("sparse",)),
    "foreign parameter": (lambda m, x: x * LEARNED, ("requires grad", "parameter")),
    "other memory": (other_memory, ("x.data = ...", "copy_")),
    "default dtype": (other_default, ("default dtype", "give the dtype")),
    "foreign state": (lambda m, x: x + OUTSIDE.add_(1), ("in place", "buffer")),
    "effect": (lambda m, x: torch.linalg.inv(m.fc(x).T @ x), ("_linalg_check_errors", "inv_ex")),
    "memory outside": (lambda m, x: x[:, 1:].as_strided((2, 3), (3, 1)), ("memory outside",)),
    "embedding_bag": (
        lambda m, x: F.embedding_bag(torch.zeros(1, 2, dtype=torch.int64), m.fc.weight.bfloat16()),
        ("bfloat16", "F.embedding"),
    ),
    "no tensor": (lambda m, x: {"a": 1}, ("no tensor",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, words = REFUSED[name]
    model = model_of(function)
    before = {path: dict(module.__dict__) for path, module in model.named_modules()}
    with pytest.raises(RudagraphError) as caught:
        capture(model, (torch.randn(2, 3),))
    error = caught.value
    for word in words:
        assert word in str(error), str(error)
    assert error.where and error.hint, str(error)
    if name not in ("no tensor", "python random", "numpy random", "overlapping write"):
        assert "body.inner" in error.where, str(error)
    assert OUTSIDE.eq(1).all()
    for path, module in model.named_modules():
        assert module.__dict__.keys() == before[path].keys()


def test_where_names_module_and_line() -> None:
    with pytest.raises(UnsupportedError) as caught:
        capture(model_of(lambda m, x: x + torch.rand(3)), (torch.randn(2, 3),))
    assert caught.value.where.startswith("body.inner, ")
    assert "test_refusals.py:" in caught.value.where
    assert not caught.value.where.startswith("/")


def test_a_changed_attribute_names_the_line_that_changes_it() -> None:
    class Counter(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            self.calls += 1
            return y

    with pytest.raises(UnsupportedError) as caught:
        capture(Counter(3, 2), (torch.randn(2, 3),))
    line = inspect.getsourcelines(Counter.forward)[1] + 2
    assert caught.value.where == f"calls (tests/capture/test_refusals.py:{line})"


def test_sparse_embedding_is_refused() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    with pytest.raises(UnsupportedError, match="sparse"):
        capture(model, (torch.tensor([1, 2]),))


@pytest.mark.parametrize(
    "argument",
    [torch.randn(3, dtype=torch.complex64), torch.eye(3).to_sparse(), object()],
    ids=["complex", "sparse", "object"],
)
def test_arguments_that_cannot_be_held(argument: Any) -> None:
    model = model_of(lambda m, x: x)
    with pytest.raises(RudagraphError) as caught:
        capture(model, (argument,))
    assert "x" in caught.value.where


def _marked() -> nn.Module:
    model = nn.Linear(3, 2)
    model.compile(backend="eager")
    return model


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    "make,words",
    [
        (lambda: torch.compile(nn.Linear(3, 2), backend="eager"), "torch.compile"),
        (_marked, "torch.compile"),
        (lambda: torch.jit.script(nn.Linear(3, 2)), "TorchScript"),
    ],
    ids=["torch.compile", "module.compile", "torch.jit.script"],
)
def test_modules_that_another_compiler_took(make: Callable[[], nn.Module], words: str) -> None:
    for model, where in ((make(), "model"), (nn.Sequential(nn.ReLU(), make()), "1")):
        with pytest.raises(UnsupportedError, match=words) as caught:
            capture(model, (torch.randn(4, 3),))
        assert caught.value.where == where and "StaticGraph" in caught.value.hint


def test_an_argument_container_that_forward_changes() -> None:
    class Writer(nn.Linear):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            batch["y"] = super().forward(batch["x"])
            return batch["y"]

    batch = {"x": torch.randn(2, 3)}
    with pytest.raises(UnsupportedError, match="container"):
        capture(Writer(3, 2), (batch,))
    assert list(batch) == ["x"]
