"""Rows written past the caches arrive as they are, wherever they begin and end."""

from __future__ import annotations

import numpy as np
import pytest

from rudagraph.build.cpu import assembly
from rudagraph.schedule.kernel import KernelSource
from tests.build.support import run

TEXT = """from rudagraph.build.cpu_language import *


def kernel(begin, end, block, target, source):
    for row in range(begin, end):
        stream(target, PLACE + row * SIZE, source, SIZE)
    finish_streams(target)
"""


def source(place: int, size: int) -> KernelSource:
    text = TEXT.replace("PLACE", str(place)).replace("SIZE", str(size))
    return KernelSource("stream", text, ("target", "source"), 3, 1, ("source",))


@pytest.mark.parametrize("place", [0, 32, 64, 4, 31])
@pytest.mark.parametrize("size", [4096, 128, 192, 100, 3, 0])
def test_streamed_bytes_are_those_of_a_copy(place: int, size: int) -> None:
    memory = np.full(4096 * 4, 7, np.uint8)
    skipped = -memory.ctypes.data % 64
    target = memory[skipped : skipped + 3 * size + 128]
    row = np.random.default_rng(size).integers(0, 255, max(size, 1)).astype(np.uint8)
    wanted = target.copy()
    wanted[place : place + 3 * size] = np.tile(row[:size], 3)
    run(source(place, size), target, row)
    np.testing.assert_array_equal(target, wanted)
    assert (memory[:skipped] == 7).all() and (memory[skipped + len(target) :] == 7).all()


def test_streams_pass_by_the_caches_and_are_waited_for() -> None:
    text = assembly(source(0, 4096))
    if "x86" in text or "%ymm" in text or "%zmm" in text:
        assert "vmovnt" in text
        assert "mfence" in text or "lock" in text
