"""What the build makes: vector code, no stray symbols, the same bytes each time, clear errors."""

import re
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from rudagraph.build import cpu
from rudagraph.build.cpu import assembly, compile_kernel
from rudagraph.errors import BuildError
from rudagraph.schedule.elf import read_symbols
from rudagraph.schedule.kernel import EXTERNAL_SYMBOLS, KernelSource
from tests.build.support import elementwise_source

HEADER = "from rudagraph.build.cpu_language import *\n\n\n"
needs_avx2 = pytest.mark.skipif(
    not llvm.get_host_cpu_features().get("avx2"), reason="the registers named here are AVX2's"
)


def source(body: str, *parameters: str, **options) -> KernelSource:
    """A kernel of these statements, after a loop over its rows."""
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    signature = ", ".join(("begin", "end", "block", *parameters))
    text = f"{HEADER}def kernel({signature}):\n    for row in range(begin, end):\n{lines}"
    defaults = {"name": "sample", "extent": 64, "blocks": 4}
    return KernelSource(text=text, parameters=parameters, **(defaults | options))


def loops(text: str) -> list[str]:
    """Bodies of the innermost loops of `kernel`: from a label to a jump back to it."""
    body = text[text.index("\nkernel:") :].split(".Lfunc_end")[0]
    return re.findall(r"\n(\.L\w+):\n((?:(?!\n\.L\w+:).)*?\n\tj\w+\t\1\n)", body, re.DOTALL)


def assert_vector_loop(text: str, instruction: str) -> None:
    body = text[text.index("\nkernel:") :].split(".Lfunc_end")[0]
    assert "call" not in body, "the loop calls a function"
    found = [loop for _, loop in loops(text) if re.search(rf"\t{instruction}\t.*[yz]mm", loop)]
    assert found, f"no loop uses {instruction} on vector registers"


REDUCTIONS = {
    "accumulate_add(total, load_f32(x, row * 1024 + j))": "vaddps",
    "accumulate_max(total, load_f32(x, row * 1024 + j))": "vmaxps",
    "accumulate_min(total, load_f32(x, row * 1024 + j))": "vminps",
    "accumulate_add(total, exp_nonpositive(load_bf16(x, row * 1024 + j)))": "vaddps",
}


@needs_avx2
@pytest.mark.parametrize("step", REDUCTIONS)
def test_reductions_vectorise(step):
    kernel = source(
        f"total = float32(0)\nfor j in range(1024):\n    total = {step}\nstore_f32(y, row, total)",
        "x",
        "y",
        read_only=("x",),
    )
    assert_vector_loop(assembly(kernel), REDUCTIONS[step])


@needs_avx2
def test_a_plain_sum_keeps_its_order():
    kernel = source(
        "total = float32(0)\nfor j in range(1024):\n    total = total + load_f32(x, j)\n"
        "store_f32(y, row, total)",
        "x",
        "y",
    )
    assert not re.search(r"\tvaddps\t.*[yz]mm", assembly(kernel))


VECTORISED = (
    *("exp", "exp_nonpositive", "expm1", "exp2", "log", "log2", "log10", "log1p"),
    *(
        "sigmoid",
        "silu",
        "tanh",
        "erf",
        "gelu_erf",
        "gelu_tanh",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "floor",
        "round",
    ),
    *("relu", "abs", "sign", "round_bf16", "round_f16"),
)


@needs_avx2
@pytest.mark.parametrize("name", VECTORISED)
def test_f32_functions_vectorise(name):
    kernel = elementwise_source([(f"{name}(x)", "bf16")], {"x": "f16"}, 4096)
    assert_vector_loop(assembly(kernel), "v[a-z0-9]+")


@needs_avx2
@pytest.mark.parametrize("name", ["silu_backward", "gelu_erf_backward", "gelu_tanh_backward"])
def test_derivatives_vectorise(name):
    kernel = elementwise_source([(f"{name}(g, x)", "f32")], {"g": "f32", "x": "f32"}, 4096)
    assert_vector_loop(assembly(kernel), "vmulps")


@needs_avx2
def test_operators_are_not_contracted():
    kernel = elementwise_source([("x * y + z", "f32")], dict.fromkeys("xyz", "f32"), 4096)
    assert "vfmadd" not in assembly(kernel)
    kernel = elementwise_source([("fma(x, y, z)", "f32")], dict.fromkeys("xyz", "f32"), 4096)
    assert "vfmadd" in assembly(kernel)


@needs_avx2
def test_pointers_are_known_not_to_overlap():
    kernel = source(
        "for j in range(1024):\n    store_f32(y, j, load_f32(x, j) + load_f32(w, j))", *"xwy"
    )
    text = assembly(kernel)
    assert_vector_loop(text, "vaddps")
    # A runtime check of overlap would keep a scalar loop beside the vector one.
    assert "vaddss" not in text


def test_an_object_defines_its_entry_and_needs_nothing_else():
    code = compile_kernel(
        source("store_f32(x, row, float32(pow(load_f32(x, row), float32(3))))", "x")
    )
    symbols = read_symbols(code.code)
    assert symbols.defined == {code.entry}
    assert symbols.undefined <= EXTERNAL_SYMBOLS
    assert "rudagraph_pow" in symbols.undefined


def test_the_same_kernel_gives_the_same_bytes():
    kernel = source("store_f32(y, row, exp(load_f32(x, row)))", "x", "y")
    assert compile_kernel(kernel) == compile_kernel(kernel)


def test_an_undefined_symbol_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(cpu, "EXTERNAL_SYMBOLS", frozenset({"omp_get_thread_num"}))
    with pytest.raises(BuildError, match="kernel sample needs omp_get_num_threads, rudagraph_sin"):
        compile_kernel(source("store_f32(x, row, sin(load_f32(x, row)))", "x"))


@pytest.mark.parametrize(
    ("body", "message", "line"),
    [
        (
            "store_f32(x, row, load_f64(x, row))",
            "argument 3 of store_f32 is f64, it must be f32",
            6,
        ),
        ("store_i32(x, row, load_i32(x, row) + load_i32(x, row))", "it must be i32", 6),
        (
            "store_f32(x, row, maximum(load_f32(x, row), 0.0))",
            "arguments of one kind, got f32, f64",
            6,
        ),
        ("store_f32(x, row, missing(row))", "missing", 6),
        (
            "total = float32(0)\nstore_f32(x, row, sigmoid(row))",
            "sigmoid is not defined for i64",
            7,
        ),
    ],
)
def test_mistakes_name_kernel_line_and_reason(body, message, line):
    with pytest.raises(BuildError) as caught:
        compile_kernel(source(body, "x", name="rms_norm_3"))
    assert message in caught.value.what
    assert caught.value.where.startswith(f"kernel rms_norm_3, line {line}: ")


def test_text_that_is_not_python_is_refused():
    with pytest.raises(BuildError, match="not a Python module") as caught:
        compile_kernel(KernelSource("broken", "def kernel(:\n", (), 1, 1))
    assert caught.value.where == "kernel broken, line 1"


def test_a_kernel_with_other_parameters_is_refused():
    kernel = KernelSource(
        "other", f"{HEADER}def kernel(begin, end, block, x):\n    pass\n", ("y",), 1, 1
    )
    with pytest.raises(BuildError, match=r"does not define kernel\(begin, end, block, y\)"):
        compile_kernel(kernel)


def test_numba_itself_stays_usable_beside_the_build():
    script = f"""
import numba, numpy
from rudagraph.build.cpu import compile_kernel
from rudagraph.schedule.kernel import KernelSource
text = {HEADER!r} + "def kernel(begin, end, block, x):\\n    store_f32(x, block, float32(1))\\n"
compile_kernel(KernelSource("first", text, ("x",), 1, 1))

@numba.njit
def ones(number):
    return numpy.ones(3) + number

assert ones(2.0).tolist() == [3.0] * 3
compile_kernel(KernelSource("second", text, ("x",), 1, 1))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_launch_that_cannot_be_is_refused():
    with pytest.raises(BuildError, match="has 64 rows in 0 blocks"):
        compile_kernel(source("store_f32(x, row, float32(0))", "x", blocks=0))
