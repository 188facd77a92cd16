"""The shape of the package, read from its source: who imports whom, file length, documentation.

Imports are parsed, not executed, and those inside functions count as well: a local import that
hides a cycle is a cycle.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import rudagraph
from rudagraph.options import ENVIRONMENT, CompileOptions

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rudagraph"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Part of the package -> the parts it may import. `runtime` and `artifact` run without a compiler.
_BASE = {"errors", "options"}
_COMPILED = _BASE | {"ir", "schedule", "artifact"}
_COMPILER = _COMPILED | {"capture", "passes", "codegen", "build", "runtime"}
MAY_IMPORT = {
    "errors": set[str](),
    "options": {"errors"},
    "ir": _BASE,
    "capture": _BASE | {"ir", "runtime"},  # the structure of calls and outputs
    "passes": _BASE | {"ir"},
    "schedule": _BASE | {"ir"},
    "codegen": _BASE | {"ir", "schedule"},
    "build": _BASE | {"ir", "schedule", "codegen"},
    "artifact": _BASE | {"ir", "schedule"},
    "runtime": _COMPILED,
    "measure": set[str](),
    "stages": _COMPILED | {"passes"},
    "budget": _COMPILER - {"runtime", "build"},
    "scratch": _COMPILED | {"runtime", "measure"},
    "target": _COMPILER | {"scratch"},
    "collector": set[str](),
    "progress": _BASE,
    "compiler": _COMPILER | {"stages", "target", "budget", "collector", "progress"},
    "static_graph": _COMPILER | {"stages", "target", "budget", "compiler", "progress"},
}

# Third-party module -> the only places that import it, as path prefixes below rudagraph/.
ONLY_IN = {
    "numba": ("build/",),
    "llvmlite": ("build/", "runtime/"),
    "networkx": ("ir/dag.py",),
    "torch._functorch": ("capture/",),
    "torch._subclasses": ("capture/",),
    "transformers": (),
    "rich": ("progress.py",),
}

LINE_LIMIT = 400
# Longer files, each with its reason.
LONG_FILES: dict[str, str] = {}


def imported_modules(path: Path) -> Iterator[str]:
    """Absolute names of all modules that a file imports, at any depth."""
    package = ("rudagraph", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield module
            # `from rudagraph import ir` imports rudagraph.ir
            yield from (f"{module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    """The part of the package that a module belongs to: `ir` for `rudagraph.ir.graph`."""
    return module.split(".")[1] if "." in module else ""


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_go_in_one_direction(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part == "__init__":
        return  # public names only, each imported when touched: tested below
    assert part in MAY_IMPORT, f"say in MAY_IMPORT what rudagraph/{part} may import"
    for module in imported_modules(path):
        if not module.startswith("rudagraph."):
            continue
        target = part_of(module)
        known = target in MAY_IMPORT
        if known and target != part:
            assert target in MAY_IMPORT[part], f"{relative(path)} imports {module}"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_third_party_modules_stay_in_their_place(path: Path) -> None:
    for module in imported_modules(path):
        for name, places in ONLY_IN.items():
            if module == name or module.startswith(name + "."):
                assert relative(path).startswith(places or ("-",)), (
                    f"{relative(path)} imports {module}; only {places or 'nobody'} may"
                )


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_files_are_short_and_introduce_themselves(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    if relative(path) in LONG_FILES:
        assert lines > LINE_LIMIT, f"{relative(path)} is short now: take it off LONG_FILES"
    else:
        assert lines <= LINE_LIMIT, f"{relative(path)} has {lines} lines"
    assert ast.get_docstring(ast.parse(text)), f"{relative(path)} has no module docstring"


def test_import_is_lazy() -> None:
    code = (
        "import sys, rudagraph, rudagraph.errors, rudagraph.options; rudagraph.CompileOptions;"
        "heavy = {'torch', 'numba', 'llvmlite', 'networkx', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_public_names_resolve() -> None:
    for name in rudagraph.__all__:
        assert getattr(rudagraph, name) is not None
        assert name in dir(rudagraph)
    with pytest.raises(AttributeError, match="no attribute 'compile_everything'"):
        _ = rudagraph.compile_everything


def test_options_and_environment_are_documented() -> None:
    page = (ROOT / "docs" / "debugging.md").read_text()
    for variable in ENVIRONMENT:
        assert f"| `{variable.name}` | " in page, variable.name
        assert variable.meaning in page, f"the page words {variable.name} differently"
    for field in fields(CompileOptions):
        assert f"| `{field.name}` | " in page, field.name


def test_environment_variables_are_declared_and_used() -> None:
    mentioned = set()
    for path in SOURCES:
        if relative(path) == "options.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                mentioned |= set(re.findall("RUDAGRAPH_[A-Z_]+", node.value))
    assert mentioned == {variable.name for variable in ENVIRONMENT}
