"""Interleaving: the hint lands on jumps backwards, and changes speed, never a result."""

from __future__ import annotations

import numpy as np

from rudagraph.build.cpu import assembly
from rudagraph.build.cpu_loops import requested, with_interleaving
from rudagraph.schedule.kernel import KernelSource
from tests.build.conftest import run

LLVM = """define void @kernel() !dbg !7 {
entry:
  br label %"B6"
B6:
  br i1 true, label %"B8", label %"B9"
B8:
  br label %"B6"
B9:
  br label %"end"
end:
  ret void
}
"""


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
    text = with_interleaving(LLVM, 4)
    assert [line for line in text.splitlines() if "!llvm.loop !" in line] == [
        '  br label %"B6", !llvm.loop !9'
    ]
    assert '!8 = !{!"llvm.loop.interleave.count", i32 4}\n!9 = distinct !{!9, !8}\n' in text
    assert with_interleaving(LLVM, 0) is LLVM


def test_the_text_of_a_kernel_asks() -> None:
    assert requested(kernel(4).text) == 4
    assert requested(kernel(0).text) == 0


def test_results_are_those_of_the_plain_loop() -> None:
    x = np.linspace(-9, 9, 4 * 1003, dtype=np.float32)
    plain, interleaved = np.zeros_like(x), np.zeros_like(x)
    run(kernel(0), x, plain, threads=1)
    run(kernel(4), x, interleaved, threads=1)
    assert np.array_equal(plain, interleaved)


def test_the_loop_does_hold_several_vectors() -> None:
    assert assembly(kernel(4)).count("vfmadd") > assembly(kernel(1)).count("vfmadd")
