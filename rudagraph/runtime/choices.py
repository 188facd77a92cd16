"""The committed table of library variants: which one runs, by device, dtype, size and mask.

Input: choices.json beside this file, which `python -m benchmarks.choose` measures and writes.
Output: `ATTENTION`, the rows in order, of which the first that fits is taken; `ACCUMULATE`, whether
sums of products add in place. Nothing is ever timed when a step is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from rudagraph.errors import VerifyError
from rudagraph.ir.types import DType

Backend = Literal["cudnn", "flash", "efficient"]

# Properties of PyTorch's kernels, which no measurement changes: whether they take a mask (as we
# call them), and whether dq has the same bits on every run.
MASKS = frozenset(("efficient",))
DETERMINISTIC = frozenset(("flash", "efficient"))
BACKENDS: tuple[Backend, ...] = ("cudnn", "flash", "efficient")


@dataclass(frozen=True)
class AttentionRow:
    """One line of the table."""

    backend: Backend
    capability: tuple[int, int]  # at least
    dtypes: tuple[DType, ...]
    head_sizes: tuple[int, int]  # from, to: of all of q, k, v; multiples of 8

    def fits(
        self,
        capability: tuple[int, int],
        dtype: DType,
        head_size: int,
        masked: bool,
        deterministic: bool,
    ) -> bool:
        return (
            capability >= self.capability
            and dtype in self.dtypes
            and self.head_sizes[0] <= head_size <= self.head_sizes[1]
            and head_size % 8 == 0
            and (not masked or self.backend in MASKS)
            and (not deterministic or self.backend in DETERMINISTIC)
        )


def read_rows(document: Mapping[str, Any]) -> tuple[AttentionRow, ...]:
    """The rows of a table; VerifyError names one that is wrong."""
    rows = []
    for row in document["attention"]:
        try:
            if row["backend"] not in BACKENDS:
                raise ValueError(f"there is no backend {row['backend']!r}")
            rows.append(
                AttentionRow(
                    row["backend"],
                    (int(row["capability"][0]), int(row["capability"][1])),
                    tuple(DType(name) for name in row["dtypes"]),
                    (int(row["head_sizes"][0]), int(row["head_sizes"][1])),
                )
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise VerifyError(
                f"a row of the table of library variants is wrong: {error}", f"choices.json: {row}"
            ) from error
    return tuple(rows)


def document() -> Any:
    """The table as it is committed."""
    return json.loads(files("rudagraph.runtime").joinpath("choices.json").read_text("utf-8"))


_TABLE = document()
ATTENTION = read_rows(_TABLE)
ACCUMULATE = bool(_TABLE["products"]["accumulate"])
