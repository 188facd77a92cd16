"""What CPU code is made for and from: the host, entry names, cache keys.

Apart from cpu.py so that a compilation whose kernels are all cached never imports Numba.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

import llvmlite.binding as llvm

from rudagraph.build.cache import digest, digest_files
from rudagraph.schedule.kernel import KernelSource, MachineCode


@dataclass(frozen=True, slots=True)
class HostCpu:
    """The CPU that code is made for; `features` as LLVM takes them, "+avx2,-sse4a,…"."""

    triple: str
    name: str
    features: str

    @property
    def target(self) -> str:
        """The text in MachineCode: what a machine must offer to run the code."""
        needed = sorted(part[1:] for part in self.features.split(",") if part.startswith("+"))
        return f"{self.triple} {self.name} {','.join(needed)}"


@cache
def host_cpu() -> HostCpu:
    """This machine's CPU."""
    features = llvm.get_host_cpu_features()
    return HostCpu(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten())


def entry_name(source: KernelSource) -> str:
    """The entry symbol: of the content alone, so that objects of many kernels fit one engine."""
    shape = (source.extent, source.blocks, source.read_only, source.numbers)
    content = (source.text, source.parameters, *shape)
    return f"rudagraph_kernel_{hashlib.sha256(repr(content).encode()).hexdigest()[:24]}"


def cache_key(source: KernelSource) -> str:
    """Key of the machine code: the kernel, everything that translates it, and the CPU."""
    return digest((entry_name(source), *_toolchain()))


def machine_code(source: KernelSource, code: bytes) -> MachineCode:
    """The object of a kernel with what is known of it."""
    return MachineCode(
        name=source.name,
        target=host_cpu().target,
        code=code,
        entry=entry_name(source),
        parameters=source.parameters,
        extent=source.extent,
        blocks=source.blocks,
    )


@cache
def _toolchain() -> tuple[str, ...]:
    here = Path(__file__).parent
    files = [*here.glob("cpu*.py"), here.parent / "schedule" / "kernel.py"]
    host = host_cpu()
    return (
        version("numba"),
        version("llvmlite"),
        ".".join(map(str, sys.version_info[:2])),
        digest_files(files),
        *(host.triple, host.name, host.features),
    )
