"""Progress of a compilation that takes more than a second, on a terminal or in a notebook.

Input: the stages and the kernels as they come. Output: a line on standard error that disappears at
the end. It is drawn by rich where that is installed, imported only when there is something to draw;
otherwise, or where nobody looks, or with RUDAGRAPH_PROGRESS=0, nothing happens.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rudagraph.options import environment

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 1.0
# What is about to happen, as a person calls it.
STAGES = ("capture", "passes", "plan", "kernels")


class Report:
    """Takes note of where a compilation is; this one tells nobody."""

    def stage(self, name: str) -> None:
        """One of STAGES begins."""

    def kernels(self, done: int, total: int) -> None:
        """So many kernels have been compiled or found in the cache."""


SILENT = Report()


@contextmanager
def reported() -> Iterator[Report]:
    """A report that shows itself once a second has passed, where somebody may be looking."""
    if environment("RUDAGRAPH_PROGRESS").strip() == "0" or not _is_watched():
        yield SILENT
        return
    report = _Shown()
    timer = threading.Timer(_PATIENCE_SECONDS, report.start)
    timer.daemon = True
    timer.start()
    try:
        yield report
    finally:
        timer.cancel()
        report.stop()


def _is_watched() -> bool:
    """Whether standard error is a terminal, or this is a notebook."""
    if "ipykernel" in sys.modules:
        return True
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


class _Shown(Report):
    """Draws a bar; the timer's thread starts it, the compiling thread moves it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bar: Any = None
        self._task: Any = None
        self._state = (STAGES[0], 0, len(STAGES))
        self._is_over = False

    def stage(self, name: str) -> None:
        self._move(name, STAGES.index(name), len(STAGES))

    def kernels(self, done: int, total: int) -> None:
        self._move(f"kernels {done}/{total}", done, max(total, 1))

    def start(self) -> None:
        """Called by the timer: what cannot be drawn is not."""
        with self._lock:
            if self._is_over:
                return
            try:
                self._bar = _bar()
                self._bar.start()
            except Exception as error:  # no rich, or another display holds the terminal
                _LOG.debug("no progress is shown: %s", error)
                self._bar = None
                return
            text, done, total = self._state
            self._task = self._bar.add_task(text, completed=done, total=total)

    def stop(self) -> None:
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _move(self, text: str, done: int, total: int) -> None:
        with self._lock:
            self._state = (text, done, total)
            if self._bar is not None:
                self._bar.update(self._task, description=text, completed=done, total=total)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("compiling: {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
