"""The collector while a step is compiled: it waits, and has nothing to walk afterwards."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from rudagraph import StaticGraph
from rudagraph.collector import collector_waiting


class _Made:
    """Something that the collector looks after."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _collecting():
    gc.enable()
    yield
    gc.enable()
    gc.unfreeze()


def test_it_waits_and_goes_on() -> None:
    with collector_waiting():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_switched_off_it_stays_off() -> None:
    gc.disable()
    with collector_waiting():
        pass
    assert not gc.isenabled()


def test_what_is_made_meanwhile_is_old() -> None:
    with collector_waiting():
        made = _Made()
    assert any(item is made for item in gc.get_objects(generation=2))
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None  # frozen for good it would stay


def test_what_the_user_froze_stays_frozen() -> None:
    gc.collect()
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collector_waiting():
        pass
    assert gc.get_freeze_count() >= frozen > 0


def test_cycles_of_the_trace_are_collected_at_once() -> None:
    with collector_waiting() as collect:
        gone = weakref.ref(_Made())
        assert gone() is not None
        collect()
        assert gone() is None


def test_a_dropped_step_leaves_the_model_to_its_owner() -> None:
    """No cycle of the compiler holds the model until some full collection."""
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1))
    step = StaticGraph(model).compile(torch.randn(3, 4))
    step(torch.randn(3, 4)).sum().backward()
    gc.collect()
    gc.disable()
    gone = weakref.ref(model)
    weight = weakref.ref(model[0].weight)
    del step, model
    assert gone() is None and weight() is None


def test_compilation_leaves_no_cycle_with_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1))
    gone = weakref.ref(model)
    step = StaticGraph(model).compile(torch.randn(3, 4))
    gc.disable()
    del step, model
    assert gone() is None
