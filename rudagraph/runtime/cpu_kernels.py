"""Machine code to functions: loads ELF objects and launches them on PyTorch's own threads.

Input: MachineCode. Output: Launchers. An object is checked before it is linked (this CPU offers
what it needs, it leaves undefined only what is resolved here), because a symbol that the linker
does not find would become a jump to address 0. Kernels run on the team of the OpenMP library that
PyTorch has loaded, so two teams never compete; without one they run on the calling thread.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from rudagraph.errors import BuildError
from rudagraph.schedule.elf import read_symbols
from rudagraph.schedule.kernel import (
    EXTERNAL_SYMBOLS,
    LIBM_PREFIX,
    MEMORY_SYMBOLS,
    THREAD_SYMBOLS,
    MachineCode,
)

_SERIAL_TEAM = """
define i32 @rudagraph_serial_thread() { ret i32 0 }
define i32 @rudagraph_serial_threads() { ret i32 1 }
"""
_OPENMP_NAME = re.compile(r"/lib(gomp|iomp5|omp)[-.0-9a-f]*\.so[.0-9]*$")


class Launcher:
    """One loaded kernel: `launcher(arguments, threads)`.

    `arguments` is the address of an int64 block with a pointer per parameter, which must stay
    alive and in place during the call. The result does not depend on `threads`.
    """

    __slots__ = ("_alone", "_engine", "_parallel", "address", "code")

    def __init__(self, code: MachineCode, address: int, engine: Any) -> None:
        self.code = code
        self.address = address
        self._engine = engine  # owns the memory that `address` points into
        # A single block is short: giving up the interpreter lock for it would cost more.
        prototype = ctypes.PYFUNCTYPE if code.blocks == 1 else ctypes.CFUNCTYPE
        self._alone = prototype(None, ctypes.c_int64)(address)
        self._parallel = _gomp_parallel() if code.blocks > 1 else None

    def __call__(self, arguments: int, threads: int) -> None:
        if threads == 1 or self._parallel is None:
            self._alone(arguments)
        else:
            self._parallel(self.address, arguments, threads, 0)

    def bound(self, arguments: int, threads: int) -> Callable[[], None]:
        """The same launch as a function of nothing, with no Python in between."""
        if threads == 1 or self._parallel is None:
            return partial(self._alone, arguments)
        return partial(self._parallel, self.address, arguments, threads, 0)

    def __repr__(self) -> str:
        code = self.code
        return f"Launcher({code.name}: {code.extent} rows in {code.blocks} blocks)"


def load(code: MachineCode) -> Launcher:
    """One kernel, loaded."""
    return load_all([code])[0]


def load_all(codes: Sequence[MachineCode]) -> list[Launcher]:
    """Kernels loaded together, in order; equal ones share their memory."""
    objects: dict[str, bytes] = {}
    for code in codes:
        _check(code)
        if objects.setdefault(code.entry, code.code) != code.code:
            raise BuildError(
                f"two different kernels share the entry {code.entry}", f"kernel {code.name}"
            )
    if not objects:
        return []
    engine = _engine()
    for entry, content in objects.items():
        try:
            engine.add_object_file(llvm.ObjectFileRef.from_data(content))
        except (RuntimeError, ValueError) as error:
            raise BuildError(f"machine code of {entry} cannot be loaded: {error}") from error
    engine.finalize_object()
    addresses = {entry: engine.get_function_address(entry) for entry in objects}
    return [Launcher(code, addresses[code.entry], engine) for code in codes]


def team_library() -> str | None:
    """Path of the OpenMP library whose threads run kernels; None where they run serially."""
    library = _openmp()
    return None if library is None else str(library._name)


def _engine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0, reloc="pic")
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


# ---- checks


def _check(code: MachineCode) -> None:
    where = f"kernel {code.name}"
    _check_target(code.target, where)
    symbols = read_symbols(code.code, where)
    if code.entry not in symbols.defined:
        raise BuildError(
            f"machine code does not define {code.entry}", where, "build the kernel again"
        )
    unknown = sorted(symbols.undefined - EXTERNAL_SYMBOLS)
    if unknown:
        raise BuildError(
            f"machine code needs {', '.join(unknown)}, which is not resolved",
            where,
            "build the kernel again with this version",
        )
    for name in symbols.undefined:
        _resolve(name)


@cache
def _check_target(target: str, where: str) -> None:
    triple, _, rest = target.partition(" ")
    _, _, features = rest.partition(" ")
    here = llvm.get_process_triple()
    if triple != here:
        raise BuildError(
            f"machine code for {triple} does not run on {here}", where, "build it on this machine"
        )
    host = llvm.get_host_cpu_features()
    missing = [name for name in features.split(",") if name and not host.get(name, False)]
    if missing:
        raise BuildError(
            f"this CPU ({llvm.get_host_cpu_name()}) lacks {', '.join(missing)}, "
            "which the machine code uses",
            where,
            "build the kernels on this machine",
        )


# ---- symbols


@cache
def _resolve(name: str) -> None:
    """Gives LLVM's linker the address of one allowed symbol, once."""
    if name in THREAD_SYMBOLS:
        address = _team_address(name)
    elif name in MEMORY_SYMBOLS:
        address = _address(ctypes.CDLL(None), name)
    else:
        address = _address(_libm(), name.removeprefix(LIBM_PREFIX))
    llvm.add_symbol(name, address)


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address, name
    return address


@cache
def _libm() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libm.so.6")
    except OSError:
        return ctypes.CDLL(None)


def _team_address(name: str) -> int:
    library = _openmp()
    if library is not None:
        return _address(library, name)
    engine = _serial_team()
    entry = "rudagraph_serial_thread" if name.endswith("thread_num") else "rudagraph_serial_threads"
    return int(engine.get_function_address(entry))


@cache
def _serial_team() -> Any:
    """A team of one, for a process without OpenMP."""
    engine = _engine()
    engine.add_module(llvm.parse_assembly(_SERIAL_TEAM))
    engine.finalize_object()
    return engine


@cache
def _gomp_parallel() -> Callable[..., None] | None:
    library = _openmp()
    if library is None:
        return None
    function = library.GOMP_parallel
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


@cache
def _openmp() -> ctypes.CDLL | None:
    """PyTorch's OpenMP library: bundled with it, or else the one mapped into this process."""
    for path in (*_bundled_libraries(), *_mapped_libraries()):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        # The libraries of LLVM and Intel offer GCC's entry too.
        if all(hasattr(library, name) for name in ("GOMP_parallel", *THREAD_SYMBOLS)):
            return library
    return None


def _bundled_libraries() -> list[str]:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    folders = (root / "lib", root.parent / "torch.libs")
    return [str(path) for folder in folders for path in sorted(folder.glob("libgomp*.so*"))]


def _mapped_libraries() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines)
    return [path for path in paths if _OPENMP_NAME.search(path)]
