"""Rows of scratch and of partial sums: apart from each other, and apart in a page."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rudagraph.codegen.memory import Scratch, lay_out_partials
from rudagraph.ir.types import DType


@pytest.mark.parametrize("bytes", [2048, 4000, 4096, 8192, 5000])
def test_long_rows_begin_at_different_places_of_a_page(bytes: int) -> None:
    scratch = Scratch(0)
    for number in range(9):
        scratch.add(f"row{number}", bytes)
    starts = [start for _, start in scratch.rows]
    assert all(start % 64 == 0 for start in starts)
    assert all(later - start >= bytes for start, later in pairwise(starts))
    assert scratch.block_bytes >= starts[-1] + bytes and scratch.block_bytes % 64 == 0
    places = sorted(start % 4096 for start in starts)
    gaps = [later - place for place, later in pairwise(places)]
    assert min(gaps) >= 192


def test_short_rows_lie_close() -> None:
    scratch = Scratch(0)
    for number in range(3):
        scratch.add(f"row{number}", 100)
    assert [start for _, start in scratch.rows] == [0, 128, 256]
    assert scratch.block_bytes == 384


@pytest.mark.parametrize("apart", [False, True])
def test_partials_of_a_block_do_not_overlap(apart: bool) -> None:
    sums = [(0, DType.F32, 1024, True), (2, DType.F64, 1, False), (3, DType.F32, 1024, True)]
    partials, step = lay_out_partials(sums, workspace=1, apart=apart)
    ends = [p.offset + p.columns * p.dtype.size for p in partials]
    assert all(end <= p.offset for end, p in zip(ends, partials[1:], strict=False))
    assert ends[-1] <= step and step % 64 == 0
    assert {p.step for p in partials} == {step} and {p.workspace for p in partials} == {1}
    assert (partials[2].offset % 4096 == partials[0].offset % 4096) is False or not apart
