"""Many kernels at once: order, equal kernels, cache, worker processes, and their failures."""

import concurrent.futures
import subprocess
import sys
from dataclasses import replace

import pytest

from rudagraph.build import pool
from rudagraph.build.cache import KernelCache
from rudagraph.build.cpu import compile_kernel
from rudagraph.build.cpu_target import cache_key
from rudagraph.build.pool import KernelBuild, compile_all
from rudagraph.errors import BuildError
from rudagraph.schedule.kernel import KernelSource

TEXT = """from rudagraph.build.cpu_language import *

def kernel(begin, end, block, x):
    for row in range(begin, end):
        store_f32(x, row, load_f32(x, row) + float32({number}))
"""


def kernels(count: int, first: int = 0) -> list[KernelSource]:
    return [
        KernelSource(f"add_{number}", TEXT.format(number=number), ("x",), 64, 4)
        for number in range(first, first + count)
    ]


@pytest.fixture
def two_workers(monkeypatch):
    monkeypatch.setenv("RUDAGRAPH_JOBS", "2")
    yield
    assert pool._pool()._idle  # the processes were used, and are kept


def test_workers_give_what_this_process_gives(two_workers, tmp_path):
    sources = kernels(5)
    steps = []
    built = compile_all(sources, lambda *step: steps.append(step), KernelCache(tmp_path))
    assert built == [compile_kernel(source) for source in sources]
    assert steps == [(done, 5) for done in range(6)]


def test_workers_import_neither_torch_nor_the_main_module(two_workers, tmp_path):
    # Module level code of a kernel runs where the kernel is compiled.
    check = "import sys\nassert 'torch' not in sys.modules\nassert 'pytest' not in sys.modules\n"
    sources = [replace(source, text=check + source.text) for source in kernels(3, 10)]
    assert len(compile_all(sources, cache=KernelCache(None))) == 3


def test_equal_kernels_are_compiled_once_and_keep_their_names(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(pool, "_compile_here", lambda source: compiled.append(source.name) or b"!")
    (source,) = kernels(1)
    built = compile_all([source, replace(source, name="again")], cache=KernelCache(tmp_path))
    assert compiled == ["add_0"]
    assert [code.name for code in built] == ["add_0", "again"]
    assert built[0].entry == built[1].entry


def test_a_second_build_comes_from_the_cache(tmp_path, monkeypatch):
    cache = KernelCache(tmp_path)
    first = compile_all(kernels(2), cache=cache)

    def refuse(source: KernelSource) -> bytes:
        raise AssertionError(f"{source.name} was compiled again")

    monkeypatch.setattr(pool, "_compile_here", refuse)
    steps = []
    assert compile_all(kernels(2), lambda *step: steps.append(step), cache) == first
    assert steps == [(2, 2)]


def test_the_key_covers_everything_that_changes_the_code(monkeypatch):
    (source,) = kernels(1)
    changes = [
        {"text": source.text + "\n"},
        {"extent": 65},
        {"blocks": 5},
        {"read_only": ("x",)},
    ]
    keys = {cache_key(replace(source, **change)) for change in ({}, *changes)}
    assert len(keys) == 1 + len(changes)
    assert cache_key(replace(source, name="other")) == cache_key(source)


def test_a_cached_build_imports_no_numba(tmp_path):
    compile_all(kernels(1), cache=KernelCache(tmp_path))
    script = f"""
import sys
from pathlib import Path
from rudagraph.build.cache import KernelCache
from rudagraph.build.pool import compile_all
from rudagraph.schedule.kernel import KernelSource
source = KernelSource("add_0", {TEXT.format(number=0)!r}, ("x",), 64, 4)
compile_all([source], cache=KernelCache(Path({str(tmp_path)!r})))
assert "numba" not in sys.modules and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_the_first_kernel_at_fault_is_named(two_workers):
    sources = kernels(3, 20)
    sources[1] = replace(sources[1], text=sources[1].text.replace("load_f32", "load_f64"))
    with pytest.raises(BuildError, match="kernel add_21 does not compile") as caught:
        compile_all(sources, cache=KernelCache(None))
    assert "line 5" in caught.value.where
    assert len(compile_all(kernels(3, 30), cache=KernelCache(None))) == 3


def test_a_worker_that_dies_is_an_error_and_is_replaced(two_workers):
    sources = kernels(3, 40)
    sources[2] = replace(sources[2], text="import os\nos._exit(3)\n" + sources[2].text)
    with pytest.raises(BuildError, match="compiled kernel add_42 died with status 3"):
        compile_all(sources, cache=KernelCache(None))
    assert len(compile_all(kernels(3, 50), cache=KernelCache(None))) == 3


def test_a_worker_that_ended_for_want_of_work_is_replaced(two_workers):
    compile_all(kernels(3, 60), cache=KernelCache(None))
    for worker in pool._pool()._idle:
        worker._process.stdin.close()
        worker._process.wait()
    assert len(compile_all(kernels(3, 70), cache=KernelCache(None))) == 3


def test_without_worker_processes_this_one_compiles(monkeypatch):
    monkeypatch.setenv("RUDAGRAPH_JOBS", "2")
    monkeypatch.setattr(pool, "_shared", None)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    sources = kernels(3, 80)
    built = compile_all(sources, cache=KernelCache(None))
    assert built == [compile_kernel(source) for source in sources]


def test_kernels_are_compiled_before_all_are_known(two_workers, tmp_path):
    first, then = kernels(3, 90), kernels(4, 90)
    with KernelBuild(cache=KernelCache(tmp_path)) as build:
        build.add(first)
        assert len(build._pending) == 3
        concurrent.futures.wait(build._pending)
        assert build.finish(then) == [compile_kernel(source) for source in then]


def test_what_fails_elsewhere_ends_the_build(two_workers):
    with pytest.raises(KeyError), KernelBuild(cache=KernelCache(None)) as build:
        build.add(kernels(9, 100))
        raise KeyError
    begun = [future for future in build._pending if not future.cancelled()]
    assert len(begun) < 9
    concurrent.futures.wait(begun)


def test_builds_at_a_time_share_the_workers(two_workers):
    with KernelBuild(cache=KernelCache(None)) as one, KernelBuild(cache=KernelCache(None)) as other:
        one.add(kernels(4, 110))
        other.add(kernels(4, 120))
        assert pool._pool()._at_work <= 2
        assert len(one.finish(kernels(4, 110))) == len(other.finish(kernels(4, 120))) == 4
