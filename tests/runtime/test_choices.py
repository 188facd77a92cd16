"""The committed table of library variants: it reads, and it says what it was measured to say."""

from __future__ import annotations

import json

import pytest

from benchmarks import choose
from benchmarks.choose import Shape
from rudagraph.errors import VerifyError
from rudagraph.ir.types import DType
from rudagraph.runtime.choices import ATTENTION, document, read_rows


def backend(
    dtype: DType,
    head_size: int,
    capability: tuple[int, int] = (9, 0),
    masked: bool = False,
    deterministic: bool = False,
) -> str | None:
    fits = (row.fits(capability, dtype, head_size, masked, deterministic) for row in ATTENTION)
    return next((row.backend for row, fit in zip(ATTENTION, fits, strict=True) if fit), None)


def test_what_the_table_says_of_an_h200() -> None:
    assert backend(DType.BF16, 64) == "cudnn"
    assert backend(DType.BF16, 64, deterministic=True) == "flash"
    assert backend(DType.BF16, 64, masked=True) == "efficient"
    assert backend(DType.F32, 64) == "efficient"
    assert backend(DType.F64, 64) is None
    assert backend(DType.BF16, 60) is None and backend(DType.BF16, 264) is None


def test_every_device_has_a_row_for_what_it_can_do() -> None:
    for capability in ((8, 0), (8, 9), (9, 0), (10, 0)):
        for size in (8, 32, 64, 96, 128, 256):
            for dtype in (DType.BF16, DType.F16, DType.F32):
                for masked in (False, True):
                    assert backend(dtype, size, capability, masked, deterministic=True)
    assert backend(DType.F16, 64, (7, 5)) == "efficient"


@pytest.mark.parametrize(
    "change", [{"backend": "math"}, {"dtypes": ["f8"]}, {"capability": [9]}, {"head_sizes": None}]
)
def test_a_wrong_row_is_refused(change: dict[str, object]) -> None:
    row = {**document()["attention"][0], **change}
    with pytest.raises(VerifyError, match="a row of the table"):
        read_rows({"attention": [row]})


def test_rows_follow_from_what_was_measured() -> None:
    found = {}
    for size in choose.HEAD_SIZES:
        fast = {"cudnn": 1.0, "flash": 2.0, "efficient": 3.0}
        if size == 256:
            del fast["cudnn"]
        rest = {name: time for name, time in fast.items() if name != "cudnn"}
        for dtype in (DType.BF16, DType.F16):
            found[Shape(dtype, size), False] = fast
            found[Shape(dtype, size), True] = rest
            found[Shape(dtype, size, True), True] = {"efficient": 3.0}
        found[Shape(DType.F32, size), False] = {"efficient": 1.0}
    rows = choose.rows_for(found, (9, 0))
    assert [(r["backend"], r["dtypes"], r["head_sizes"]) for r in rows] == [
        ("cudnn", ["bf16", "f16"], [8, 128]),
        ("flash", ["bf16", "f16"], [8, 128]),
        ("efficient", ["bf16", "f16"], [8, 128]),
        ("flash", ["bf16", "f16"], [136, 256]),
        ("efficient", ["bf16", "f16"], [136, 256]),
        ("efficient", ["f32"], [8, 256]),
    ]
    products = {"three products that add": 2.0, "three products and two additions": 1.0}
    table = choose.updated(document(), rows, products, (9, 0))
    assert table["products"] == {"accumulate": False}
    kept = [row for row in document()["attention"] if row["capability"] != [9, 0]]
    assert table["attention"] == [*rows, *kept]
    assert json.loads(choose.as_text(table)) == table
