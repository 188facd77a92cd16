"""Budgets on three models: met, never measured higher with less, and the same bits."""

from __future__ import annotations

import argparse
import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pareto
from benchmarks.harness import Case


def options(budgets: int, layers: int) -> argparse.Namespace:
    return argparse.Namespace(
        budgets=budgets, layers=layers, repeats=1, seconds=1.0, without_compile=True
    )


def case_of(model: str, layers: int) -> Case:
    kept = {} if model == "convolutions" else {"outputs": "loss"}
    return Case(model, functools.partial(pareto.MODELS[model], layers), options=kept)


@pytest.mark.full
@pytest.mark.parametrize("model", pareto.MODELS)
def test_ten_budgets(model: str) -> None:
    points = pareto.measure(case_of(model, 4), options(10, 4))
    ours = [point for point in points if point.planned is not None]
    assert len(ours) == 10
    assert not [point.result.error for point in ours if point.result.error]
    peaks = [point.result.peak_bytes for point in ours]
    assert peaks[-1] < peaks[0]
    assert len(set(peaks)) >= 4


@pytest.fixture(scope="module")
def measured() -> list[pareto.Point]:
    """The default and the smallest budget of a small model."""
    return pareto.measure(case_of("convolutions", 2), options(2, 2))


def test_the_smallest_budget_of_convolutions(measured: list[pareto.Point]) -> None:
    """Small enough for every run: convolutions are computed again, dropout and norms with them."""
    ours = [point for point in measured if point.planned is not None]
    assert [point.result.error for point in ours] == ["", ""]
    assert ours[1].result.peak_bytes < ours[0].result.peak_bytes
    assert ours[1].planned < ours[0].planned
    backward = ours[1].step.call.plan.backward
    targets = [dict(launch.attributes).get("target") for launch in backward.launches]
    assert "aten.convolution.default" in targets


def test_what_breaks_a_promise_is_an_error(measured: list[pareto.Point]) -> None:
    ours = [replace(p, result=replace(p.result)) for p in measured if p.planned is not None]
    ours[1].values = [value + 1 for value in ours[1].values]
    pareto._check(ours)
    assert ours[1].result.error == "loss or gradients differ from those without a budget"
    assert ours[0].result.peak_bytes is not None
    ours[1].result.peak_bytes = ours[0].result.peak_bytes + 8
    pareto._check(ours)
    assert ours[1].result.error == "measures 8 bytes more than with more budget"


def test_document_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pareto, "MODELS", {"convolutions": pareto.convolutions})
    arguments = ["--quick", "--without-compile", "--layers", "1", "--budgets", "2"]
    arguments += ["--json", str(tmp_path / "p.json"), "--png", str(tmp_path / "p.png")]
    assert pareto.main(arguments) == 0
    results = json.loads((tmp_path / "p.json").read_text())["results"]
    assert [r["variant"].split()[0] for r in results] == [
        "eager",
        "checkpointing",
        "rudagraph",
        "rudagraph",
    ]
    assert all(r["peak_bytes"] > 0 and r["median_ms"] > 0 for r in results)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
