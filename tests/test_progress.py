"""Progress shows on a terminal, after a while, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import rudagraph as rg
from rudagraph import progress

SCRIPT = """
import sys, time
from rudagraph import progress
progress._PATIENCE_SECONDS = {patience}
with progress.reported() as report:
    report.stage("capture")
    time.sleep({work})
    report.kernels(3, 7)
    time.sleep(0.3)
print("rich" in sys.modules)
"""


def on_a_terminal(patience: float, work: float = 0.3, **environment: str) -> tuple[str, str]:
    """What a process writes to standard error, which is a terminal, and to standard output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(patience=patience, work=work)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1", **environment},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    return seen.decode(errors="replace"), out


def test_stages_and_kernels_show_on_a_terminal() -> None:
    pytest.importorskip("rich")
    seen, out = on_a_terminal(patience=0.05)
    assert "compiling: capture" in seen
    assert "compiling: kernels 3/7" in seen
    assert "True" in out


@pytest.mark.parametrize(
    ("patience", "environment"), [(60.0, {}), (0.05, {"RUDAGRAPH_PROGRESS": "0"})]
)
def test_nothing_shows_before_its_time_or_when_it_is_off(
    patience: float, environment: dict[str, str]
) -> None:
    seen, out = on_a_terminal(patience, work=0.1, **environment)
    assert seen == ""
    assert "False" in out  # rich is not even imported


def test_nothing_shows_where_standard_error_is_no_terminal() -> None:
    script = SCRIPT.format(patience=0.05, work=0.2)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "False\n")


def test_without_rich_a_compilation_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> object:
        raise ImportError("no rich")

    monkeypatch.setattr(progress, "_bar", absent)
    monkeypatch.setattr(progress, "_is_watched", lambda: True)
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0.0)
    before = threading.active_count()
    with progress.reported() as report:
        report.stage("plan")
        report.kernels(1, 2)
    assert threading.active_count() <= before + 1


def test_compile_tells_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []

    class Told(progress.Report):
        def stage(self, name: str) -> None:
            told.append(name)

        def kernels(self, done: int, total: int) -> None:
            told.append((done, total))

    monkeypatch.setattr(progress, "SILENT", Told())
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    rg.StaticGraph(model).compile(torch.ones(2, 4))
    assert told[:3] == ["capture", "passes", "plan"]
    done, total = told[-1]  # type: ignore[misc]
    assert done == total > 0
