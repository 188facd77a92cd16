"""Which buffers leave the arena for memory of their own, so that others can have it afterwards.

An arena is there from the first launch to the last, whatever lies in it. What backward returns is
allocated beside it, though the residuals are being used up meanwhile:

    arena     | residuals      logits |  . . .  |    one size throughout
    returned  |                       |  g g g g|    added on top
    apart     |                  l l l|         |    gone before most of g is there

Greedy over lifetimes: the buffer that lowers the peak most moves out first, until none lowers it by
half its own size. Ties go to the first. A pure function; `live_bytes` stands for the arena's size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate

from rudagraph.schedule.memory import Interval, live_bytes
from rudagraph.schedule.plan import Buffer, BufferKind

ALLOCATED = frozenset((BufferKind.OUTPUT, BufferKind.LIBRARY, BufferKind.APART))


def move_apart(buffers: Sequence[Buffer], returned: Collection[int], least: int) -> list[Buffer]:
    """The buffers, some of the arena apart instead; what is `returned` stays where it is."""
    inside = [
        index
        for index, buffer in enumerate(buffers)
        if buffer.kind is BufferKind.ARENA and index not in returned
    ]
    outside = [interval_of(buffer) for buffer in buffers if buffer.kind in ALLOCATED]
    positions = 1 + max((buffer.last for buffer in buffers), default=0)
    arena = [interval_of(buffers[index]) for index in inside]
    chosen = {inside[place] for place in choose_apart(arena, outside, positions, least)}
    return [
        replace(buffer, kind=BufferKind.APART) if index in chosen else buffer
        for index, buffer in enumerate(buffers)
    ]


def interval_of(buffer: Buffer) -> Interval:
    """Its size and lifetime."""
    return Interval(buffer.bytes, buffer.first, buffer.last)


def choose_apart(
    arena: Sequence[Interval], outside: Sequence[Interval], positions: int, least: int
) -> frozenset[int]:
    """Indices into `arena` of buffers of at least `least` bytes that move out."""
    inside = list(live_bytes(arena, positions))
    beside = list(live_bytes(outside, positions))
    candidates = {index for index, interval in enumerate(arena) if interval.bytes >= least}
    chosen: set[int] = set()
    while candidates:
        # Highest points before and after each position: a move changes only its own lifetime.
        inside_peaks, beside_peak = _peaks_around(inside), max(beside)
        peak = max(inside) + beside_peak

        def gain(
            index: int,
            peak: int = peak,
            peaks: tuple[list[int], list[int]] = inside_peaks,
            beside_peak: int = beside_peak,
        ) -> int:
            moved = arena[index]
            here = slice(moved.first, moved.last + 1)
            rest = max(peaks[0][moved.first], peaks[1][moved.last + 1])
            lowered = max(rest, max(inside[here]) - moved.bytes)
            return peak - lowered - max(beside_peak, max(beside[here]) + moved.bytes)

        best = max(sorted(candidates), key=gain)
        if gain(best) * 2 < arena[best].bytes:
            break
        candidates.discard(best)
        chosen.add(best)
        for position in range(arena[best].first, arena[best].last + 1):
            inside[position] -= arena[best].bytes
            beside[position] += arena[best].bytes
    return frozenset(chosen)


def _peaks_around(live: list[int]) -> tuple[list[int], list[int]]:
    """The most before each position, and the most from each position on; nothing is 0."""
    before = [0, *accumulate(live, max)]
    after = [0, *accumulate(reversed(live), max)][::-1]
    return before, after
