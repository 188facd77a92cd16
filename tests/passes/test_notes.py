"""What explain() says that each pass did: from the graphs before and after it, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rudagraph.ir.graph import Graph
from rudagraph.ir.text import parse_graph
from rudagraph.passes.notes import NOTES, note
from tests.passes.test_passes import pass_named

FOLDER = Path(__file__).parent


def before_of(case: str) -> Graph:
    text = (FOLDER / f"{case}.rg").read_text()
    return parse_graph(text.partition("// before\n")[2].partition("// after\n")[0])


SAID = {
    "accumulate/three_products": "2 products add to what is there",
    "accumulate/left_alone": "",
    "linear_cross_entropy/tied_head": (
        "lm_head: logits f32[1200,2048] in 2 chunks of 600 rows, their gradient made in forward"
    ),
    "linear_cross_entropy/forward_only": "lm_head: logits f32[1200,2048] in 2 chunks of 600 rows",
    "linear_cross_entropy/left_alone": "",
    "name_gradients/linear": "3 gradients called after what they are of",
}


@pytest.mark.parametrize("case", SAID)
def test_what_a_pass_says(case: str) -> None:
    name, before = case.partition("/")[0], before_of(case)
    assert note(name, before, pass_named(name)(before)) == SAID[case]


def test_a_pass_without_words_counts() -> None:
    before = before_of("accumulate/three_products")
    shorter = before.with_ops(before.ops[:-1])
    assert note("some_pass", before, shorter) == "9 → 8 ops"
    assert note("some_pass", before, before) == ""


def test_every_row_is_a_pass() -> None:
    for name in NOTES.keys() - {"order"}:
        assert callable(pass_named(name))
