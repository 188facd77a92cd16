"""Loading and launching: blocks, threads, checks before linking, a process without Numba."""

import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from rudagraph.build.cpu import compile_kernel
from rudagraph.errors import BuildError
from rudagraph.runtime.cpu_kernels import load, load_all, team_library
from rudagraph.schedule.elf import read_symbols
from rudagraph.schedule.kernel import KernelSource, MachineCode

RMS_NORM = """from rudagraph.build.cpu_language import *

def kernel(begin, end, block, x, weight, y, ranges):
    store_i64(ranges, block * 2, begin)
    store_i64(ranges, block * 2 + 1, end)
    for row in range(begin, end):
        total = float32(0)
        for j in range(160):
            value = load_f32(x, row * 160 + j)
            total = accumulate_add(total, value * value)
        scale = rsqrt(total * float32(1 / 160) + float32(1e-6))
        for j in range(160):
            scaled = load_f32(x, row * 160 + j) * scale
            store_f32(y, row * 160 + j, sin(scaled) * load_f32(weight, j))
"""
EXTENT, BLOCKS = 37, 8


@pytest.fixture(scope="module")
def code() -> MachineCode:
    parameters = ("x", "weight", "y", "ranges")
    return compile_kernel(
        KernelSource("rms_norm", RMS_NORM, parameters, EXTENT, BLOCKS, ("x", "weight"))
    )


def launch(launcher, threads: int, *tensors: torch.Tensor) -> None:
    arguments = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    launcher(arguments.ctypes.data, threads)


def run(launcher, threads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(EXTENT, 160, generator=generator)
    weight = torch.randn(160, generator=generator)
    y, ranges = torch.zeros_like(x), torch.zeros(BLOCKS, 2, dtype=torch.int64)
    launch(launcher, threads, x, weight, y, ranges)
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return y, normal.sin() * weight, ranges


def test_every_block_runs_once_over_its_rows(code):
    y, expected, ranges = run(load(code), 1)
    torch.testing.assert_close(y, expected)
    bounds = [block * EXTENT // BLOCKS for block in range(BLOCKS + 1)]
    assert ranges.tolist() == [list(pair) for pair in pairwise(bounds)]


@pytest.mark.parametrize("threads", [2, 3, 8, 11])
def test_the_thread_count_changes_no_bit(code, threads):
    launcher = load(code)
    alone, _, _ = run(launcher, 1)
    together, _, ranges = run(launcher, threads)
    assert torch.equal(alone, together)
    assert ranges[-1].tolist() == [(BLOCKS - 1) * EXTENT // BLOCKS, EXTENT]


def test_kernels_run_on_pytorchs_own_team(code):
    library = team_library()
    assert library is not None
    mapped = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    assert str(Path(library).resolve()) in {str(Path(path).resolve()) for path in mapped}


def test_equal_kernels_share_an_address_and_order_is_kept(code):
    text = RMS_NORM.replace("sin(", "cos(")
    other = compile_kernel(KernelSource("other", text, code.parameters, EXTENT, BLOCKS))
    first, second, third = load_all([code, other, replace(code, name="again")])
    assert first.address == third.address != second.address
    assert [first.code.name, second.code.name, third.code.name] == ["rms_norm", "other", "again"]
    assert not torch.equal(run(first, 2)[0], run(second, 2)[0])
    assert load_all([]) == []


def test_a_launcher_outlives_the_others_of_its_engine(code):
    text = RMS_NORM.replace("sin(", "cos(")
    other = compile_kernel(KernelSource("other", text, code.parameters, EXTENT, BLOCKS))
    launcher = load_all([other, code])[1]
    y, expected, _ = run(launcher, 2)
    torch.testing.assert_close(y, expected)


def test_a_single_block_and_no_rows():
    text = """from rudagraph.build.cpu_language import *

def kernel(begin, end, block, x):
    for row in range(begin, end):
        store_i64(x, row, row + 1)
"""
    for extent, expected in ((3, [1, 2, 3, 0]), (0, [0] * 4)):
        launcher = load(compile_kernel(KernelSource("single", text, ("x",), extent, 1)))
        x = torch.zeros(4, dtype=torch.int64)
        launch(launcher, 2, x)
        assert x.tolist() == expected


def test_zeroing_and_copying_loops_may_become_library_calls():
    text = """from rudagraph.build.cpu_language import *

def kernel(begin, end, block, x, y, z):
    for j in range(4096):
        store_f32(y, j, load_f32(x, j))
    for j in range(4096):
        store_f32(z, j, float32(0))
"""
    code = compile_kernel(KernelSource("copy", text, ("x", "y", "z"), 1, 1))
    x, y, z = torch.randn(4096), torch.zeros(4096), torch.ones(4096)
    launch(load(code), 1, x, y, z)
    assert torch.equal(x, y) and not z.any()


def test_a_foreign_cpu_is_refused_with_the_missing_features(code):
    triple, cpu, features = code.target.split(" ")
    foreign = replace(code, target=f"{triple} {cpu} {features},quantum")
    with pytest.raises(BuildError, match="lacks quantum"):
        load(foreign)
    with pytest.raises(BuildError, match="machine code for sparc-linux does not run on"):
        load(replace(code, target=f"sparc-linux {cpu} {features}"))


def test_an_unresolved_symbol_is_refused_by_name(code):
    name = b"rudagraph_sin\0"
    assert name in code.code
    changed = replace(code, code=code.code.replace(name, b"rudagraph_siX\0"))
    with pytest.raises(BuildError, match="needs rudagraph_siX, which is not resolved"):
        load(changed)


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"text that is no object at all" * 9])
def test_bytes_that_are_no_object_are_refused(code, damage):
    with pytest.raises(BuildError, match="not a 64-bit ELF object") as caught:
        load(replace(code, code=damage))
    assert caught.value.where == "kernel rms_norm"


def test_a_cut_object_is_refused(code):
    for length in (len(code.code) // 2, len(code.code) - 70):
        with pytest.raises(BuildError):
            load(replace(code, code=code.code[:length]))


def test_a_wrong_entry_is_refused(code):
    with pytest.raises(BuildError, match="does not define elsewhere"):
        load(replace(code, entry="elsewhere"))


def test_two_kernels_of_one_entry_are_refused(code):
    other = replace(code, code=code.code + b"\0")
    with pytest.raises(BuildError, match="share the entry"):
        load_all([code, other])


def test_symbols_of_an_object(code):
    symbols = read_symbols(code.code)
    assert symbols.defined == {code.entry}
    assert symbols.undefined >= {"omp_get_thread_num", "omp_get_num_threads", "rudagraph_sin"}


SCRIPT = """
import pickle, sys
from pathlib import Path
import numpy as np
{before}
from rudagraph.runtime import cpu_kernels
code = pickle.loads(Path(sys.argv[1]).read_bytes())
x, weight = np.ones((37, 160), np.float32), np.ones(160, np.float32)
y, ranges = np.zeros_like(x), np.zeros(16, np.int64)
arguments = np.array([a.ctypes.data for a in (x, weight, y, ranges)], np.int64)
launcher = cpu_kernels.load(code)
for threads in (1, 2):
    y[:] = 0
    launcher(arguments.ctypes.data, threads)
    np.testing.assert_allclose(y, np.sin(np.float32(1)), rtol=1e-5)
assert not [name for name in sys.modules if name.split(".")[0] == "numba"]
assert not [name for name in sys.modules if name.startswith("rudagraph.build")]
{after}
"""


def run_script(code: MachineCode, folder: Path, before: str = "", after: str = "") -> None:
    path = folder / "code"
    path.write_bytes(pickle.dumps(code))
    script = SCRIPT.format(before=before, after=after)
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=120)


def test_a_fresh_process_needs_no_numba(code, tmp_path):
    run_script(code, tmp_path, "import torch")


def test_without_openmp_kernels_run_serially(code, tmp_path):
    hide = "import importlib.util; importlib.util.find_spec = lambda name: None"
    run_script(code, tmp_path, hide, "assert cpu_kernels.team_library() is None")


# A process whose free addresses are single pages, 3 GiB apart.
FAR_APART = """
import ctypes
import pickle
import sys

import torch

from rudagraph.runtime.cpu_kernels import load
from tests.runtime.test_cpu_kernels import run

PAGE, NO_ACCESS, PRIVATE_ANONYMOUS_NORESERVE = 4096, 0, 0x4022
code = pickle.load(open(sys.argv[1], "rb"))
load(code)  # what loading imports and allocates once
library = ctypes.CDLL(None, use_errno=True)
library.mmap.restype = ctypes.c_void_p
library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(size):
    address = library.mmap(None, size, NO_ACCESS, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        sys.exit(77)
    return address


walls = [reserve(3 << 30) for _ in range(6)]
for size in (1 << 30, 1 << 24, 1 << 20, 1 << 16, 4 * PAGE, PAGE):
    while (address := reserve(size)) > min(walls):
        pass
    library.munmap(address, size)
for wall in walls:
    library.munmap(wall + (1 << 30), PAGE)
y, expected, _ = run(load(code), 1)
torch.testing.assert_close(y, expected)
"""


def test_sections_far_apart(code, tmp_path):
    """Large mappings, a CUDA build's libraries say, leave no room for an object in one place."""
    path = tmp_path / "code.pickle"
    path.write_bytes(pickle.dumps(code))
    command = [sys.executable, "-c", FAR_APART, str(path)]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    if result.returncode == 77:
        pytest.skip("this process may not reserve so many addresses")
    assert result.returncode == 0, result.stderr
