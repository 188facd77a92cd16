"""What every test can use: markers, golden files, tolerances that travel with the dtype.

`full` tests run with --full, `cuda` and `multi_gpu` tests where such devices are; goldens are
rewritten with --update-golden. Hypothesis draws the same examples on every run.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

# Idle OpenMP threads of one test process spin, and starve the other: three times slower on two
# cores. Read when torch is loaded, which happens later.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

os.environ.setdefault("RUDAGRAPH_VERIFY", "each")


class Tolerance(NamedTuple):
    """Relative and absolute bound of a comparison, as `torch.testing.assert_close` takes them."""

    rtol: float
    atol: float


# Two to four units in the last place of one rounding, and room for another reduction order.
TOLERANCES = {
    "float64": Tolerance(1e-9, 1e-11),
    "float32": Tolerance(2e-5, 2e-6),
    "float16": Tolerance(4e-3, 1e-3),
    "bfloat16": Tolerance(3e-2, 1e-2),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rudagraph")
    group.addoption("--full", action="store_true", help="run the tests marked `full` as well")
    group.addoption("--update-golden", action="store_true", help="rewrite golden files")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: long or exhaustive; runs with --full")
    config.addinivalue_line("markers", "cuda: needs a CUDA device")
    config.addinivalue_line("markers", "multi_gpu: needs two CUDA devices")
    if importlib.util.find_spec("hypothesis"):
        from hypothesis import settings

        settings.register_profile("fast", max_examples=25, deadline=None, derandomize=True)
        settings.register_profile("full", max_examples=300, deadline=None, derandomize=True)
        settings.load_profile("full" if config.getoption("--full") else "fast")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        left_out = [item for item in items if item.get_closest_marker("full")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker("full")]
    on_device = [item for item in items if _devices_needed(item)]
    if not on_device:
        return
    import torch

    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for item in on_device:
        needed = _devices_needed(item)
        if present < needed:
            reason = f"needs {needed} CUDA device(s), {present} here"
            item.add_marker(pytest.mark.skip(reason=reason))


def _devices_needed(item: pytest.Item) -> int:
    if item.get_closest_marker("multi_gpu"):
        return 2
    return 1 if item.get_closest_marker("cuda") else 0


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(text, "name.ext")`: text equals golden/name.ext beside the test, to the letter."""
    folder = Path(request.path).parent / "golden"
    update = request.config.getoption("--update-golden")

    def check(text: str, name: str) -> None:
        path = folder / name
        text = text if text.endswith("\n") else text + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"golden file {path} is missing; write it with --update-golden")
        expected = path.read_text()
        if text == expected:
            return
        diff = difflib.unified_diff(
            expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm=""
        )
        pytest.fail(
            "\n".join(["differs from its golden file (--update-golden rewrites it)", *diff]),
            pytrace=False,
        )

    return check


@pytest.fixture
def tolerance() -> Callable[[object], Tolerance]:
    """`tolerance(dtype)`: bounds for that torch dtype; exact for integers and bools."""

    def of(dtype: object) -> Tolerance:
        return TOLERANCES.get(str(dtype).removeprefix("torch."), Tolerance(0.0, 0.0))

    return of
