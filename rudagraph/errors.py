"""Every error a user can meet, in one template: what happened, where, what to do.

Input: the three texts. Output: an exception whose message a person can act on.
Invariant: nothing but these classes is raised on purpose for a user's mistake or for an
unsupported program; each survives pickling, because kernels are built in other processes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RudagraphError(Exception):
    """Base of all errors; `where` names module path, file:line or IR line; `hint` the way out."""

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {_indented(self.where)}")
        if self.hint:
            lines.append(f"  what to do: {_indented(self.hint)}")
        return "\n".join(lines)


class UsageError(RudagraphError):
    """The interface was used in a way that cannot work: an option, a path, an order of calls."""


class UnsupportedError(RudagraphError):
    """The module does something that a static training step cannot hold."""


class ContractError(RudagraphError):
    """A call differs from what the step was compiled for."""


class MemoryBudgetError(RudagraphError):
    """The memory budget cannot be met; the message names the smallest that can."""


class OutOfMemoryError(RudagraphError):
    """A device has less memory than a step needs; the message names the planned figure."""


class BuildError(RudagraphError):
    """Machine code for a kernel could not be made or loaded."""


class ParseError(RudagraphError):
    """A text is not IR; the message shows line and column."""


class VerifyError(RudagraphError):
    """A graph or plan breaks a rule of the IR: a fault of the compiler, not of the user."""


def suggest(name: str, valid: Iterable[str]) -> str:
    """Text for an unknown name: the closest valid one, if any, and the whole list."""
    names = sorted(valid)
    listing = "valid are " + ", ".join(names) if names else "there are none"
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}? {listing}" if close else listing


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
