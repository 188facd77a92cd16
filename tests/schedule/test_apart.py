"""Which buffers leave the arena, on hand-written lifetimes."""

from __future__ import annotations

import random

from rudagraph.schedule.apart import choose_apart
from rudagraph.schedule.memory import Interval, live_bytes

KIB = 1 << 10


def peak(arena: list[Interval], outside: list[Interval], chosen: frozenset[int]) -> int:
    moved = [arena[index] for index in chosen]
    rest = [interval for index, interval in enumerate(arena) if index not in chosen]
    return max(live_bytes(rest, 10)) + max(live_bytes(outside + moved, 10))


def test_what_is_gone_before_results_are_made_moves_out() -> None:
    residual, logits = Interval(4 * KIB, 0, 9), Interval(2 * KIB, 4, 5)
    gradient = Interval(3 * KIB, 6, 9)
    assert choose_apart([residual, logits], [gradient], 10, KIB) == {1}
    # Alive together they need their sum wherever they lie.
    longer = Interval(2 * KIB, 4, 9)
    assert choose_apart([residual, longer], [gradient], 10, KIB) == frozenset()


def test_small_buffers_stay() -> None:
    arena, outside = [Interval(2 * KIB, 0, 3)], [Interval(2 * KIB, 5, 9)]
    assert choose_apart(arena, outside, 10, 2 * KIB) == {0}
    assert choose_apart(arena, outside, 10, 2 * KIB + 1) == frozenset()


def test_a_gain_of_less_than_half_is_not_worth_it() -> None:
    arena = [Interval(4 * KIB, 0, 3), Interval(3 * KIB, 4, 9)]
    assert choose_apart(arena, [Interval(4 * KIB, 5, 9)], 10, KIB) == frozenset()


def test_one_after_another_until_nothing_helps() -> None:
    arena = [Interval(KIB, 0, end) for end in range(9)]
    outside = [Interval(KIB, start, 9) for start in range(1, 10)]
    chosen = choose_apart(arena, outside, 10, KIB)
    assert peak(arena, outside, frozenset()) == 18 * KIB
    assert peak(arena, outside, chosen) <= 12 * KIB


def test_no_choice_ever_raises_the_peak() -> None:
    draw = random.Random(0)

    def interval() -> Interval:
        first = draw.randrange(10)
        return Interval(64 * draw.randrange(1, 40), first, draw.randrange(first, 10))

    for _ in range(200):
        arena = [interval() for _ in range(draw.randrange(8))]
        outside = [interval() for _ in range(draw.randrange(8))]
        chosen = choose_apart(arena, outside, 10, 256)
        before = peak(arena, outside, frozenset())
        saved = sum(arena[index].bytes for index in chosen)
        assert peak(arena, outside, chosen) <= before - saved / 2
