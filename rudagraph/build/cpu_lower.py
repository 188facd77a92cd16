"""Kernel text to LLVM text, with Numba as the front end.

Input: a KernelSource. Output: the text of an LLVM module, as Numba lowers it, not optimised.
Invariant: only Numba's typing and lowering of numbers and ranges is used; nothing of Numba is
initialised that belongs to the whole process, and nothing is compiled or run here.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

from numba.core import codegen, compiler, types
from numba.core.cpu import CPUContext
from numba.core.errors import NumbaError
from numba.core.typing import BaseContext, templates
from numba.core.typing import builtins as typing_builtins

from rudagraph.build.cpu_emit import LOWERINGS, TYPINGS
from rudagraph.errors import BuildError
from rudagraph.schedule.kernel import LEADING_PARAMETERS, KernelSource


class _TextLibrary(codegen.CPUCodeLibrary):  # type: ignore[misc]
    """Keeps the text of the one module lowered into it; optimises and runs nothing."""

    text = ""

    def add_ir_module(self, ir_module: Any) -> None:
        self.text = str(ir_module)

    def finalize(self) -> None:
        self._finalized = True

    def _finalize_specific(self) -> None:
        pass


class _TextCodegen(codegen.AOTCPUCodegen):  # type: ignore[misc]
    _library_class = _TextLibrary


class _Typing(BaseContext):  # type: ignore[misc]
    """The types of Numba's numbers and ranges, and of the kernel language."""

    def _load_builtins(self) -> None:
        self.install_registry(_numbers_and_ranges())
        self.install_registry(TYPINGS)


class _Target(CPUContext):  # type: ignore[misc]
    """The code of Numba's numbers and ranges, and of the kernel language.

    Numba's whole CPU target takes half a second to set up (it imports SciPy where there is one),
    and its runtime, one per process, would be initialised by a context that compiles nothing:
    broken for a user of Numba in the same process.
    """

    def init(self) -> None:
        self.is32bit = False
        self._internal_codegen = _TextCodegen("rudagraph")

    def load_additional_registries(self) -> None:
        from numba.cpython import builtins, iterators, numbers, rangeobj  # noqa: F401

        self.install_registry(LOWERINGS)

    def post_lowering(self, module: Any, library: Any) -> None:
        """Links nothing of Numba's runtime."""


@cache
def _numbers_and_ranges() -> Any:
    """The part of Numba's registry that its module of builtin types declares."""

    def is_wanted(template: Any) -> bool:
        # A decorated template is a subclass, made elsewhere, of the class in the module.
        return any(base.__module__ == typing_builtins.__name__ for base in template.__mro__)

    everything = templates.builtin_registry
    part = templates.Registry()
    part.functions = [item for item in everything.functions if is_wanted(item)]
    part.attributes = [item for item in everything.attributes if is_wanted(item)]
    part.globals = [
        (value, kind)
        for value, kind in everything.globals
        if any(map(is_wanted, getattr(kind, "templates", ())))
    ]
    return part


@cache
def _contexts() -> tuple[Any, Any]:
    """The typing context and the target context, made once."""
    target = _Target(_Typing())
    target.refresh()
    return target.typing_context, target


def _flags() -> Any:
    flags = compiler.Flags()
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"  # a division by zero is a value, never an exception
    flags.nrt = False
    return flags


def lower(source: KernelSource) -> tuple[str, str]:
    """LLVM text of a kernel, and the name Numba gave its function."""
    function = _python_function(source)
    typing_context, context = _contexts()
    library = context.codegen().create_library(source.name)
    arguments = (types.int64,) * len(LEADING_PARAMETERS)
    arguments += tuple(
        types.int64 if name in source.numbers else types.voidptr for name in source.parameters
    )
    try:
        result = compiler.compile_extra(
            typing_context,
            context,
            function,
            arguments,
            types.void,
            _flags(),
            {},
            library=library,
        )
    except NumbaError as error:
        raise BuildError(
            f"kernel {source.name} does not compile: {_first_lines(str(error))}",
            _location(source, getattr(error, "loc", None)),
            "the text must follow rudagraph.build.cpu_language",
        ) from error
    return library.text, result.fndesc.llvm_func_name


def _python_function(source: KernelSource) -> Callable[..., None]:
    file = f"<rudagraph kernel {source.name}>"
    namespace: dict[str, Any] = {}
    try:
        exec(compile(source.text, file, "exec"), namespace)
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else _line_in(error, file)
        raise BuildError(
            f"kernel {source.name} is not a Python module: {error}",
            f"kernel {source.name}, line {line}",
        ) from error
    function = namespace.get("kernel")
    names = function.__code__.co_varnames[: function.__code__.co_argcount] if function else ()
    wanted = (*LEADING_PARAMETERS, *source.parameters)
    if function is None or names != wanted:
        raise BuildError(
            f"kernel {source.name} does not define kernel({', '.join(wanted)})",
            f"kernel {source.name}",
        )
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(True), file)
    checked: Callable[..., None] = function
    return checked


def _line_in(error: Exception, file: str) -> int:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    return lines[-1] or 1 if lines else 1


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
