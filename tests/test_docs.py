"""Pages that repeat what the source says stay true: `make golden` rewrites them.

A section between `<!-- name: ... -->` and `<!-- end -->` is what a function here prints. Links
between pages lead somewhere.
"""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import rudagraph as rg
from rudagraph.ir import text
from rudagraph.ir.ops import OPS, Tag
from rudagraph.schedule.print_plan import print_plan

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


@cache
def inspected_step() -> rg.static_graph.Step:
    """The step of the example that inspects stages, small enough for a page."""
    example = runpy.run_path(str(ROOT / "examples" / "02_inspect_stages.py"))
    torch.manual_seed(0)
    return rg.StaticGraph(example["Gate"](16)).compile(torch.randn(4, 16))


def fenced(content: str, language: str = "") -> str:
    return f"```{language}\n{content.rstrip()}\n```"


def stage_list() -> str:
    stages = inspected_step().program.stages
    joint = " → ".join(f"`{s.name}`" for s in stages if s.entry == "joint")
    forward = " → ".join(f"`{s.name}`" for s in stages if s.entry == "forward")
    return f"One graph for both directions: {joint}.\n\nEach direction: {forward}."


def kernel_source() -> str:
    sources = inspected_step().program.sources
    source = next(s for s in sources if s.name.startswith("norm_"))  # forward's
    return fenced(source.text, "python")


SECTIONS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/ir.md", "grammar"): grammar,
    ("docs/ir.md", "ops"): op_table,
    ("docs/architecture.md", "stages"): stage_list,
    ("docs/architecture.md", "captured"): lambda: fenced(
        inspected_step().ir("joint", stage="capture")
    ),
    ("docs/architecture.md", "forward"): lambda: fenced(inspected_step().ir("forward")),
    ("docs/architecture.md", "backward"): lambda: fenced(inspected_step().ir("backward")),
    ("docs/architecture.md", "plan"): lambda: fenced(print_plan(inspected_step().plan)),
    ("docs/architecture.md", "kernel"): kernel_source,
    ("docs/architecture.md", "explain"): lambda: fenced(inspected_step().explain()),
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
