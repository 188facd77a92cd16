"""Lifetimes -> offsets: place buffers in one arena so that those alive together never overlap.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
2020): the largest buffer first, each at the lowest gap that fits among the buffers already placed
whose lifetimes meet its own. Ties go to the earlier, then to the one listed first.

    bytes |  a a a a            a pure function: same intervals, same offsets
          |  b b . c c c        b and c share an offset, since b ends before c begins
          +---------------> time
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # a cache line, and the widest vector register


_Placed = tuple[int, int, int, int]  # offset, end, and first and last of its interval


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of `bytes` alive at the positions first..last, both included."""

    bytes: int
    first: int
    last: int


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // alignment) * alignment


def assign_offsets(intervals: Sequence[Interval]) -> tuple[tuple[int, ...], int]:
    """An offset for each interval, and the arena's size in bytes."""
    order = sorted(
        range(len(intervals)),
        key=lambda index: (-intervals[index].bytes, intervals[index].first, index),
    )
    offsets = [0] * len(intervals)
    placed: list[_Placed] = []  # by offset
    for index in order:
        interval = intervals[index]
        size = aligned(interval.bytes)
        if size == 0:
            continue
        offset = _lowest_gap(interval.first, interval.last, size, placed)
        offsets[index] = offset
        insort(placed, (offset, offset + size, interval.first, interval.last))
    return tuple(offsets), max((placement[1] for placement in placed), default=0)


def _lowest_gap(first: int, last: int, size: int, placed: list[_Placed]) -> int:
    # For each buffer over all others: plain numbers, for attributes took most of the time.
    offset = 0
    for start, end, from_here, to_here in placed:
        if to_here < first or last < from_here:
            continue
        if start - offset >= size:
            return offset
        if end > offset:  # max() would be a call
            offset = end
    return offset


def live_bytes(intervals: Sequence[Interval], positions: int) -> tuple[int, ...]:
    """Bytes alive at each position, alignment included: a lower bound of any arena."""
    change = [0] * (positions + 1)
    for interval in intervals:
        change[interval.first] += aligned(interval.bytes)
        change[min(interval.last, positions - 1) + 1] -= aligned(interval.bytes)
    live, total = [], 0
    for delta in change[:positions]:
        total += delta
        live.append(total)
    return tuple(live)
