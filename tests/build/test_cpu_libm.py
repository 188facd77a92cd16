"""Calls of libm: a loop that makes them is vectorised like any other, so a sum has one tree."""

from __future__ import annotations

import numpy as np
import pytest

from rudagraph.build.cpu import compile_kernel
from rudagraph.build.cpu_libm import with_vector_forms
from rudagraph.schedule.elf import read_symbols
from rudagraph.schedule.kernel import KernelSource
from tests.build.conftest import run

LENGTH = 1003


def kernel(name: str, summand: str, kind: str) -> KernelSource:
    lines = [
        "from rudagraph.build.cpu_language import *",
        f"LENGTH = {LENGTH}",
        "def kernel(begin, end, block, x, y, total):",
        "    for row in range(begin, end):",
        f"        result = float{kind[1:]}(0.0)",
        f"        for j in range({LENGTH}):",
        f"            at = row * {LENGTH} + j",
        f"            a = load_{kind}(x, at)",
        f"            value = {summand}",
        "            result = accumulate_add(result, value)",
        f"            store_{kind}(y, at, value)",
        f"        store_{kind}(total, row, result)",
    ]
    return KernelSource(name, "\n".join(lines) + "\n", ("x", "y", "total"), 4, 2, ("x",))


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("summand", ["sin(a)", "pow(a, a)", "exp(a)", "tanh(a)", "log(a)"])
def test_a_sum_has_the_same_bits_when_its_loop_calls_libm(
    summand: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    dtype = {"f32": np.float32, "f64": np.float64}[kind]
    x = np.random.default_rng(3).uniform(0.1, 2, (4, LENGTH)).astype(dtype)
    values, copies = np.empty_like(x), np.empty_like(x)
    together, apart = np.empty(4, dtype), np.empty(4, dtype)
    run(kernel("together", summand, kind), x, values, together)
    run(kernel("apart", "a", kind), values, copies, apart)
    np.testing.assert_array_equal(together, apart)
    np.testing.assert_allclose(together, values.sum(1, dtype=np.float64), rtol=1e-5)
    # LLVM says on standard error where a loop could not be vectorised as it was told to.
    assert capfd.readouterr().err == ""


def test_a_vector_form_leaves_nothing_to_the_loader_but_the_function() -> None:
    code = compile_kernel(kernel("sines", "sin(a)", "f64")).code
    libm = {name for name in read_symbols(code, "sines").undefined if "rudagraph_" in name}
    assert libm == {"rudagraph_sin"}


def test_text_without_libm_is_unchanged() -> None:
    text = "declare double @llvm.fabs.f64(double)\n"
    assert with_vector_forms(text) is text
