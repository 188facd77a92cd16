"""Each pass on graphs as text: `<pass>/<case>.rg` with its parts `// before` and `// after`.

The text after must match to the letter (--update-golden rewrites it), and both graphs must give
the same on random tensors and on zeros, infinities and NaN: to the bit, signs of zeros included.
A case with the line `// tolerance 1e-6` sums in another order: random tensors only, that close.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rudagraph.ir.graph import Graph, Port, Role
from rudagraph.ir.interpret import interpret
from rudagraph.ir.text import parse_graph, print_graph
from rudagraph.ir.verify import verify
from tests.ir.graphs import random_inputs

FOLDER = Path(__file__).parent
CASES = sorted(FOLDER.glob("*/*.rg"))
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 3.5, -2.5]


def pass_named(name: str) -> Callable[[Graph], Graph]:
    return getattr(importlib.import_module(f"rudagraph.passes.{name}"), name)


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_before_and_after(path: Path, request: pytest.FixtureRequest) -> None:
    head, _, rest = path.read_text().partition("// before\n")
    before_text, _, after_text = rest.partition("// after\n")
    run = pass_named(path.parent.name)
    before = verify(parse_graph(before_text))
    after = verify(run(before), stage=path.parent.name)
    printed = print_graph(after)
    if request.config.getoption("--update-golden"):
        path.write_text(f"{head}// before\n{before_text}// after\n{printed}")
    else:
        assert printed == after_text.strip() + "\n"
    assert run(after) is after, "a second run changes the graph again"
    tolerance = re.search(r"^// tolerance (\S+)$", head, re.MULTILINE)
    if tolerance is None:
        assert_same_bits(before, after)
    else:
        assert_close(before, after, float(tolerance.group(1)))


def assert_close(before: Graph, after: Graph, tolerance: float) -> None:
    inputs = random_inputs(before, 1)
    wanted, got = interpret(before, inputs), interpret(after, inputs)
    for old, new in zip(before.outputs, _known(before, after), strict=True):
        torch.testing.assert_close(
            got[new.value.name], wanted[old.value.name], rtol=tolerance, atol=tolerance
        )


def _known(before: Graph, after: Graph) -> list[Port]:
    """Outputs but for what the pass wants saved."""
    known = {(port.role, port.target) for port in before.outputs}
    return [
        port
        for port in after.outputs
        if port.role is not Role.RESIDUAL or (port.role, port.target) in known
    ]


def assert_same_bits(before: Graph, after: Graph) -> None:
    for inputs in (random_inputs(before, 1), random_inputs(before, 2), special_inputs(before)):
        wanted, got = interpret(before, inputs), interpret(after, inputs)
        for old, new in zip(before.outputs, _known(before, after), strict=True):
            assert (old.role, old.target, old.value.type) == (new.role, new.target, new.value.type)
            same_bits(got[new.value.name], wanted[old.value.name])


def same_bits(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    if wanted.is_floating_point():
        numbers = ~wanted.isnan()
        assert torch.equal(got[numbers].signbit(), wanted[numbers].signbit())


def special_inputs(graph: Graph) -> dict[str, torch.Tensor]:
    """Floats in turn from the special numbers, each input starting at another."""
    inputs = random_inputs(graph)
    for start, (name, tensor) in enumerate(inputs.items()):
        if tensor.is_floating_point():
            turn = [SPECIAL[(start + i) % len(SPECIAL)] for i in range(tensor.numel())]
            inputs[name] = torch.tensor(turn).reshape(tensor.shape).to(tensor.dtype)
    return inputs
