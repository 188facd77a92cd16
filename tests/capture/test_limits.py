"""docs/limits.md: what it says is refused is, and what it says to write instead is captured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from rudagraph.errors import UnsupportedError
from tests.runtime.support import plain_step

Forward = Callable[[Any, torch.Tensor], Any]


class Net(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.steps = 0
        self.run = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def counted(m: Any, x: torch.Tensor) -> Any:
    m.steps += 1
    return m.fc(x)


def counted_in_a_buffer(m: Any, x: torch.Tensor) -> Any:
    m.count.add_(1)
    return m.fc(x)


def clamped(m: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        m.fc.weight.clamp_(-1, 1)
    return m.fc(x)


def square(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.fc(x).T @ m.fc(x) + torch.eye(4)  # type: ignore[no-any-return]


def packed(factory: Any) -> Forward:
    def forward(m: Any, x: torch.Tensor) -> Any:
        out = defaultdict(factory)
        out["y"] = m.fc(x)
        return out

    return forward


# what is refused, and what to write instead
PAIRS: dict[str, tuple[Forward, Forward]] = {
    "if": (
        lambda m, x: m.fc(x) if x.sum() > 0 else x,
        lambda m, x: torch.where(x.sum() > 0, m.fc(x), x),
    ),
    "masked_select": (
        lambda m, x: m.fc(x).masked_select(x > 0).mean(),
        lambda m, x: torch.where(x > 0, m.fc(x), 0).sum() / (x > 0).sum(),
    ),
    "unique": (lambda m, x: x.unique(), lambda m, x: m.fc(x).sort().values),
    "random numbers": (lambda m, x: m.fc(x) * torch.rand(4), lambda m, x: F.dropout(m.fc(x), 0.5)),
    "a counter": (counted, counted_in_a_buffer),
    "a clamped weight": (clamped, lambda m, x: F.linear(x, m.fc.weight.clamp(-1, 1))),
    "inverse": (
        lambda m, x: torch.linalg.inv(square(m, x)),
        lambda m, x: torch.linalg.inv_ex(square(m, x)).inverse,
    ),
    "cholesky": (
        lambda m, x: torch.linalg.cholesky(square(m, x)),
        lambda m, x: torch.linalg.cholesky_ex(square(m, x)).L,
    ),
    "solve": (
        lambda m, x: torch.linalg.solve(square(m, x), x.T),
        lambda m, x: torch.linalg.solve_ex(square(m, x), x.T).result,
    ),
    "complex numbers": (
        lambda m, x: torch.view_as_complex(m.fc(x).reshape(-1, 2)).abs(),
        lambda m, x: m.fc(x).reshape(-1, 2).square().sum(-1).sqrt(),
    ),
    "a factory without a name": (packed(lambda: 0), packed(list)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_refused_and_written_instead(name: str) -> None:
    torch.manual_seed(0)
    refused, instead = PAIRS[name]
    x = torch.randn(3, 4)
    with pytest.raises(UnsupportedError) as raised:
        plain_step(Net(refused), x)
    assert raised.value.where and raised.value.hint
    model = Net(instead)
    got = plain_step(model, x)(x)
    if name != "random numbers":
        torch.testing.assert_close(got, model(x))


def test_spectral_norm_as_a_parametrization() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(UnsupportedError, match="weight"):
        plain_step(torch.nn.utils.spectral_norm(nn.Linear(4, 4)), x)
    model = parametrizations.spectral_norm(nn.Linear(4, 4))
    step = plain_step(model, x)
    other = nn.Linear(4, 4)
    parametrizations.spectral_norm(other)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(step(x), other(x))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_padding_in_an_encoder_is_computed_where_eager_gives_zeros() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 16)
    padding = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]], dtype=torch.bool)
    with torch.no_grad():
        got = plain_step(model, x, src_key_padding_mask=padding)(x, src_key_padding_mask=padding)
        want = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(got[~padding], want[~padding])
    assert want[padding].eq(0).all() and got[padding].ne(0).any()
