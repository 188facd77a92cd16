"""A memory budget in bytes: save less until the plan fits.

Input: the joint graph, what the policy would save, and a function that plans a choice. Output: the
cheapest plan whose peak is within the budget. The passes propose (one sequence of ever fewer saved
values), the planner's peak decides. Invariant: a smaller budget never gives a larger peak, since it
takes a later candidate of the same sequence; one that no candidate meets is refused with the
smallest that can be met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from rudagraph.errors import MemoryBudgetError
from rudagraph.ir.graph import Graph, Value
from rudagraph.passes.evict import evictions


class Planned(Protocol):
    """What the search needs to know of a candidate."""

    @property
    def peak_bytes(self) -> int: ...


_Candidate = TypeVar("_Candidate", bound=Planned)

# Candidates tried between saving what the policy wants and saving as little as possible.
_STEPS = 16


def plan_within(
    joint: Graph,
    saved: frozenset[Value],
    budget: int | None,
    plan_saving: Callable[[frozenset[Value]], _Candidate],
) -> _Candidate:
    """The first candidate within the budget; the policy's own where there is no budget."""
    first = plan_saving(saved)
    if budget is None or first.peak_bytes <= budget:
        return first
    smallest = first.peak_bytes
    for choice in _ladder(evictions(joint, saved)):
        candidate = plan_saving(choice)
        if candidate.peak_bytes <= budget:
            return candidate
        smallest = min(smallest, candidate.peak_bytes)
    raise MemoryBudgetError(
        f"a memory budget of {budget} bytes cannot be met: the step needs at least {smallest} "
        f"bytes ({smallest / 2**20:.1f} MiB) beyond the weights, gradients and outputs included",
        "StaticGraph(memory_budget=...)",
        f"give at least {smallest}, keep fewer outputs (outputs=...), or use a smaller batch",
    )


def _ladder(sequence: list[frozenset[Value]]) -> Iterator[frozenset[Value]]:
    """Evenly spaced members of the sequence after its first, the last included."""
    last = len(sequence) - 1
    steps = min(_STEPS, last)
    for step in range(1, steps + 1):
        yield sequence[step * last // steps]
