"""The harness times only what is correct, and its document has the shape that all share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import cpu_ops, cpu_step, harness
from benchmarks.harness import Case, Workload, benchmark, measure
from benchmarks.report import Result


def small() -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return Workload(model, (torch.randn(4, 8).requires_grad_(),))


def slowly(work: Workload, options: dict[str, Any]) -> Callable[..., Any]:
    """Right, and twice the work."""
    return lambda *args: (work.module(*args) + work.module(*args)) / 2


def wrongly(work: Workload, options: dict[str, Any]) -> Callable[..., Any]:
    return lambda *args: work.module(*args) * 1.01


CASE = Case("small", small, targets={"eager": 9.0}, peak_targets={"eager": 0.5})


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def install(**builders: harness.Builder) -> None:
        found = {name.replace("_", "."): builder for name, builder in builders.items()}
        monkeypatch.setattr(harness, "VARIANTS", {**harness.VARIANTS, **found})

    return install


def test_results_carry_times_peaks_and_ratios(variants: Callable[..., None]) -> None:
    variants(rudagraph=slowly)
    eager, ours = measure(CASE, ["eager", "rudagraph"], repeats=6, seconds=5)
    for result in (eager, ours):
        assert not result.error
        assert result.calls == 6
        assert 0 < result.min_ms <= result.median_ms <= result.max_ms
        assert result.first_step_s > 0
    assert ours.ratios == {"eager": ours.median_ms / eager.median_ms}
    assert ours.peak_ratios == {"eager": ours.peak_bytes / eager.peak_bytes}
    assert ours.peak_bytes > eager.peak_bytes
    assert (ours.targets, ours.peak_targets) == ({"eager": 9.0}, {"eager": 0.5})


def test_what_is_wrong_is_not_timed(variants: Callable[..., None]) -> None:
    variants(rudagraph=wrongly)
    eager, ours = measure(CASE, ["eager", "rudagraph"], repeats=3, seconds=5)
    assert not eager.error
    assert ours.error.startswith("output is off by 1.0e-02 of its largest value")
    assert ours.median_ms is None


def test_a_variant_may_be_as_inexact_as_eager(variants: Callable[..., None]) -> None:
    def coarse() -> Workload:
        work = small()
        return Workload(work.module.bfloat16(), (work.args[0].detach().bfloat16(),))

    variants(rudagraph=slowly)
    _, ours = measure(Case("coarse", coarse, slack=4e-3), ["eager", "rudagraph"], 2, 5)
    assert not ours.error
    _, ours = measure(Case("coarse", coarse, slack=-1.0), ["eager", "rudagraph"], 2, 5)
    assert "is off by" in ours.error


def test_the_document_and_the_exit_status(tmp_path: Path, variants: Callable[..., None]) -> None:
    variants(rudagraph=wrongly)
    path = tmp_path / "deep" / "result.json"
    arguments = ["--json", str(path), "--repeats", "2"]
    arguments += ["--variant", "eager", "--variant", "rudagraph"]
    assert benchmark("small", [CASE], arguments) == 1
    variants(rudagraph=slowly)
    assert benchmark("small", [CASE], arguments, means={"eager": 9.0}) == 0
    document = json.loads(path.read_text())
    assert set(document) == {"benchmark", "date", "device", "threads", "versions", "results"}
    # The package's metadata leaves out the build, such as +cu130.
    assert document["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    eager, ours, mean = document["results"]
    assert (eager["case"], eager["variant"]) == ("small", "eager")
    assert "error" not in eager and "ratios" not in eager
    assert ours["peak_bytes"] > 0
    assert mean["ratios"] == {"eager": pytest.approx(ours["ratios"]["eager"])}


def test_a_record_leaves_out_what_does_not_apply() -> None:
    assert Result("case", "eager", median_ms=1.23456789).as_dict() == {
        "case": "case",
        "variant": "eager",
        "median_ms": 1.2346,
    }


@pytest.mark.parametrize("case", cpu_ops.CASES, ids=lambda case: case.name)
def test_operators_run_in_eager(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_ops, "ROWS", 4)
    step = harness.Step(case, "eager")
    assert all(torch.isfinite(value).all() for value in step.values())


def test_the_block_drops_only_where_asked() -> None:
    torch.manual_seed(1)
    with_dropout = cpu_step.block(0.5, torch.float32, rows=8, width=32)
    without = cpu_step.block(0.0, torch.float32, rows=8, width=32)
    assert torch.equal(with_dropout.args[0], without.args[0])
    losses = {with_dropout.module(*with_dropout.args).item() for _ in range(3)}
    assert len(losses) == 3
    assert without.module(*without.args).item() == without.module(*without.args).item()
