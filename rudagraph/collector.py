"""Python's garbage collector waits while a step is compiled.

Compilation makes hundreds of thousands of small objects, and keeps them or drops them by counting.
Each collection walks all of them, a full one all of PyTorch too: a third of the time, to find
nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def collector_waiting() -> Iterator[Callable[[], object]]:
    """No automatic collection meanwhile; who had switched it off finds it off.

    Gives what collects the objects made since, for the place where cycles have been left.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield _collect_young
    finally:
        if was_enabled:
            _make_old()
            gc.enable()


def _collect_young() -> int:
    return gc.collect(0)


def _make_old() -> None:
    """What has been made counts as old: the first collection after this would walk all of it.

    Freezing puts all objects aside, and thawing among the oldest; what the user froze stays so.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
