"""What code generation gives the planner for one op: kernel calls, workspaces, what may share.

Pure data. An op is one or a few kernel calls in order; each call's pointers are named by what they
point to, and the planner turns those into views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rudagraph.ir.graph import Graph, Op
from rudagraph.ir.text import print_graph
from rudagraph.schedule.kernel import KernelSource

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """A pointer of a kernel call: operand, result, workspace or error flag number `index`.

    A "number" is no pointer, but the integer `index` itself.
    """

    kind: Literal["operand", "result", "workspace", "error", "number"]
    index: int


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One launch: `arguments` in the order of `source.parameters`."""

    source: KernelSource
    arguments: tuple[KernelArgument, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """The kernel calls of one op.

    `workspaces` are bytes needed while the op runs, `inplace` the (operand, result) pairs that the
    kernels can hold in the same memory, `errors` the number of error flags.
    """

    calls: tuple[KernelCall, ...]
    workspaces: tuple[int, ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()
    errors: int = 0


# (op, strides of each operand, strides of each result, pairs that share memory, where each operand
# begins in its buffer, in elements) -> kernel calls, or None where PyTorch runs the op.
Generate = Callable[
    [
        Op,
        tuple[Strides | None, ...],
        tuple[Strides, ...],
        tuple[tuple[int, int], ...],
        tuple[int, ...],
    ],
    Lowered | None,
]


def remembered(generate: Generate) -> Generate:
    """The same generator; kernels of equal bodies, as equal layers have them, are made once."""
    known: dict[tuple[object, ...], Lowered | None] = {}
    texts: dict[int, tuple[Graph, str]] = {}  # by the identity of the body

    def lower(
        op: Op,
        operand_strides: tuple[Strides | None, ...],
        result_strides: tuple[Strides, ...],
        shared: tuple[tuple[int, int], ...],
        offsets: tuple[int, ...],
    ) -> Lowered | None:
        how = (operand_strides, result_strides, shared, offsets)
        if op.body is None:
            return generate(op, *how)
        # By text, in which 1 and 1.0 differ, and 0.0 and -0.0.
        if id(op.body) not in texts:
            texts[id(op.body)] = op.body, print_graph(op.body)
        key = (texts[id(op.body)][1], op.attributes, how)
        if key not in known:
            known[key] = generate(op, *how)
        return known[key]

    return lower
