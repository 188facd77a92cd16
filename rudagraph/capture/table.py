"""The registry of the lowering table: ATen op -> the row that emits its IR.

A row takes the lowering and the node, reads the node's arguments as the op's schema orders
them, and returns a value or several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rudagraph.capture.lowering import Lowering, Result
from rudagraph.capture.nodes import Node

Row = Callable[[Lowering, Node], Result]
ROWS: dict[Any, Row] = {}

# Ops whose rows may give some results in another floating dtype than the trace says.
WIDENED: set[Any] = set()


def row(*targets: Any) -> Callable[[Row], Row]:
    """Register a function as the row of these ops."""

    def register(function: Row) -> Row:
        for target in targets:
            assert target not in ROWS, f"{target} has two rows"
            ROWS[target] = function
        return function

    return register


def arguments(node: Node) -> dict[str, Any]:
    """All arguments of a call by their names in the op's schema, defaults filled in."""
    schema = node.target._schema
    given = {}
    for index, argument in enumerate(schema.arguments):
        if index < len(node.args) and not argument.kwarg_only:
            given[argument.name] = node.args[index]
        elif argument.name in node.kwargs:
            given[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            given[argument.name] = argument.default_value
    return given


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis + rank if axis < 0 else axis
