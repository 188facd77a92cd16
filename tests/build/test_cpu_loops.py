"""Hints on loops: they land on jumps backwards, change speed, and fix the tree of a sum."""

from __future__ import annotations

import numpy as np
import pytest

from rudagraph.build.cpu import assembly
from rudagraph.build.cpu_loops import Request, requested, with_loop_hints
from rudagraph.schedule.kernel import KernelSource
from tests.build.conftest import run

LLVM = """define void @kernel() !dbg !7 {
entry:
  br label %"B6"
B6:
  br i1 true, label %"B8", label %"B9"
B8:
  %s = ADDITION
  br label %"B6"
B9:
  br label %"end"
end:
  ret void
}
"""
SUM = LLVM.replace("ADDITION", "fadd reassoc float %a, %b")
PLAIN = LLVM.replace("ADDITION", "fadd float %a, %b")


def kernel(count: int) -> KernelSource:
    lines = [
        "from rudagraph.build.cpu_language import *",
        f"INTERLEAVE = {count}" if count else "",
        "def kernel(begin, end, block, x, y):",
        "    for row in range(begin, end):",
        "        for j in range(1003):",
        "            at = row * 1003 + j",
        "            store_f32(y, at, tanh(load_f32(x, at)))",
    ]
    return KernelSource("interleaved", "\n".join(lines) + "\n", ("x", "y"), 4, 2, ("x",))


def test_only_jumps_backwards_carry_the_hint() -> None:
    text = with_loop_hints(PLAIN, Request(interleave=4), 32)
    assert [line for line in text.splitlines() if "!llvm.loop !" in line] == [
        '  br label %"B6", !llvm.loop !9'
    ]
    assert '!8 = !{!"llvm.loop.interleave.count", i32 4}\n!9 = distinct !{!9, !8}\n' in text
    assert with_loop_hints(PLAIN, Request(), 32) == PLAIN


@pytest.mark.parametrize(
    "length,lanes,vectors", [(0, 8, 2), (1000, 8, 2), (15, 8, 1), (9, 8, 1), (5, 4, 1), (1, 1, 1)]
)
def test_a_sum_is_cut_by_its_length(length: int, lanes: int, vectors: int) -> None:
    text = with_loop_hints(SUM, Request(length=length), 32)
    assert f'"llvm.loop.vectorize.width", i32 {lanes}}}' in text
    assert f'"llvm.loop.interleave.count", i32 {vectors}}}' in text


def test_short_loops_are_not_unrolled_before_they_are_vectorised() -> None:
    assert "unroll.disable" in with_loop_hints(PLAIN, Request(length=32), 32)
    assert "unroll.disable" not in with_loop_hints(PLAIN, Request(length=3), 32)
    assert "unroll.disable" not in with_loop_hints(PLAIN, Request(length=500), 32)


def test_the_text_of_a_kernel_asks() -> None:
    assert requested(kernel(4).text) == Request(interleave=4)
    assert requested("LENGTH = 96\nINTERLEAVE = 2\n") == Request(2, 96)
    assert requested(kernel(0).text) == Request()


def test_results_are_those_of_the_plain_loop() -> None:
    x = np.linspace(-9, 9, 4 * 1003, dtype=np.float32)
    plain, interleaved = np.zeros_like(x), np.zeros_like(x)
    run(kernel(0), x, plain, threads=1)
    run(kernel(4), x, interleaved, threads=1)
    assert np.array_equal(plain, interleaved)


def test_the_loop_does_hold_several_vectors() -> None:
    assert assembly(kernel(4)).count("vfmadd") > assembly(kernel(1)).count("vfmadd")
