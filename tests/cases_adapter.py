"""Runs the neutral cases of `shared/cases`, a folder beside a development checkout, with rudagraph.

Input: case files and the runner that comes with them. Output: status and faults of each case.
`python -m tests.cases_adapter [--grow] [substring ...]` prints them like the runner's own command.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import rudagraph
from rudagraph.errors import ContractError

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "cases"

# These change mode or signature between calls and demand that every call works: one step, to
# which the caller adds a signature when told so.
NEED_GROWTH = ("case_30",)
# These need a stored artifact, and there is none yet.
NEED_ARTIFACT = ("case_41",)


# On a GPU PyTorch's own check ends the process (37), or the gradients compared are rounding noise:
# 39 trains until those of its first layer are differences of thousands, 2e-3 from the truth in
# eager as well, which is just what it allows between two runs.
NO_GPU = ("case_37", "case_39")


class GrowingStep:
    """A step to which a signature is added where a contract error names `step.add`."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.step(*args, **kwargs)
        except ContractError as error:
            if "step.add" not in str(error):
                raise
        self.step.add(*args, **kwargs)
        return self.step(*args, **kwargs)


class RudagraphRun:
    """The `run` object of the case protocol; `grow` adds signatures when a call has a new one."""

    name = "rudagraph"

    def __init__(self, grow: bool = False) -> None:
        self.grow = grow

    def compile(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        step = rudagraph.StaticGraph(model).compile(*args, **(kwargs or {}))
        return GrowingStep(step) if self.grow else step


def case_files() -> list[Path]:
    """All case files, or none where the folder is absent."""
    return sorted(FOLDER.glob("case_*.py"))


def load_runner() -> ModuleType:
    """The runner that defines the protocol and compares with eager."""
    path = FOLDER / "run_eager.py"
    spec = importlib.util.spec_from_file_location("shared_cases_runner", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def on_device(name: str) -> Iterator[None]:
    """Whatever a case makes without naming a device lies there, generators included."""
    if name == "cpu":
        yield
        return
    default = torch.Generator

    class Generator(default):  # type: ignore[valid-type, misc]
        def __new__(cls, device: str = name) -> Any:
            return super().__new__(cls, device)

    torch.Generator = Generator  # type: ignore[misc]
    try:
        with torch.device(name):
            yield
    finally:
        torch.Generator = default  # type: ignore[misc]


def verify_case(runner: ModuleType, path: Path, grow: bool) -> tuple[str, list[str]]:
    """Status text and faults of one case; an unexpected exception passes through."""
    module = runner.load(path)
    grow = grow and module.build()["expect"] != "error"
    return runner.verify(module, RudagraphRun(grow))  # type: ignore[no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.cases_adapter")
    parser.add_argument("--grow", action="store_true", help="add signatures when told to")
    parser.add_argument("--device", default="cpu", help="where models and tensors are made")
    parser.add_argument("--trace", action="store_true", help="print tracebacks")
    parser.add_argument("pick", nargs="*", help="parts of file names")
    options = parser.parse_args()
    files = [p for p in case_files() if not options.pick or any(w in p.name for w in options.pick)]
    if options.device != "cpu":
        files = [path for path in files if not path.name.startswith(NO_GPU)]
    if not files:
        print(f"no case files in {FOLDER}")
        return 1
    warnings.filterwarnings("ignore")
    runner = load_runner()
    failed = 0
    for path in files:
        start = time.perf_counter()
        grow = options.grow or path.name.startswith(NEED_GROWTH)
        try:
            with on_device(options.device):
                status, faults = verify_case(runner, path, grow)
        except Exception as error:
            status, faults = "raised", [f"{type(error).__name__}: {str(error).strip()[:300]}"]
            if options.trace:
                traceback.print_exc()
        failed += bool(faults)
        verdict = "FAIL" if faults else "ok  "
        seconds = time.perf_counter() - start
        print(f"{verdict} {path.name:<48} {status:<34} {seconds:6.2f}s", flush=True)
        for fault in faults[:4]:
            print("       ", fault)
    print(f"{len(files) - failed} of {len(files)} pass with {RudagraphRun.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
