"""Kernel text to a cubin: Numba-CUDA for the types, NVVM for PTX, nvJitLink for machine code.

Input: a KernelSource for a GPU. Output: MachineCode with cubin and PTX. No GPU is needed.
Invariant: NVVM must not contract, so every sum and product in the PTX carries its own rounding,
which ptxas keeps; only what the text calls a fused operation is one.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rudagraph.build.cuda_functions import Functions
from rudagraph.build.cuda_target import capability, entry_name, launch_of, machine_code, pack
from rudagraph.build.ptx import normalise
from rudagraph.errors import BuildError
from rudagraph.schedule.kernel import KernelSource, MachineCode

_TOOLKITS = ("/usr/local/cuda", "/usr/local/cuda-13.0")


def compile_kernel(source: KernelSource) -> MachineCode:
    """Machine code of one kernel; BuildError names the kernel and the line at fault."""
    return machine_code(source, compile_packed(source))


def compile_packed(source: KernelSource) -> bytes:
    """Cubin and PTX as cuda_target.pack joins them."""
    text = compile_ptx(source)
    return pack(assemble(text, source)[0], text)


def compile_ptx(source: KernelSource) -> str:
    """The kernel's PTX, for looking and for GPUs newer than its target."""
    function = _python_function(source)
    _find_toolkit()
    return normalise(_lower(source, function), entry_name(source), launch_of(source).cluster)


def assemble(ptx: str, source: KernelSource) -> tuple[bytes, str]:
    """The cubin of a kernel's PTX, and the assembler's report: registers, spills, shared memory."""
    from cuda.bindings import nvjitlink

    options = [f"-arch={launch_of(source).target}", "-O3", "-Xptxas=-v", "-verbose"]
    handle = nvjitlink.create(len(options), options)
    data = ptx.encode()
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), source.name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        report = _log(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle)
    except nvjitlink.nvJitLinkError as error:
        message = _log(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle)
        raise BuildError(
            f"the assembler refuses kernel {source.name}: {message or error}",
            f"kernel {source.name}",
        ) from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), report


def registers(report: str) -> int:
    """Registers a thread, from the assembler's report."""
    match = re.search(r"Used (\d+) registers", report)
    return int(match[1]) if match else 0


def spilled(report: str) -> int:
    """Bytes a thread stores and loads because its registers did not suffice."""
    counts = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    return sum(map(int, counts))


def _log(size: Callable[[Any], int], read: Callable[[Any, Any], None], handle: Any) -> str:
    length = size(handle)
    if length <= 1:
        return ""
    buffer = bytearray(length)
    read(handle, buffer)
    return buffer.decode(errors="replace").rstrip("\0").strip()


@cache
def _find_toolkit() -> None:
    """Numba finds NVVM in wheels, or in the toolkit that CUDA_HOME names."""
    if os.environ.get("CUDA_HOME"):
        return
    for place in _TOOLKITS:
        if Path(place, "nvvm").is_dir():
            os.environ["CUDA_HOME"] = place
            return


# ---- Numba: text to PTX


def _lower(source: KernelSource, function: Callable[..., None]) -> str:
    from numba.core.errors import NumbaError
    from numba.cuda import types
    from numba.cuda.compiler import compile_cuda, kernel_fixup
    from numba.cuda.core.errors import NumbaError as CudaError
    from numba.cuda.cudadrv import nvvm

    launch = launch_of(source)
    target = capability(launch.target)
    try:
        result = compile_cuda(
            function,
            types.void,
            tuple(
                types.int64 if name in source.numbers else types.voidptr
                for name in source.parameters
            ),
            cc=target,
            nvvm_options={"opt": 3, "fma": 0, "prec-div": 1, "prec-sqrt": 1},
        )
        library = result.library
        kernel = library.get_function(result.fndesc.llvm_func_name)
        library._entry_name = result.fndesc.llvm_func_name
        kernel_fixup(kernel, False)
        bounds = (launch.threads, launch.resident) if launch.resident else (launch.threads,)
        nvvm.set_launch_bounds(kernel, bounds)
        (text,) = library.get_asm_strs(cc=target)
    except (NumbaError, CudaError) as error:
        raise BuildError(
            f"kernel {source.name} does not compile: {_first_lines(str(error))}",
            _location(source, getattr(error, "loc", None)),
            "the text must follow rudagraph.build.cuda_language",
        ) from error
    except nvvm.nvvmError as error:
        raise BuildError(
            f"NVVM refuses kernel {source.name}: {error}", f"kernel {source.name}"
        ) from error
    return str(text)


def _python_function(source: KernelSource) -> Callable[..., None]:
    file = f"<rudagraph kernel {source.name}>"
    namespace: dict[str, Any] = {}
    try:
        exec(compile(source.text, file, "exec"), namespace)
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else 1
        raise BuildError(
            f"kernel {source.name} is not a Python module: {error}",
            f"kernel {source.name}, line {line}",
        ) from error
    function = namespace.get("kernel")
    names = function.__code__.co_varnames[: function.__code__.co_argcount] if function else ()
    if function is None or names != source.parameters:
        raise BuildError(
            f"kernel {source.name} does not define kernel({', '.join(source.parameters)})",
            f"kernel {source.name}",
        )
    _make_functions(source.text, namespace)
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(True), file)
    checked: Callable[..., None] = function
    return checked


def _make_functions(text: str, namespace: dict[str, Any]) -> None:
    """Makes the functions of tiles that the text names: Numba must know them before it starts."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = namespace.get(node.value.id)
            if isinstance(owner, Functions):
                getattr(owner, node.attr, None)


def _location(source: KernelSource, location: Any) -> str:
    where = f"kernel {source.name}"
    if location is None:
        return where
    lines = source.text.splitlines()
    shown = lines[location.line - 1].strip() if 0 < location.line <= len(lines) else ""
    return f"{where}, line {location.line}: {shown}"


def _first_lines(message: str, count: int = 12) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
    return "\n".join(line for line in plain.splitlines()[:count] if line.strip())
