"""What CUDA code is made for and from: entry names, cache keys, how cubin and PTX travel together.

Apart from cuda.py so that a compilation whose kernels are all cached never imports Numba.
"""

from __future__ import annotations

import hashlib
import re
import struct
import sys
import zlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rudagraph.build.cache import digest, digest_files
from rudagraph.errors import BuildError
from rudagraph.schedule.kernel import CudaLaunch, KernelSource, MachineCode

_LENGTH = struct.Struct("<Q")
_TARGET = re.compile(r"sm_(\d+)(\d)")


def entry_name(source: KernelSource) -> str:
    """The kernel's symbol: readable in a profiler, and of the content alone."""
    content = (source.text, source.parameters, source.blocks, source.cuda, source.numbers)
    readable = re.sub(r"\W+", "_", source.name)
    return f"{readable}_{hashlib.sha256(repr(content).encode()).hexdigest()[:16]}"


def cache_key(source: KernelSource) -> str:
    """Key of the machine code: the kernel, everything that translates it, and the GPU."""
    return digest((entry_name(source), *_toolchain()))


def launch_of(source: KernelSource) -> CudaLaunch:
    """The CUDA half of a source; an error where it is for the CPU."""
    if source.cuda is None:
        raise BuildError(f"kernel {source.name} is not for a GPU", f"kernel {source.name}")
    return source.cuda


def capability(target: str) -> tuple[int, int]:
    """(9, 0) for "sm_90"."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise BuildError(f"{target!r} is no GPU target", hint='give one such as "sm_90"')
    return int(match[1]), int(match[2])


def pack(cubin: bytes, ptx: str) -> bytes:
    """Cubin and PTX as one entry of the cache."""
    return _LENGTH.pack(len(cubin)) + cubin + zlib.compress(ptx.encode())


def machine_code(source: KernelSource, packed: bytes) -> MachineCode:
    """The packed code of a kernel with what is known of it."""
    (length,) = _LENGTH.unpack_from(packed)
    start = _LENGTH.size
    return MachineCode(
        name=source.name,
        target=launch_of(source).target,
        code=packed[start : start + length],
        entry=entry_name(source),
        parameters=source.parameters,
        extent=source.extent,
        blocks=source.blocks,
        cuda=source.cuda,
        ptx=zlib.decompress(packed[start + length :]).decode(),
    )


@cache
def _toolchain() -> tuple[str, ...]:
    here = Path(__file__).parent
    files = [*here.glob("cuda*.py"), *here.glob("cpu_*.py"), here / "ptx.py"]
    files.append(here.parent / "schedule" / "kernel.py")
    packages = ["numba", "llvmlite", "numba-cuda", "cuda-bindings", "nvidia-nvvm"]
    packages.append("nvidia-nvjitlink")
    return (
        *(f"{name} {_version(name)}" for name in packages),
        ".".join(map(str, sys.version_info[:2])),
        digest_files(files),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
