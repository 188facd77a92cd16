"""Errors say what, where and what to do, and cross process borders."""

from __future__ import annotations

import pickle

import pytest

import rudagraph
from rudagraph import errors
from rudagraph.errors import RudagraphError, UnsupportedError, suggest

CLASSES = [
    c for c in vars(errors).values() if isinstance(c, type) and c.__module__ == errors.__name__
]


def test_message_has_three_parts() -> None:
    error = UnsupportedError(
        "aten.nonzero has a data-dependent shape",
        where="layers.3.router, model.py:88",
        hint="move it outside StaticGraph",
    )
    assert str(error) == (
        "aten.nonzero has a data-dependent shape\n"
        "  where: layers.3.router, model.py:88\n"
        "  what to do: move it outside StaticGraph"
    )
    assert str(UnsupportedError("no more than this")) == "no more than this"


def test_further_lines_stay_under_their_heading() -> None:
    error = RudagraphError("x", where="first\nsecond")
    assert str(error) == "x\n  where: first\n    second"


@pytest.mark.parametrize("error_class", CLASSES, ids=lambda c: c.__name__)
def test_every_error_survives_pickling(error_class: type[RudagraphError]) -> None:
    assert issubclass(error_class, RudagraphError)
    error = pickle.loads(pickle.dumps(error_class("what", where="here", hint="so")))
    assert type(error) is error_class
    assert (error.what, error.where, error.hint) == ("what", "here", "so")


def test_suggest_names_the_closest_and_all() -> None:
    assert suggest("memory_buget", ["loss", "memory_budget"]) == (
        "did you mean 'memory_budget'? valid are loss, memory_budget"
    )
    assert suggest("zzz", ["loss"]) == "valid are loss"
    assert suggest("zzz", []) == "there are none"


def test_the_package_says_where_its_names_are() -> None:
    with pytest.raises(AttributeError, match=r"it is rudagraph\.errors\.ContractError"):
        _ = rudagraph.ContractError
    with pytest.raises(AttributeError, match=r"no attribute 'compile': public are .*StaticGraph"):
        _ = rudagraph.compile
