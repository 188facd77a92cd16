"""A memory budget in bytes: save less until the plan fits.

Input: the joint graph, what the policy would save, and a function that plans a choice. Output: the
first plan whose peak is within the budget. The passes propose (ever fewer saved values, and those
between segments of forward, least work first), the planner's peak decides. Invariant: a smaller
budget never gives a larger peak, since it takes a later candidate of the same sequence; one that no
candidate meets is refused with the smallest that can be met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from rudagraph.errors import MemoryBudgetError
from rudagraph.ir.graph import Graph, Value
from rudagraph.passes.checkpoint import checkpoints
from rudagraph.passes.evict import evictions, work_again
from rudagraph.passes.recompute import JointView


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
    for choice in _choices(joint, saved):
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


def _choices(joint: Graph, saved: frozenset[Value]) -> list[frozenset[Value]]:
    """What to try in turn: least work first, and no more bytes saved for more work."""
    view = JointView(joint)
    choices = dict.fromkeys([*_ladder(evictions(view, saved)), *checkpoints(view, saved)])
    fewest = _bytes(saved)
    kept = []
    for choice in sorted(choices, key=lambda choice: work_again(view, choice)):
        if _bytes(choice) <= fewest:
            fewest = _bytes(choice)
            kept.append(choice)
    return kept


def _bytes(values: frozenset[Value]) -> int:
    return sum(value.type.bytes for value in values)


def _ladder(sequence: list[frozenset[Value]]) -> Iterator[frozenset[Value]]:
    """Evenly spaced members of the sequence after its first, the last included."""
    last = len(sequence) - 1
    steps = min(_STEPS, last)
    for step in range(1, steps + 1):
        yield sequence[step * last // steps]
