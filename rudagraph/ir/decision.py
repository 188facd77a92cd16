"""Decision: what became of a forward value that backward needs, and why. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field

from rudagraph.ir.graph import Location


@dataclass(frozen=True, slots=True)
class Decision:
    """One value; costs are bytes of memory traffic that would take as long."""

    name: str
    bytes: int
    is_saved: bool
    reason: str
    again: int | None = None  # cost of computing it again; None where it may not be
    keep: int | None = None  # cost of keeping it; None where that was not weighed
    location: Location = field(default=Location())
