"""Dictionaries that were written to are told from those that were not."""

import pytest
import torch

from rudagraph import StaticGraph
from rudagraph.errors import ContractError
from rudagraph.runtime import untouched
from rudagraph.runtime.untouched import Untouched


def test_a_write_is_seen():
    tables = [{"a": 1}, {"b": 2}]
    watch = Untouched(tables)
    versions = watch.versions()
    assert versions is not None, "this PyTorch no longer counts writes: every call compares all"
    assert not watch.since(versions)
    watch.remember(versions)
    assert watch.since(watch.versions())
    tables[1]["b"] = 3
    assert not watch.since(watch.versions())
    watch.remember(watch.versions())
    assert watch.since(watch.versions())
    del tables[0]["a"]
    assert not watch.since(watch.versions())


@pytest.mark.parametrize("counted", [True, False])
def test_changes_after_calls_that_fitted(counted, monkeypatch):
    """Whether or not writes are counted, a change is refused and taking it back is fine."""
    if not counted:
        monkeypatch.setattr(untouched, "_version_of", lambda: None)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
    model.scales = [1.0]
    x = torch.randn(2, 3)
    step = StaticGraph(model, loss=lambda y: y.sum()).compile(x)
    for _ in range(2):
        step(x).backward()
    model[1].p = 0.25
    for _ in range(2):
        with pytest.raises(ContractError, match="p"):
            step(x)
    model[1].p = 0.5
    step(x).backward()
    model.scales.append(2.0)  # no write to the module's dictionary
    with pytest.raises(ContractError, match="scales"):
        step(x)
    model.scales.pop()
    step(x).backward()
    model[0].forward = lambda x: x
    with pytest.raises(ContractError, match="forward"):
        step(x)
    del model[0].forward
    step(x).backward()
    model.eval()
    with pytest.raises(ContractError, match="train"):
        step(x)
    model.train()
    step(x).backward()
