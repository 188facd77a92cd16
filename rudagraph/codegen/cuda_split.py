"""A fused body as two: one that gives the row reductions, one without any that uses them.

    before: mean = mean(x); y = x - mean; s = sum(y) over rows
    first:  mean = mean(x)                second: (x, mean) y = x - mean; s = sum(y)

Input: a body whose rows with their column sums do not fit registers. Output: two bodies; the second
takes the reductions as further operands, so that any thread can work anywhere in a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from rudagraph.codegen.domain import is_fold
from rudagraph.ir.graph import Graph, Op, Port, Role, Value


def split_folds(body: Graph) -> tuple[Graph, Graph]:
    """The body of the reductions, and the rest."""
    folds = [op for op in body.ops if is_fold(op)]
    statistics = tuple(op.result for op in folds)
    first = Graph(
        "statistics",
        body.inputs,
        _needed(body, statistics),
        tuple(Port(value, Role.RESULT) for value in statistics),
    )
    rest = [op for op in body.ops if not is_fold(op)]
    outputs = [port.value for port in body.outputs]
    second = Graph(
        body.name,
        (*body.inputs, *(Port(value, Role.OPERAND) for value in statistics)),
        _needed(Graph("rest", (), tuple(rest), ()), outputs),
        body.outputs,
    )
    return first, second


def _needed(body: Graph, wanted: Iterable[Value]) -> tuple[Op, ...]:
    """The ops that the wanted values depend on, in order."""
    needed = set(wanted)
    kept: list[Op] = []
    for op in reversed(body.ops):
        if needed & set(op.results):
            kept.append(op)
            needed |= set(op.inputs)
    return tuple(reversed(kept))
