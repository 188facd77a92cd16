"""StaticGraph refuses what it cannot take, before anything is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rudagraph import StaticGraph
from rudagraph.errors import ContractError, UsageError


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (nn.Linear, {}, "takes a torch.nn.Module, not a type"),
        (torch.ones(2), {}, "not a Tensor"),
        (nn.Linear(2, 2), {"output": "loss"}, "unknown option 'output'\n.*did you mean 'outputs'"),
        (nn.Linear(2, 2), {"accumulate": "kernel"}, "not available yet"),
    ],
)
def test_what_cannot_work_says_so(model: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        StaticGraph(model, **options)


def test_targets_need_a_loss() -> None:
    with pytest.raises(UsageError, match=r"targets were given, but there is no loss"):
        StaticGraph(nn.Linear(2, 2)).compile(torch.ones(1, 2), targets=(torch.ones(1, 2),))


def test_arguments_that_do_not_fit_forward() -> None:
    with pytest.raises(ContractError, match="missing a required argument: 'input'"):
        StaticGraph(nn.Linear(2, 2)).compile()


def test_it_shows_model_and_options() -> None:
    text = repr(StaticGraph(nn.Linear(2, 2), outputs="loss"))
    assert text.startswith("StaticGraph(Linear, CompileOptions(outputs='loss'")
