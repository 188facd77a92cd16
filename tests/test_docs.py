"""Pages that repeat what the source says stay true: `make golden` rewrites them.

A section between `<!-- name: ... -->` and `<!-- end -->` is what a function here prints. Links
between pages lead somewhere.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rudagraph.ir import text
from rudagraph.ir.ops import OPS, Tag

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def grammar() -> str:
    """The indented lines at the head of ir/text.py."""
    lines = inspect.getdoc(text).splitlines()
    return "\n".join(["```", *(line[4:] for line in lines if line.startswith("    ")), "```"])


def op_table() -> str:
    rows = ["| op | operands | attributes | tags | meaning |", "|---|---|---|---|---|"]
    for spec in OPS.values():
        least, most = spec.operands
        arity = f"{least}" if least == most else f"{least}–{'' if most is None else most}"
        tags = ", ".join(str(tag.name).lower() for tag in Tag if tag in spec.tags)
        attributes = ", ".join(spec.attributes)
        meaning = spec.summary.replace("|", "\\|")
        rows.append(f"| `{spec.opcode}` | {arity} | {attributes} | {tags} | {meaning} |")
    return "\n".join(rows)


SECTIONS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/ir.md", "grammar"): grammar,
    ("docs/ir.md", "ops"): op_table,
}


@pytest.mark.parametrize(("page", "name"), SECTIONS, ids=str)
def test_section_repeats_the_source(page: str, name: str, request: pytest.FixtureRequest) -> None:
    path = ROOT / page
    written = path.read_text()
    pattern = re.compile(rf"(<!-- {name}: .*? -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    assert len(pattern.findall(written)) == 1, f"{page} has no section {name}"
    content = SECTIONS[page, name]() + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(pattern.sub(lambda match: match[1] + content + match[3], written))
        return
    (found,) = pattern.findall(written)
    assert found[1] == content, f"{page}, section {name}: run make golden"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
