"""The CUDA language and build: functions against PyTorch, tiles, PTX, cubins, errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rudagraph.build import cpu_language, cuda_language
from rudagraph.build.cuda import assemble, compile_kernel, compile_ptx
from rudagraph.build.cuda_target import capability
from rudagraph.build.pool import compile_all
from rudagraph.build.ptx import LATEST_VERSION, facts, normalise
from rudagraph.errors import BuildError
from rudagraph.ir import random
from rudagraph.schedule.kernel import CudaLaunch, KernelSource
from tests.build import ptx_emulator

PREAMBLE = "from rudagraph.build.cuda_language import *\n"
TORCH = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
TORCH |= {"i64": torch.int64, "i32": torch.int32, "b8": torch.bool, "u8": torch.uint8}
COUNT = 256


def source(
    text: str,
    parameters: tuple[str, ...],
    *,
    threads: int = 32,
    blocks: int = 1,
    target: str = "sm_90",
) -> KernelSource:
    launch = CudaLaunch(target, threads)
    return KernelSource("kernel", PREAMBLE + text, parameters, blocks, blocks, cuda=launch)


def elementwise(expression: str, kinds: dict[str, str], result: str) -> KernelSource:
    """Eight neighbours a thread, as tiles."""
    loads = "".join(
        f"    {name} = vector.load_{kind}({name}_, at)\n" for name, kind in kinds.items()
    )
    parameters = (*(f"{name}_" for name in kinds), "out")
    text = (
        "\nvector = Vector(8)\n\n\n"
        f"def kernel({', '.join(parameters)}):\n"
        f"    at = (block_index() * 32 + thread_index()) * 8\n{loads}"
        f"    vector.store_{result}(out, at, {expression})\n"
    )
    return source(text, parameters)


def emulate(kernel: KernelSource, *arrays: np.ndarray) -> None:
    memory = ptx_emulator.Memory()
    addresses = [memory.add(array) for array in arrays]
    assert kernel.cuda is not None
    text = compile_ptx(kernel)
    ptx_emulator.run(text, kernel.blocks, kernel.cuda.threads, addresses, memory)
    memory.copy_back()


def evaluate(expression: str, result: str = "f32", **operands: torch.Tensor) -> torch.Tensor:
    names = {dtype: name for name, dtype in TORCH.items()}
    kinds = {name: names[tensor.dtype] for name, tensor in operands.items()}
    out = torch.zeros(COUNT, dtype=TORCH[result])
    arrays = [tensor.contiguous().view(torch.uint8).numpy() for tensor in (*operands.values(), out)]
    emulate(elementwise(expression, kinds, result), *arrays)
    return out


def numbers(
    low: float = -6.0, high: float = 6.0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    values = torch.linspace(low, high, COUNT - 4, dtype=torch.float64)
    special = torch.tensor([0.0, -0.0, math.inf, math.nan])
    return torch.cat([values, special.double()]).to(dtype)


# -- the language


def test_cuda_speaks_the_language_of_the_cpu() -> None:
    rows_of_words = {"philox_row", "philox_row_32"}
    # A GPU rounds to bf16 in one instruction, NaNs included.
    rounding_by_integers = {"settled", "nearest_bf16", "store_bf16_nearest"}
    # Stores past caches that a GPU does not have, and GELU's slope apart from its product.
    stores = {"stream", "finish_streams"}
    slopes = {"gelu_erf_slope", "gelu_tanh_slope"}
    lacking = set(cpu_language.__all__) - set(cuda_language.__all__)
    lacking -= rows_of_words | rounding_by_integers | stores | slopes
    assert not lacking


UNARY = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "abs": torch.abs,
    "neg": torch.neg,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "sign": torch.sign,
    "relu": torch.relu,
}
POSITIVE = {
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
}


@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_elementary_functions(name: str, dtype: str) -> None:
    x = numbers(0.01, 50.0) if name in POSITIVE else numbers()
    x = x.to(TORCH[dtype])
    wanted = {**UNARY, **POSITIVE}[name](x.double())
    got = evaluate(f"{name}(x)", dtype, x=x).double()
    error = 3e-7 if dtype == "f32" else 1e-14
    scale = x.double().abs() if name.startswith("gelu") else wanted.abs()
    inside = torch.isfinite(wanted)
    assert ((got - wanted).abs() <= error * scale.clamp_min(1e-3))[inside].all()
    assert torch.equal(got[~inside].isnan(), wanted[~inside].isnan())
    assert torch.equal(got[wanted.isinf()], wanted[wanted.isinf()])


def test_derivatives_of_activations() -> None:
    x = numbers()[:252].double().requires_grad_()
    for name, function in (
        ("silu_backward", torch.nn.functional.silu),
        ("gelu_erf_backward", torch.nn.functional.gelu),
        ("gelu_tanh_backward", lambda v: torch.nn.functional.gelu(v, approximate="tanh")),
    ):
        (wanted,) = torch.autograd.grad(function(x).sum(), x)
        padded = torch.nn.functional.pad(x.detach().float(), (0, 4))
        got = evaluate(f"{name}(float32(1.0), x)", x=padded)[:252].double()
        assert (got - wanted).abs().max() < 1e-6, name


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
def test_storage_rounds_as_pytorch_does(dtype: str) -> None:
    x = numbers(-70000.0, 70000.0, torch.float64)
    x[:20] = 1 + torch.arange(20) * 2.0**-9
    wide = x.float() if dtype != "f64" else x
    got = evaluate("x", dtype, x=wide)
    assert torch.equal(got.view(torch.uint8)[:16], wide.to(TORCH[dtype]).view(torch.uint8)[:16])
    torch.testing.assert_close(got, wide.to(TORCH[dtype]), rtol=0, atol=0, equal_nan=True)
    if dtype in ("bf16", "f16"):
        rounded = evaluate(f"round_{dtype}(x)", "f32", x=wide)
        expected = wide.to(TORCH[dtype]).float()
        torch.testing.assert_close(rounded, expected, rtol=0, atol=0, equal_nan=True)


def test_casts_saturate_and_wrap() -> None:
    x = numbers(-1e12, 1e12)
    wanted = torch.nan_to_num(x.double(), nan=0.0).clamp(-(2.0**31), 2.0**31 - 1).trunc().long()
    assert torch.equal(evaluate("int32(x)", "i32", x=x).long(), wanted)
    assert torch.equal(evaluate("boolean(x)", "b8", x=x), x != 0)
    whole = torch.arange(-128, 128)
    assert torch.equal(evaluate("uint8(x)", "u8", x=whole), whole.to(torch.uint8))


def test_arithmetic_and_extremes() -> None:
    x, y = numbers(), numbers().flip(0)
    for name, function in (
        ("add", torch.add),
        ("sub", torch.sub),
        ("mul", torch.mul),
        ("div", torch.div),
        ("maximum", torch.maximum),
        ("minimum", torch.minimum),
        ("fmod", torch.fmod),
        ("remainder", torch.remainder),
    ):
        got = evaluate(f"{name}(x, y)", x=x, y=y)
        torch.testing.assert_close(got, function(x, y), rtol=1e-6, atol=1e-6, equal_nan=True)
    whole, other = torch.arange(-128, 128), torch.arange(-128, 128).roll(77)
    for name, function in (
        ("floor_divide", lambda a, b: torch.div(a, b, rounding_mode="floor")),
        ("remainder", torch.remainder),
    ):
        nonzero = torch.where(other == 0, 5, other)
        assert torch.equal(
            evaluate(f"{name}(x, y)", "i64", x=whole, y=nonzero), function(whole, nonzero)
        )
    assert torch.equal(
        evaluate("floor_divide(x, int64(0))", "i64", x=whole), torch.zeros_like(whole)
    )


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("length", [1, 2, 4, 8])
def test_random_words_are_those_of_the_definition(bits: int, length: int) -> None:
    threads = 64
    kind = "i32" if bits == 16 else "u32"
    kernel = source(
        f"\nvector = Vector({length})\n\n\ndef kernel(key, out):\n"
        f"    at = thread_index() * {length}\n"
        f"    words = vector.random_{bits}(load_i64(key, 0), int64(5), at)\n"
        f"    vector.store_{kind}(out, at, words)\n",
        ("key", "out"),
        threads=threads,
    )
    key = -0x123456789ABCDEF
    out = np.zeros(threads * length, np.uint32)
    emulate(kernel, np.array([key], np.int64), out)
    wanted = random.words(key & (1 << 64) - 1, 5, out.size, bits)
    assert np.array_equal(out.astype(np.uint64), wanted)


# -- tiles


@pytest.mark.parametrize(
    "length,vector,chunks,threads,rows,extent",
    [(96, 8, 1, 16, 8, 13), (100, 4, 1, 32, 4, 9), (300, 4, 2, 64, 1, 5), (1000, 8, 1, 128, 1, 3)],
)
def test_tiles_fold_rows_and_touch_nothing_else(
    length: int, vector: int, chunks: int, threads: int, rows: int, extent: int
) -> None:
    kernel = source(
        f"\ntile = Tile(length={length}, vector={vector}, chunks={chunks}, threads={threads},"
        f" extent={extent}, rows={rows})\n\n\n"
        "def kernel(x, y, sums, most):\n"
        "    row = tile.row()\n"
        f"    values = tile.load_f32(x, row * {length})\n"
        "    total, second = tile.sum_2(values, mul(values, values))\n"
        f"    tile.store_f32(y, row * {length}, sub(values, total))\n"
        "    tile.store_row_f32(sums, row, add(total, second))\n"
        "    tile.store_row_f32(most, row, tile.max(values))\n",
        ("x", "y", "sums", "most"),
        threads=threads * rows,
        blocks=-(-extent // rows),
    )
    x = -1 - np.random.default_rng(0).random((extent, length), np.float32)
    y, sums, most = np.zeros_like(x), np.zeros(extent, np.float32), np.zeros(extent, np.float32)
    emulate(kernel, x, y, sums, most)
    total = x.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(y, x - total, rtol=1e-5)
    np.testing.assert_allclose(sums, total[:, 0] + (x * x).sum(axis=1), rtol=1e-4)
    assert np.array_equal(most, x.max(axis=1))


def test_the_emulator_finds_what_a_gpu_would_punish() -> None:
    outside = source("\n\ndef kernel(x):\n    store_f32(x, thread_index(), float32(1.0))\n", ("x",))
    with pytest.raises(ptx_emulator.EmulationError, match="outside"):
        emulate(outside, np.zeros(31, np.float32))
    text = "\nvector = Vector(4)\n\n\ndef kernel(x):\n    vector.store_f32(x, 1, float32(1.0))\n"
    with pytest.raises(ptx_emulator.EmulationError, match="misaligned"):
        emulate(source(text, ("x",)), np.zeros(64, np.float32))


# -- PTX and cubins

NORM = """
tile = Tile(length=4096, vector=8, chunks=2, threads=256, extent=64)


def kernel(x, weight, y):
    row = tile.row()
    x_words = tile.load_words_bf16(x, row * 4096)
    weight_words = tile.load_words_bf16(weight, 0)
    values = tile.unpack_bf16(x_words)
    mean = mul(tile.sum(mul(values, values)), float32(0.000244140625))
    scale = rsqrt(add(mean, float32(1e-6)))
    values = tile.unpack_again_bf16(x_words)
    tile.store_bf16(y, row * 4096, mul(mul(values, scale), tile.unpack_bf16(weight_words)))
"""


def norm(target: str = "sm_90") -> KernelSource:
    return source(NORM, ("x", "weight", "y"), threads=256, blocks=64, target=target)


def test_a_norm_is_what_it_should_be_in_ptx() -> None:
    found = facts(compile_ptx(norm()))
    assert (found.vector_loads, found.vector_stores) == (4, 2)
    assert found.widest_load == found.widest_store == 16
    assert found.scalar_loads == found.scalar_stores == found.local == found.calls == 0
    assert found.barriers == 1 and found.double == 0
    assert found.fused == 0 and found.contractable == 0


def test_only_what_is_called_fused_is_fused() -> None:
    apart = facts(compile_ptx(elementwise("add(mul(x, y), x)", {"x": "f32", "y": "f32"}, "f32")))
    assert apart.fused == 0 and apart.contractable == 0
    fused = facts(compile_ptx(elementwise("fma(x, y, x)", {"x": "f32", "y": "f32"}, "f32")))
    assert fused.fused == 8


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_cubins_are_made_without_a_gpu(target: str) -> None:
    code = compile_kernel(norm(target))
    assert code.code[:4] == b"\x7fELF" and code.target == target
    assert f".entry {code.entry}(" in code.ptx
    version = next(line for line in code.ptx.splitlines() if line.startswith(".version"))
    assert tuple(map(int, version.split()[1].split("."))) <= LATEST_VERSION


def test_the_report_of_the_assembler_comes_back() -> None:
    kernel = norm()
    assert "registers" in assemble(compile_ptx(kernel), kernel)[1]


def test_kernels_of_both_kinds_go_through_pool_and_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RUDAGRAPH_CACHE", str(tmp_path))
    kernel = norm()
    (first,) = compile_all([kernel])
    (second,) = compile_all([kernel])
    assert first == second and first.code[:4] == b"\x7fELF"
    assert first.cuda == kernel.cuda and list(tmp_path.rglob("*"))


def test_headers_newer_than_the_driver_are_lowered() -> None:
    text = ".version 9.5\n.visible .entry mangled(\n)\n{ ret; }\n"
    assert normalise(text, "name").startswith(".version 9.0")
    assert ".entry name(" in normalise(text, "name")
    assert normalise(text.replace("9.5", "8.7"), "name").startswith(".version 8.7")


# -- errors


@pytest.mark.parametrize(
    "text,what",
    [
        ("def other(x):\n    pass\n", "does not define kernel"),
        ("def kernel(x):\n    return (\n", "is not a Python module"),
        ("def kernel(x):\n    store_f32(x, 0, float64(1.0))\n", "argument 3 of store_f32 is f64"),
        ("def kernel(x):\n    store_f32(x, 0, add(float32(1.0), int32(1)))\n", "one kind"),
        ("def kernel(x):\n    store_f32(x, 0, no_such(1.0))\n", "no_such"),
    ],
)
def test_faults_of_a_text_are_told_with_the_kernel(text: str, what: str) -> None:
    with pytest.raises(BuildError, match=what) as caught:
        compile_ptx(source(text, ("x",)))
    assert "kernel kernel" in str(caught.value)


def test_targets_are_named_as_nvidia_does() -> None:
    assert capability("sm_90") == (9, 0) and capability("sm_100") == (10, 0)
    with pytest.raises(BuildError, match="no GPU target"):
        capability("gfx90a")
