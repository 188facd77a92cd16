"""How long compilation takes: with an empty cache, with a full one, with many equal layers.

`python -m benchmarks.compile_time [--json FILE] [--quick]`: the Llama of `cpu_step`. Each figure is
from a process of its own, counted from the compile() call to the compiled step, imports apart;
torch.compile has no such call, so its first step beside ours is counted, on an empty cache as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.report import Result, write_json

LAYERS = (6, 48)
COLD_SECONDS, CACHED_SECONDS, MOST_RATIO = 12.0, 1.5, 2.0
# What compilation imports on its first call in a process, and is not compilation.
_IMPORTS = (
    "rudagraph.compiler",
    "rudagraph.static_graph",
    "torch._dynamo",
    "torch._functorch._aot_autograd.descriptors",
    "torch._inductor.compile_fx",
    "transformers.models.llama.modeling_llama",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 where a figure is above its mark."""
    options = _parse(argv)
    if options.child:
        print(json.dumps(_measure_here(options.child, options.layers)))
        return 0
    results = []
    for _ in range(options.repeats):
        for layers in LAYERS:
            with tempfile.TemporaryDirectory() as cache:
                for variant in ("cold", "cached"):
                    results.append(_in_process("rudagraph", variant, layers, cache))
        if not options.without_peer:
            with tempfile.TemporaryDirectory() as cache:
                results.append(_in_process("torch.compile", "cold", LAYERS[0], cache))
    merged = _merged(results)
    missed = _print(merged)
    if options.json:
        write_json(options.json, "compile_time", list(merged.values()))
    return 1 if missed else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="one process a figure")
    parser.add_argument("--repeats", type=int, help="processes for each figure")
    parser.add_argument("--without-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=LAYERS[0], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.repeats = options.repeats or (1 if options.quick else 3)
    return options


# ---- in a process of its own


def _in_process(compiler: str, variant: str, layers: int, cache: str) -> Result:
    """One compilation in a fresh process whose caches of compiled code are all in `cache`."""
    environment = dict(os.environ)
    environment["RUDAGRAPH_CACHE"] = str(Path(cache) / "rudagraph")
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(Path(cache) / "inductor")
    environment["TRITON_CACHE_DIR"] = str(Path(cache) / "triton")
    command = [sys.executable, "-m", "benchmarks.compile_time", "--child", compiler]
    command += ["--layers", str(layers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    result = Result(f"llama, {layers} layers", f"{compiler}, {variant}")
    if done.returncode:
        result.error = done.stderr.strip().splitlines()[-1][:200]
        return result
    seconds = json.loads(done.stdout.splitlines()[-1])
    result.compile_s = seconds["compile"]
    result.compile_cpu_s = seconds["compile_cpu"]
    result.first_step_s = seconds["first_step"]
    print(f"measured {result.case}, {result.variant}", flush=True)
    return result


def _measure_here(compiler: str, layers: int) -> dict[str, float | None]:
    import importlib

    import torch

    from benchmarks.cpu_step import llama
    from rudagraph import StaticGraph

    for name in _IMPORTS:
        importlib.import_module(name)
    work = llama(layers)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    compiled = processor = None
    if compiler == "rudagraph":
        step = StaticGraph(work.module, outputs="loss").compile(**work.kwargs)
        compiled = time.perf_counter() - begin
        processor = time.process_time() - begin_cpu
    else:
        step = torch.compile(work.module, dynamic=False)
    step(**work.kwargs).loss.backward()
    return {
        "compile": compiled,
        "compile_cpu": processor,
        "first_step": time.perf_counter() - begin,
    }


# ---- what came out


def _merged(results: Sequence[Result]) -> dict[tuple[str, str], Result]:
    """The fastest process of each figure: what slows one down is not the compiler."""
    best: dict[tuple[str, str], Result] = {}
    for result in results:
        key = (result.case, result.variant)
        known = best.setdefault(key, result)
        if result.error or known.error:
            best[key] = result if result.error else known
        elif (result.first_step_s or 0.0) < (known.first_step_s or 0.0):
            best[key] = result
    few, many = (f"llama, {layers} layers" for layers in LAYERS)
    for variant in ("rudagraph, cold", "rudagraph, cached"):
        one, other = best[few, variant], best[many, variant]
        if one.compile_s and other.compile_s:
            other.ratios[few] = other.compile_s / one.compile_s
    for variant, most in (("rudagraph, cold", COLD_SECONDS), ("rudagraph, cached", CACHED_SECONDS)):
        best[few, variant].target_s = most
    best[many, "rudagraph, cold"].targets[few] = MOST_RATIO
    return best


def _print(results: dict[tuple[str, str], Result]) -> bool:
    """The table; whether a figure is above its mark."""
    table = Table(title="compile_time", title_justify="left")
    for heading in (
        "case",
        "variant",
        "compile s (at most)",
        "its CPU s",
        "first step s",
        "of fewer layers",
    ):
        table.add_column(heading)
    missed = False
    for result in results.values():
        compiled, ratio = "", ""
        if result.compile_s is not None:
            compiled = _marked(result.compile_s, result.target_s)
            missed |= result.compile_s > (result.target_s or result.compile_s)
        for fewer, value in result.ratios.items():
            ratio = _marked(value, result.targets.get(fewer))
            missed |= value > result.targets.get(fewer, value)
        first = f"{result.first_step_s:.2f}" if result.first_step_s else result.error
        processor = f"{result.compile_cpu_s:.2f}" if result.compile_cpu_s else ""
        table.add_row(result.case, result.variant, compiled, processor, first, ratio)
        missed |= bool(result.error)
    Console(width=None if Console().is_terminal else 120).print(table)
    return missed


def _marked(value: float, most: float | None) -> str:
    if most is None:
        return f"{value:.2f}"
    colour = "green" if value <= most else "red"
    return f"[{colour}]{value:.2f}[/{colour}] ({most:g})"


if __name__ == "__main__":
    sys.exit(main())
