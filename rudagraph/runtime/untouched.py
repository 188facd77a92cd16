"""Tells dictionaries that nobody has written to since they were last compared.

PyTorch counts the writes to a dictionary for its own compiler's guards: reading the counts costs a
third of comparing the contents. Invariant: a dictionary that was written to is never untouched;
where the count is missing, none ever is, and contents are compared at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Versions = list[int]


class Untouched:
    """A set of dictionaries, and the versions that they had at the last comparison."""

    def __init__(self, tables: Sequence[dict[str, Any]]) -> None:
        self._tables = tables
        self._version = _version_of()
        self._compared: Versions | None = None

    def versions(self) -> Versions | None:
        """What to `remember` after a comparison that begins now; None if writes are not counted."""
        if self._version is None:
            return None
        return [*map(self._version, self._tables)]

    def since(self, versions: Versions | None) -> bool:
        """Whether these are the versions of the last comparison."""
        return versions is not None and versions == self._compared

    def remember(self, versions: Versions | None) -> None:
        self._compared = versions


def _version_of() -> Callable[[dict[str, Any]], int] | None:
    try:
        from torch._C._dynamo.guards import dict_version

        probe: dict[str, Any] = {"a": 1}
        before = dict_version(probe)
        probe["a"] = 2
        counted = before != dict_version(probe)
    except (ImportError, TypeError, RuntimeError, AttributeError):
        return None
    version: Callable[[dict[str, Any]], int] = dict_version
    return version if counted else None
