"""Options are checked where they are given, and environment variables come from one table."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from rudagraph.errors import UsageError
from rudagraph.options import CompileOptions, environment, parse_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("4096B", 4096),
        ("600MiB", 600 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("2GB", 2_000_000_000),
        ("3 KiB", 3072),
        ("1TB", 10**12),
    ],
)
def test_sizes(size: int | str, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize(
    "size", ["", "MiB", "-1MiB", "600 mib", "0", 0, -5, True, 1.5, None, "1e3"]
)
def test_what_is_not_a_size(size: Any) -> None:
    with pytest.raises(UsageError, match="is not a size in bytes"):
        parse_bytes(size)


def test_defaults_and_frozen() -> None:
    options = CompileOptions()
    assert options.budget_bytes is None
    assert (options.numerics, options.in_flight, options.accumulate) == ("exact", 1, "autograd")
    with pytest.raises(FrozenInstanceError):
        options.in_flight = 2  # type: ignore[misc]


def test_keywords_are_normalised() -> None:
    options = CompileOptions.from_keywords(outputs=["loss", "logits"], memory_budget="1KiB")
    assert options.outputs == ("loss", "logits")
    assert options.memory_budget == options.budget_bytes == 1024
    assert hash(options) == hash(CompileOptions(outputs=("loss", "logits"), memory_budget=1024))


def test_an_unknown_option_lists_the_valid_ones() -> None:
    with pytest.raises(UsageError) as caught:
        CompileOptions.from_keywords(memory_buget="1MiB")
    assert "unknown option 'memory_buget'" in str(caught.value)
    assert "did you mean 'memory_budget'? valid are accumulate, " in str(caught.value)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"numerics": "fast"}, "option numerics cannot be 'fast'"),
        ({"accumulate": "both"}, "option accumulate cannot be 'both'"),
        ({"in_flight": 0}, "option in_flight must be a whole number of at least 1, got 0"),
        ({"in_flight": True}, "option in_flight must be a whole number of at least 1, got True"),
        ({"deterministic": 1}, "option deterministic must be a bool, got 1"),
        ({"loss": "mse"}, "option loss must be a function, got 'mse'"),
        ({"outputs": 3}, "option outputs cannot be 3"),
        ({"outputs": ()}, r"option outputs cannot be \(\)"),
    ],
)
def test_wrong_values_are_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CompileOptions.from_keywords(**keywords)


def test_environment_reads_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUDAGRAPH_CACHE", raising=False)
    assert environment("RUDAGRAPH_CACHE") == "~/.cache/rudagraph"
    monkeypatch.setenv("RUDAGRAPH_CACHE", "/elsewhere")
    assert environment("RUDAGRAPH_CACHE") == "/elsewhere"
    with pytest.raises(KeyError, match="not in the table"):
        environment("RUDAGRAPH_SECRET")
