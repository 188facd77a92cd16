"""Offsets from lifetimes: nothing alive together overlaps; the arena is near its lower bound."""

from hypothesis import given
from hypothesis import strategies as st

from rudagraph.schedule.memory import Interval, aligned, assign_offsets, live_bytes

intervals = st.lists(
    st.builds(
        lambda size, first, length: Interval(size, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 12),
        st.integers(0, 6),
    ),
    max_size=24,
)


def test_buffers_that_do_not_meet_share_memory():
    a, b, c = Interval(128, 0, 3), Interval(64, 0, 1), Interval(64, 2, 3)
    offsets, total = assign_offsets([a, b, c])
    assert offsets == (0, 128, 128)
    assert total == 192


def test_a_lifetime_includes_both_ends():
    offsets, total = assign_offsets([Interval(64, 0, 2), Interval(64, 2, 4)])
    assert sorted(offsets) == [0, 64]
    assert total == 128


def test_a_gap_between_long_lived_buffers_is_used():
    long_a, short, long_b, later = (
        Interval(640, 0, 9),
        Interval(256, 0, 1),
        Interval(192, 0, 9),
        Interval(128, 3, 4),
    )
    offsets, total = assign_offsets([long_a, short, long_b, later])
    assert total == 640 + 256 + 192
    assert offsets[3] == 640, "the later buffer takes the place of the one that ended"


@given(intervals)
def test_no_two_live_buffers_overlap(items):
    offsets, total = assign_offsets(items)
    for i, left in enumerate(items):
        assert offsets[i] % 64 == 0
        assert left.bytes == 0 or offsets[i] + left.bytes <= total
        for j, right in enumerate(items[:i]):
            meet = left.first <= right.last and right.first <= left.last
            if meet and left.bytes and right.bytes:
                apart = (
                    offsets[i] + left.bytes <= offsets[j] or offsets[j] + right.bytes <= offsets[i]
                )
                assert apart, (left, right)


@given(intervals)
def test_the_arena_is_at_least_what_is_alive(items):
    _, total = assign_offsets(items)
    live = live_bytes(items, 20)
    assert total >= max(live)
    assert max(live) >= max((aligned(item.bytes) for item in items), default=0)
