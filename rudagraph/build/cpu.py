"""Kernel text to an ELF object, through LLVM's own optimiser and code generator.

Input: a KernelSource. Output: MachineCode for this machine's CPU. The LLVM text that Numba makes
gets an entry of our own, an explicit O3 pipeline and our own TargetMachine.
Invariant: an object leaves nothing undefined but what the loader resolves.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from numba.core.compiler_lock import global_compiler_lock

from rudagraph.build.cpu_libm import with_vector_forms
from rudagraph.build.cpu_loops import requested, with_loop_hints
from rudagraph.build.cpu_lower import lower
from rudagraph.build.cpu_target import entry_name, host_cpu, machine_code
from rudagraph.errors import BuildError
from rudagraph.schedule.elf import read_symbols
from rudagraph.schedule.kernel import EXTERNAL_SYMBOLS, KernelSource, MachineCode


def compile_kernel(source: KernelSource) -> MachineCode:
    """Machine code of one kernel; BuildError names the kernel and the line at fault."""
    _check(source)
    machine = _machine()
    module = optimised_module(source)
    code = machine.emit_object(module)
    missing = sorted(read_symbols(code, f"kernel {source.name}").undefined - EXTERNAL_SYMBOLS)
    if missing:
        raise BuildError(
            f"kernel {source.name} needs {', '.join(missing)}, which no loader resolves",
            f"kernel {source.name}",
            "use only functions of rudagraph.build.cpu_language",
        )
    return machine_code(source, code)


def _check(source: KernelSource) -> None:
    where = f"kernel {source.name}"
    if source.blocks < 1 or source.extent < 0:
        raise BuildError(
            f"kernel {source.name} has {source.extent} rows in {source.blocks} blocks", where
        )
    host = host_cpu()
    if host.triple.startswith("x86_64") and not {"+fma", "+f16c"} <= set(host.features.split(",")):
        raise BuildError(
            f"this CPU ({host.name}) has no fused multiply-add, which kernels need",
            where,
            "compile on a CPU with AVX2, as made since 2013",
        )


def assembly(source: KernelSource) -> str:
    """The kernel's assembly text, to look at."""
    return str(_machine().emit_assembly(optimised_module(source)))


@global_compiler_lock  # type: ignore[untyped-decorator]
def optimised_module(source: KernelSource) -> Any:
    """The LLVM module after all passes."""
    text, function = lower(source)
    register_bytes = 64 if "+avx512f" in host_cpu().features.split(",") else 32
    text = with_loop_hints(text, requested(source.text), register_bytes)
    text, argument_types = _as_internal(with_vector_forms(text), function, source)
    module = llvm.parse_assembly(text + _entry_text(source, argument_types))
    module.verify()
    _optimise(module)
    return module


# ---- LLVM: attributes, entry, passes


def _as_internal(text: str, function: str, source: KernelSource) -> tuple[str, list[str]]:
    """The module with Numba's function as internal `kernel`; also the types of its arguments."""
    pattern = re.compile(rf'^define [^\n]*@"?{re.escape(function)}"?\(([^\n]*)\)', re.MULTILINE)
    match = pattern.search(text)
    assert match, f"no definition of {function}"
    # Commas stand inside the types of Numba's own arguments, not between %names and types.
    parts = re.findall(r'[^%]+%"[^"]*"', match[1])
    parts = [part.removeprefix(", ") for part in parts]
    types_of = [_type_of(part) for part in parts]
    first = len(parts) - len(source.parameters)
    for position, name in enumerate(source.parameters, start=first):
        if name in source.numbers:
            continue
        extra = "noalias readonly" if name in source.read_only else "noalias"
        parts[position] = parts[position].replace(" %", f" {extra} %", 1)
    # Out of line: there the promise that no two pointers overlap needs no inliner to keep it.
    header = f"define internal i32 @kernel({', '.join(parts)}) noinline nounwind{_width(source)}"
    text = text[: match.start()] + header + text[match.end() :]
    # Numba's environment pointer would become a common symbol of every object.
    return text.replace(" = common global ", " = internal global "), types_of


def _width(source: KernelSource) -> str:
    """LLVM takes half an AVX-512 register on Intel, for the sake of the clock.

    Sums take it whole, so the clock is lower anyway, and dear functions are bound by the number of
    instructions. Not where a tail of up to 63 elements, one at a time, would take longer.
    """
    length = requested(source.text).length
    fits = length % 64 == 0 or length >= 2048
    return ' "prefer-vector-width"="512"' if length and fits else ""


def _type_of(argument: str) -> str:
    """The LLVM type in `i8** captures(none) noalias %"retptr"`."""
    end = argument.rindex("*") + 1 if "*" in argument else argument.index(" ")
    return argument[:end]


def _entry_text(source: KernelSource, argument_types: list[str]) -> str:
    """The C entry: thread t of n runs blocks [t * blocks / n, (t + 1) * blocks / n)."""
    result, error = argument_types[:2]
    values = [f"{result} %result", f"{error} %error", "i64 %begin", "i64 %end", "i64 %block"]
    loads = []
    for position, name in enumerate(source.parameters):
        loads += [
            f"%slot.{position} = getelementptr i64, i64* %arguments, i64 {position} ; {name}",
            f"%address.{position} = load i64, i64* %slot.{position}",
        ]
        if name in source.numbers:
            values.append(f"i64 %address.{position}")
            continue
        loads.append(f"%pointer.{position} = inttoptr i64 %address.{position} to i8*")
        values.append(f"i8* %pointer.{position}")
    blocks, extent = source.blocks, source.extent
    return f"""
declare i32 @omp_get_thread_num() nounwind
declare i32 @omp_get_num_threads() nounwind

define void @{entry_name(source)}(i64* readonly %arguments) nounwind {{
start:
  %result = alloca {result[:-1]}
  %error = alloca {error[:-1]}
  %thread.32 = call i32 @omp_get_thread_num()
  %threads.32 = call i32 @omp_get_num_threads()
  %thread = zext i32 %thread.32 to i64
  %threads = zext i32 %threads.32 to i64
  %next.thread = add i64 %thread, 1
  %first.numerator = mul i64 %thread, {blocks}
  %last.numerator = mul i64 %next.thread, {blocks}
  %first = udiv i64 %first.numerator, %threads
  %last = udiv i64 %last.numerator, %threads
  {chr(10).join(loads)}
  br label %test
test:
  %block = phi i64 [ %first, %start ], [ %next.block, %run ]
  %more = icmp ult i64 %block, %last
  br i1 %more, label %run, label %stop
run:
  %next.block = add i64 %block, 1
  %begin.numerator = mul i64 %block, {extent}
  %end.numerator = mul i64 %next.block, {extent}
  %begin = udiv i64 %begin.numerator, {blocks}
  %end = udiv i64 %end.numerator, {blocks}
  %status = call i32 @kernel({", ".join(values)})
  br label %test
stop:
  ret void
}}
"""


def _optimise(module: Any) -> None:
    machine = _machine()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    # Sums of unrolled tails would be cut by what is around them; see cpu_loops.
    options.slp_vectorization = False
    options.loop_interleaving = True
    options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


@cache
def _machine() -> Any:
    # As above: whether a tail is vectorised, and how, depends on the rest of the loop.
    llvm.set_option("rudagraph", "-enable-epilogue-vectorization=false")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host = host_cpu()
    # The loader may put code and its constants more than 2 GiB apart in a process with large
    # mappings; only the large model's absolute addresses reach that far.
    return llvm.Target.from_triple(host.triple).create_target_machine(
        cpu=host.name, features=host.features, opt=3, reloc="static", codemodel="large"
    )
