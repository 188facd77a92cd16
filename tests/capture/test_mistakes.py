"""Wrong shapes and dtypes at compile: one error with the user's line, and no log before it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rudagraph.capture import capture
from rudagraph.errors import UnsupportedError, UsageError


class Net(nn.Module):
    """Runs any function of (inner module, x, y) at the path `inner`."""

    def __init__(self, inner: nn.Module, function: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.function = function

    def forward(self, x: Any, y: Any = None) -> Any:
        if self.function is not None:
            return self.function(self.inner(x), y)
        return self.inner(x)


def line_of_call() -> int:
    source, start = inspect.getsourcelines(Net.forward)
    return start + len(source) - 1


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
LONG, DOUBLE, HALF = torch.int64, torch.float64, torch.bfloat16

# module, input, words: PyTorch refuses each of these when it runs.
MODULES: dict[str, tuple[nn.Module, Any, tuple[str, ...]]] = {
    "float to embedding": (
        nn.Embedding(10, 4),
        ones(2, 3),
        # Before 2.12 only the derivative looks at the type.
        ("embedding(argument x float32[2, 3], parameter inner.weight float32[10, 4])", "Long")
        if TORCH >= (2, 12)
        else ("embedding_dense_backward(", "x float32[2, 3]", "Long"),
    ),
    "int8 to embedding": (nn.Embedding(10, 4), ones(2, dtype=torch.int8), ("int8[2]",)),
    "integers to linear": (
        nn.Linear(4, 3),
        ones(2, 4, dtype=LONG),
        ("x int64[2, 4]", "inner.bias float32[3]", "same dtype"),
    ),
    "double to linear": (nn.Linear(4, 3), ones(2, 4, dtype=DOUBLE), ("x float64[2, 4]",)),
    "bfloat16 to linear": (nn.Linear(4, 3), ones(2, 4, dtype=HALF), ("bfloat16[2, 4]",)),
    "bfloat16 to conv": (nn.Conv2d(3, 4, 3), ones(2, 3, 8, 8, dtype=HALF), ("conv2d(argument x",)),
    "integers to norm": (nn.LayerNorm(4), ones(2, 4, dtype=LONG), ("layer_norm(argument x int64",)),
    "integers to gelu": (nn.GELU(), ones(2, 4, dtype=LONG), ("gelu(x int64[2, 4])",)),
    "integers to softmax": (nn.Softmax(-1), ones(2, 4, dtype=LONG), ("softmax(x int64[2, 4])",)),
    "integers to dropout": (nn.Dropout(0.5), ones(2, 4, dtype=LONG), ("dropout(argument x int64",)),
    "wrong hidden size": (
        nn.Linear(4, 3),
        ones(2, 5),
        ("linear(argument x float32[2, 5], parameter inner.weight float32[3, 4]", "[2, 5] X"),
    ),
    "wrong channels": (nn.Conv2d(3, 4, 3), ones(2, 4, 8, 8), ("to have 3 channels",)),
    "wrong rank": (nn.Conv2d(3, 4, 3), ones(2, 8), ("conv2d(argument x float32[2, 8]",)),
    "wrong norm": (nn.LayerNorm(4), ones(2, 5), ("normalized_shape=[4]",)),
    "wrong batch norm": (nn.BatchNorm1d(4), ones(2, 5), ("buffer inner.running_mean float32[4]",)),
    "window too large": (nn.MaxPool2d(9), ones(2, 3, 4, 4), ("max_pool2d(", "too small")),
    "checked by the module": (nn.LSTM(4, 2), ones(2, 3, 5), ("forward fails:", "Expected 4")),
    "no tensor": (nn.Linear(4, 3), None, ("must be Tensor, not NoneType",)),
    "text": (nn.Linear(4, 3), "x", ("must be Tensor, not str",)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_cannot_take_its_input(
    name: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    inner, x, words = MODULES[name]
    with pytest.raises((RuntimeError, TypeError)):
        Net(inner)(x)
    with pytest.raises(UsageError) as caught:
        capture(Net(inner), (x,))
    error = caught.value
    for word in words:
        assert word in error.what
    assert error.where.endswith(f"test_mistakes.py:{line_of_call()}")
    if name not in ("no tensor", "text"):  # they fail before PyTorch hands the call over
        assert error.where.startswith("inner, ")
    assert "the model itself" in error.hint
    assert error.__suppress_context__  # the user's line is in the text; the trace is noise
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


FUNCTIONS: dict[str, tuple[Callable[..., Any], torch.Tensor, tuple[str, ...]]] = {
    "batch": (lambda x, y: x + y, ones(3, 4), ("add(float32[2, 4], argument y float32[3, 4])",)),
    "product": (lambda x, y: x @ y, ones(3, 4), ("matmul(float32[2, 4], argument y",)),
    "product of dtypes": (lambda x, y: x @ y, ones(4, 4, dtype=DOUBLE), ("mm(", "y float64[4, 4]")),
    "cat": (lambda x, y: torch.cat([x, y], 1), ones(3, 4), ("cat(float32[2, 4], argument y",)),
    "view": (lambda x, y: x.view(3, 5), ones(1), ("view(float32[2, 4])", "[3, 5]")),
    "index": (lambda x, y: x[:, 7], ones(1), ("index 7 is out of bounds",)),
    "axis": (lambda x, y: x.sum(5), ones(1), ("sum(float32[2, 4])", "out of range")),
    "labels": (F.cross_entropy, ones(3, dtype=LONG), ("(2)", "(3)")),
    "float labels": (F.cross_entropy, ones(2), ("cross_entropy(", "argument y float32[2]")),
    "narrow labels": (F.cross_entropy, ones(2, dtype=torch.int32), ("int64, not int32",)),
    "mask": (lambda x, y: x.masked_fill(y, 0.0), ones(2, 4), ("masked_fill(", "bool")),
    "attention": (
        lambda x, y: F.scaled_dot_product_attention(x.reshape(1, 1, 2, 4), y, y),
        ones(1, 1, 2, 8),
        ("scaled_dot_product_attention(float32[1, 1, 2, 4], argument y float32[1, 1, 2, 8]",),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_that_do_not_go_together(name: str) -> None:
    function, y, words = FUNCTIONS[name]
    model = Net(nn.Linear(4, 4), function)
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        model(ones(2, 4), y)
    with pytest.raises(UsageError) as caught:
        capture(model, (ones(2, 4), y))
    for word in words:
        assert word in caught.value.what
    assert "test_mistakes.py:" in caught.value.where


def test_a_wrong_loss_names_the_line_of_the_loss() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output - target, target)

    with pytest.raises(UsageError, match=r"sub\(float32\[2, 3\], argument loss targets\[0\]") as e:
        capture(nn.Linear(4, 3), (ones(2, 4),), loss=loss, targets=(ones(5, 3),))
    assert e.value.where.endswith(f":{inspect.getsourcelines(loss)[1] + 1}")


def test_a_loss_of_pytorchs_is_named_without_a_line() -> None:
    with pytest.raises(UsageError, match=r"argument loss targets\[0\] int64\[2, 1\]") as caught:
        capture(
            nn.Linear(4, 3),
            (ones(2, 4),),
            loss=nn.CrossEntropyLoss(),
            targets=(ones(2, 1, dtype=LONG),),
        )
    assert caught.value.where == "the model or its loss, in no line of yours"


def test_errors_that_the_users_own_code_raises_stay_what_they_are() -> None:
    def refuses(x: torch.Tensor, y: Any) -> torch.Tensor:
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        capture(Net(nn.Linear(4, 4), refuses), (ones(2, 4),))
    with pytest.raises(AttributeError, match="nothing"):
        capture(Net(nn.Linear(4, 4), lambda x, y: x.nothing), (ones(2, 4),))


def test_a_mistake_that_forward_catches_is_forgotten() -> None:
    def tries(x: torch.Tensor, y: Any) -> torch.Tensor:
        try:
            return x.view(3, 5)
        except RuntimeError:
            return x.view(4, 2)

    captured = capture(Net(nn.Linear(4, 4), tries), (ones(2, 4),))
    assert captured.graph.outputs[0].value.type.shape == (4, 2)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_with_max_norm_says_what_to_run_instead(kind: Any) -> None:
    model = Net(kind(10, 4, max_norm=1.5))
    with pytest.raises(UnsupportedError, match=r"max_norm=1\.5 changes rows") as caught:
        capture(model, (ones(2, 3, dtype=LONG),))
    assert caught.value.where.startswith("inner, ")
    hint = caught.value.hint
    assert "weight.copy_(weight.renorm(2, 0, 1.5))" in hint
    weight = torch.full((10, 4), 5.0)
    with torch.no_grad():  # what the hint says does what max_norm does
        weight.copy_(weight.renorm(2, 0, 1.5))
    model(torch.arange(10).reshape(2, 5))
    assert weight.norm(dim=1).allclose(torch.tensor(1.5), atol=1e-4)
