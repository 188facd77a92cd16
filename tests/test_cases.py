"""The neutral cases, where the checkout has them beside it: values, gradients, errors, state.

Cases that allow a refusal run twice: once as they are, where a clear refusal is enough, and once
with signatures added on demand, where every value has to be eager's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases_adapter import (
    NEED_ARTIFACT,
    NEED_GROWTH,
    NO_GPU,
    case_files,
    load_runner,
    on_device,
    verify_case,
)

FILES = case_files()
pytestmark = pytest.mark.skipif(not FILES, reason="no folder shared/cases beside the checkout")


def _run(path: Path, grow: bool) -> str:
    if path.name.startswith(NEED_ARTIFACT):
        pytest.skip("there are no stored artifacts yet")
    status, faults = verify_case(load_runner(), path, grow)
    assert not faults, "\n".join(faults)
    return status


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case(path: Path) -> None:
    _run(path, grow=path.name.startswith(NEED_GROWTH))


@pytest.mark.cuda
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case_on_a_gpu(path: Path) -> None:
    if path.name.startswith(NO_GPU):
        pytest.skip("nothing to compare with on a GPU")
    with on_device("cuda"):
        _run(path, grow=path.name.startswith(NEED_GROWTH))


@pytest.mark.parametrize(
    "path",
    [p for p in FILES if p.stem.startswith(("case_08", "case_09", "case_29", "case_32"))],
    ids=lambda path: path.stem,
)
def test_case_with_added_signatures_matches_eager(path: Path) -> None:
    assert _run(path, grow=True).startswith("match")
