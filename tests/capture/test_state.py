"""What forward may leave changed in a module, and that capture puts everything back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rudagraph.capture import capture
from rudagraph.errors import UnsupportedError


class Net(nn.Module):
    """Changes itself in forward as `change` says."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.__dict__["change"] = change
        self.size = 1000
        self.known: list[Any] = [1000, "a"]
        self.seen: dict[str, int] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self)
        return self.inner(x)


def everything(model: nn.Module) -> list[Any]:
    """Identities of all that the modules hold, and of what is in their containers."""
    found: list[Any] = []
    for module in model.modules():
        for name, value in module.__dict__.items():
            parts = list(value.items()) if isinstance(value, dict) else value
            inside = [*map(id, parts)] if isinstance(value, list) else repr(parts)
            found.append((name, id(value), inside))
    return found


def equal_number(net: Net) -> None:
    net.size = int("1000")
    net.known[0] = int("1000")


def other_order(net: Net) -> None:
    net.__dict__["size"] = net.__dict__.pop("size")


@pytest.mark.parametrize("change", [equal_number, other_order])
def test_what_equals_what_it_was_is_no_change(change: Any) -> None:
    capture(Net(change), (torch.randn(2, 4),))


def fills_what_was_empty(net: Net) -> None:
    net.seen[f"call {len(net.known)}"] = len(net.seen) + 1
    net.known.append(0)


def registers_a_hook(net: Net) -> None:
    net.inner.register_forward_hook(lambda *_: None)


def swaps_for_an_equal_object(net: Net) -> None:
    net.known[1] = object()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (fills_what_was_empty, "known"),
        (registers_a_hook, "inner."),
        (swaps_for_an_equal_object, "known"),
    ],
)
def test_other_changes_are_refused_and_undone(change: Any, where: str) -> None:
    net = Net(change)
    before = everything(net)
    with pytest.raises(UnsupportedError, match="changes the Python attribute") as caught:
        capture(net, (torch.randn(2, 4),))
    assert where in str(caught.value)
    assert everything(net) == before
