"""Single kernels on a GPU: the time of each beside its peers, as a share of a copy's bandwidth.

`python -m benchmarks.kernels [--json FILE] [--quick] [--only TEXT] [--variant rudagraph]`

Every variant's results are compared with float64 first. Then all variants of a case are captured
into CUDA graphs of many launches over several sets of inputs, so that neither launches nor the
cache are what is measured, and replayed in turn, three times over where a peer is near. Percentages
are of the bandwidth that a large copy reaches in the same run; bytes are each input read and each
output written once. A case that breaks the device ends its process alone: the next has a new one.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.kernel_cases import KernelCase, cases
from benchmarks.report import Result, print_table, write_json
from rudagraph.build.pool import compile_all
from rudagraph.codegen.cuda import generator
from rudagraph.ir.graph import Graph, Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.strides import Strided, row_major, view_strides
from rudagraph.ir.text import parse_graph
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.passes.pipeline import JOINT_PASSES, entry_passes, run_passes
from rudagraph.runtime.cuda_kernels import load_all
from rudagraph.schedule.lowered import KernelArgument, Lowered

Tensor = torch.Tensor
Run = Callable[[], Any]
LAUNCHES = 24  # in one graph
SET_BYTES = 3e8  # of all input sets together: several times the L2
COPY_BYTES = 1 << 30
VARIANTS = ("eager", "torch.compile", "liger", "quack", "rudagraph")
NEAR = 0.95  # of our time: peers from here on are measured three times


@dataclass
class Plan:
    """A case's graph after the compiler's own passes, where its values lie, and its kernels.

    `outputs` has the names that the case's own text gives the graph's outputs, in order.
    """

    graph: Graph
    outputs: list[str]
    roots: dict[Value, Value]  # the value whose memory another one is a view of
    layouts: dict[Value, Strided]
    kernels: list[tuple[Op, Lowered]]


def plan(case: KernelCase, target: str) -> Plan:
    written = parse_graph(case.text)
    graph = run_passes((*JOINT_PASSES, *entry_passes({})), written)
    roots = {port.value: port.value for port in graph.inputs}
    layouts = {value: row_major(value.type.shape) for value in roots}
    kernels = []
    for op in graph.ops:
        if has(op, Tag.VIEW):
            roots[op.result] = roots[op.inputs[0]]
            layout = view_strides(op, layouts[op.inputs[0]])
            assert layout is not None
            layouts[op.result] = layout
            continue
        for value in op.results:
            roots[value], layouts[value] = value, row_major(value.type.shape)
        strides = tuple(layouts[value].strides for value in op.inputs)
        results = tuple(layouts[value].strides for value in op.results)
        offsets = tuple(layouts[value].offset for value in op.inputs)
        lowered = generator(target)(op, strides, results, (), offsets)
        assert lowered is not None, f"no kernel for {op.opcode}"
        kernels.append((op, lowered))
    outputs = [port.value.name for port in written.outputs]
    return Plan(graph, outputs, roots, layouts, kernels)


class Kernels:
    """Our kernels of one case on its inputs."""

    def __init__(self, case: KernelCase, inputs: dict[str, Tensor]) -> None:
        major, minor = torch.cuda.get_device_capability()
        self._plan = plan(case, f"sm_{major}{minor}")
        graph, kernels = self._plan.graph, self._plan.kernels
        given = {port.value: inputs[port.value.name] for port in graph.inputs}
        named = zip(self._plan.outputs, graph.outputs, strict=True)
        results = {name: port.value for name, port in named}
        donors = {results[result]: inputs[name] for name, result in case.in_place}
        self._memory = dict(given)
        for op, _ in kernels:
            for value in op.results:
                shape, dtype = value.type.shape, to_torch_dtype(value.type.dtype)
                donor = donors.get(value)
                empty = torch.empty(shape, dtype=dtype, device="cuda") if donor is None else donor
                self._memory[value] = empty
        self.outputs = {
            name: self._memory[self._plan.roots[value]].reshape(value.type.shape)
            for name, value in results.items()
        }
        self.bytes = sum(tensor.nbytes for tensor in (*given.values(), *self.outputs.values()))
        sources = [call.source for _, lowered in kernels for call in lowered.calls]
        launchers = iter(load_all(compile_all(sources), torch.cuda.current_device()))
        self._launches: list[Callable[[int], None]] = []
        self._kept: list[Any] = []
        for op, lowered in kernels:
            extra = {
                "workspace": [
                    torch.empty(size, dtype=torch.uint8, device="cuda")
                    for size in lowered.workspaces
                ],
                "error": [
                    torch.zeros(2, dtype=torch.int64, device="cuda") for _ in range(lowered.errors)
                ],
            }
            for call in lowered.calls:
                pointers = [self._address(argument, op, extra) for argument in call.arguments]
                block = (ctypes.c_int64 * len(pointers))(*pointers)
                self._launches.append(next(launchers).bind(ctypes.addressof(block)))
                self._kept += [block, extra]

    def _address(self, argument: KernelArgument, op: Op, extra: dict[str, list[Tensor]]) -> int:
        if argument.kind == "number":
            return argument.index
        if argument.kind not in ("operand", "result"):
            return extra[argument.kind][argument.index].data_ptr()
        values = op.inputs if argument.kind == "operand" else op.results
        value = values[argument.index]
        memory = self._memory[self._plan.roots[value]]
        return memory.data_ptr() + self._plan.layouts[value].offset * memory.element_size()

    def __call__(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for launch in self._launches:
            launch(stream)


def runner(case: KernelCase, variant: str, inputs: dict[str, Tensor]) -> tuple[Run, Run]:
    """What is timed, and what gives the results to compare, by a variant."""
    if variant == "rudagraph":
        kernels = Kernels(case, inputs)

        def results() -> list[Tensor]:
            kernels()
            return [kernels.outputs[name] for name in case.outputs]

        return kernels, results
    function = _peer(case, variant)
    parameters = [name for name in inputs if name in _parameter_names(case)]
    arguments = [inputs[name] for name in parameters]
    if not case.wanted:
        return (lambda: function(*arguments)), lambda: _listed(function(*arguments))
    leaves = [
        tensor.detach().requires_grad_() if name in case.wanted else tensor
        for name, tensor in zip(parameters, arguments, strict=True)
    ]
    wanted = [leaves[parameters.index(name)] for name in case.wanted]
    if not case.upstream:  # forward and gradient together
        return _both(function, leaves, wanted)
    output = function(*leaves)
    upstream = inputs[case.upstream]

    def gradient() -> list[Tensor]:
        return list(torch.autograd.grad(output, wanted, upstream, retain_graph=True))

    return gradient, gradient


def _both(function: Run, leaves: list[Tensor], wanted: list[Tensor]) -> tuple[Run, Run]:
    def run() -> list[Tensor]:
        return list(torch.autograd.grad(function(*leaves), wanted))

    return run, run


def _parameter_names(case: KernelCase) -> tuple[str, ...]:
    code = case.eager.__code__
    return code.co_varnames[: code.co_argcount]


def _peer(case: KernelCase, variant: str) -> Callable[..., Any]:
    if variant == "eager":
        return case.eager
    if variant == "torch.compile":
        torch._dynamo.reset()
        torch._functorch.config.donated_buffer = False  # backward is called many times
        return torch.compile(case.eager, dynamic=False)
    return case.peers[variant]


def _listed(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def exact(case: KernelCase, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The results in float64, by eager PyTorch."""
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    return [tensor.double() for tensor in runner(case, "eager", wide)[1]()]


def distance(results: list[Tensor], expected: list[Tensor]) -> float:
    """The largest relative distance, in the Euclidean norm."""
    return max(
        float((got.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))
        for got, wanted in zip(results, expected, strict=True)
    )


def graph_of(runs: Sequence[Run], launches: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of many launches, over the input sets in turn."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run in runs:
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Autograd's own thread may allocate meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for number in range(launches):
            runs[number % len(runs)]()
    return graph


def replay_seconds(graph: torch.cuda.CUDAGraph, launches: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3 / launches


def copy_bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.randn(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    seconds = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) * 1e-3)
    return 2 * COPY_BYTES / statistics.median(seconds[2:])


def measure(
    case: KernelCase, variants: Sequence[str], repeats: int, bandwidth: float
) -> list[Result]:
    """All variants of a case; one that fails or is wrong says so and is not timed."""
    wanted = [v for v in variants if v in ("eager", "torch.compile", "rudagraph", *case.peers)]
    results = {variant: Result(case.name, variant) for variant in wanted}
    expected = exact(case, case.inputs()) if case.exact else None
    moved = Kernels(case, case.inputs()).bytes
    sets = max(1, min(6, int(SET_BYTES / moved) + 1))
    launches = max(4, min(LAUNCHES, int(6e9 / moved)))
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    kept = []  # a graph holds addresses, not what lies there
    for variant, result in results.items():
        try:
            if expected is not None:
                found = distance(runner(case, variant, case.inputs())[1](), expected)
                if not found <= case.rtol:
                    raise AssertionError(f"{found:.1e} from float64")
            runs = [runner(case, variant, case.inputs())[0] for _ in range(sets)]
            kept.append(runs)
            graphs[variant] = graph_of(runs, launches)
        except Exception as error:
            result.error = _told(error)
            torch.cuda.synchronize()  # raises where the device is lost
    rounds = [replay_round(graphs, launches, repeats)]
    if _is_near({variant: statistics.median(taken) for variant, taken in rounds[0].items()}):
        rounds += [replay_round(graphs, launches, repeats) for _ in range(2)]
    for variant in graphs:
        median = statistics.median(statistics.median(each[variant]) for each in rounds)
        results[variant].times([taken for each in rounds for taken in each[variant]])
        results[variant].median_ms = 1e3 * median
        results[variant].percent_of_copy = 100 * moved / median / bandwidth
    ours = results.get("rudagraph")
    if ours is not None and ours.median_ms is not None:
        ours.target_percent = case.target_percent
        for variant, result in results.items():
            if variant != "rudagraph" and result.median_ms is not None:
                ours.ratios[variant] = ours.median_ms / result.median_ms
    return list(results.values())


def replay_round(
    graphs: dict[str, torch.cuda.CUDAGraph], launches: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds a launch of each variant, in turn; the first two turns are not counted."""
    seconds: dict[str, list[float]] = {variant: [] for variant in graphs}
    for turn in range(repeats + 2):
        for variant, graph in graphs.items():
            taken = replay_seconds(graph, launches)
            if turn >= 2:
                seconds[variant].append(taken)
    return seconds


def _is_near(medians: dict[str, float]) -> bool:
    ours = medians.get("rudagraph")
    others = [median for variant, median in medians.items() if variant != "rudagraph"]
    return ours is not None and any(NEAR * ours < other < ours / NEAR for other in others)


def _told(error: Exception) -> str:
    message = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {message[0][:160]}"


# -- processes: one that measures, anew after each that the device was lost to


@dataclass(frozen=True)
class Setting:
    """What a process needs to find its cases: they are functions, which do not travel."""

    only: tuple[str, ...]
    quick: bool
    variants: tuple[str, ...]

    def cases(self) -> list[KernelCase]:
        lengths = (4096,) if self.quick else (1024, 4096, 8192, 16384)
        found = cases(8192, lengths, ("bf16",) if self.quick else ("bf16", "f32"))
        return [case for case in found if any(text in case.name for text in self.only)]


def _build(setting: Setting) -> int:
    """Our kernels of all cases, into the cache."""
    major, minor = torch.cuda.get_device_capability()
    kernels = [
        call.source
        for case in setting.cases()
        for _, lowered in plan(case, f"sm_{major}{minor}").kernels
        for call in lowered.calls
    ]
    compile_all(kernels)
    return len(kernels)


def _compile_peer(setting: Setting, index: int) -> None:
    """What torch.compile makes of a case, into its cache on disk."""
    case = setting.cases()[index]
    runner(case, "torch.compile", case.inputs())[1]()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _measure(setting: Setting, index: int, bandwidth: float) -> list[Result]:
    case = setting.cases()[index]
    try:
        return measure(case, setting.variants, 5 if setting.quick else 15, bandwidth)
    finally:
        torch.cuda.empty_cache()


def _pool(workers: int = 1) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))


def _compile_peers(setting: Setting, count: int, workers: int) -> None:
    """Best effort: a case that does not compile says so when it is measured."""
    with _pool(workers) as pool:
        pending = [pool.submit(_compile_peer, setting, index) for index in range(count)]
        for done in as_completed(pending):
            done.exception()


def run(setting: Setting, warm_up: int, results: list[Result]) -> str:
    """Fills the list as it goes, and gives the device's name."""
    names = [case.name for case in setting.cases()]
    pool = _pool()
    bandwidth = pool.submit(copy_bandwidth).result()
    print(f"a copy of {COPY_BYTES >> 20} MiB: {bandwidth / 1e12:.3f} TB/s", flush=True)
    print(f"{pool.submit(_build, setting).result()} kernels, {len(names)} cases", flush=True)
    if warm_up and "torch.compile" in setting.variants:
        _compile_peers(setting, len(names), warm_up)
    device = pool.submit(torch.cuda.get_device_name).result()
    for index, name in enumerate(names):
        try:
            found = pool.submit(_measure, setting, index, bandwidth).result()
        except Exception as error:  # the device is lost to that process, or it died
            found = [Result(name, "rudagraph", error=_told(error))]
            pool.shutdown(wait=False, cancel_futures=True)
            pool = _pool()
        for result in found:
            print(_line(result), flush=True)
        results += found
    pool.shutdown()
    return device


def _line(result: Result) -> str:
    text = f"{result.case:50} {result.variant:14}"
    if result.error:
        return f"{text} {result.error}"
    target = f" ({result.target_percent:.0f})" if result.target_percent else ""
    ratios = " ".join(f"{other} {ratio:.2f}" for other, ratio in result.ratios.items())
    microseconds = 1e3 * (result.median_ms or 0)
    return f"{text} {microseconds:8.1f} us {result.percent_of_copy:5.1f}{target} {ratios}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="one length, bf16, few repeats")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="cases whose name holds this text"
    )
    parser.add_argument("--variant", action="append", choices=VARIANTS)
    parser.add_argument(
        "--warm-up", type=int, default=0, metavar="N", help="processes for torch.compile first"
    )
    options = parser.parse_args(argv)
    variants = tuple(options.variant or VARIANTS)
    setting = Setting(tuple(options.only or [""]), options.quick, variants)
    results: list[Result] = []
    device = ""
    try:
        device = run(setting, options.warm_up, results)
    except KeyboardInterrupt:
        print("interrupted: what was measured until then follows", flush=True)
    print_table("kernels", results)
    if options.json:
        write_json(options.json, "kernels", results, device or torch.cuda.get_device_name())
    return 1 if any(r.error for r in results if r.variant == "rudagraph") else 0


if __name__ == "__main__":
    sys.exit(main())
