"""The nodes of a joint trace: calls of ATen in order, and what is known of each.

Both traces give these, the fast one directly: nodes of FX keep lists and names up to date that
nobody reads here, at several times the cost. Invariant: a node reads only nodes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rudagraph.ir.graph import Location
from rudagraph.ir.layers import LeftOut

Kind = Literal["input", "tangent", "result", "update", "gradient"]
NOWHERE = Location()


class Unusual(Exception):
    """Forward or backward does what only the full trace can follow."""


class Node:
    """An input, a tensor that the trace holds, or a call.

    `target` is the operator (`operator.getitem` for a part of several results), the tensor held, or
    the name of an input; `args` and `kwargs` hold nodes where the call was given tensors. `traced`
    is the result without its numbers: a fake tensor, or several. `number` is that of the autograd
    node made last, in backward of the one that runs.
    """

    __slots__ = (
        "args",
        "inputs",
        "is_backward",
        "kwargs",
        "location",
        "number",
        "op",
        "target",
        "traced",
        "users",
    )

    def __init__(
        self,
        op: Literal["input", "tensor", "call"],
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        operands: list[Node] | None = None,
    ) -> None:
        self.op = op
        self.target = target
        self.args = args
        self.kwargs = kwargs or {}
        self.traced: Any = None
        if operands is None:
            operands = nodes_in(args, self.kwargs)
        self.inputs = tuple(dict.fromkeys(operands))  # each node among the arguments once
        self.users: list[Node] = []
        self.location = NOWHERE
        self.is_backward = False
        self.number = -1

    def __repr__(self) -> str:
        return f"<{self.op} {self.target}>"


def nodes_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Node]:
    """The nodes among arguments, in order."""
    found: list[Node] = []
    map_nodes((args, kwargs), found.append)
    return found


def map_nodes(value: Any, change: Callable[[Node], Any]) -> Any:
    """Arguments of a call with something else in place of each node."""
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([map_nodes(item, change) for item in value])
    if isinstance(value, dict):
        return {name: map_nodes(item, change) for name, item in value.items()}
    return value


def link(nodes: Iterable[Node]) -> None:
    """Fill in the users of nodes that nothing is added to any more."""
    for node in nodes:
        for operand in node.inputs:
            operand.users.append(node)


@dataclass(frozen=True)
class Label:
    """What an input or output is: `index` counts inputs of the traced function, or its results."""

    kind: Kind
    index: int


@dataclass(frozen=True)
class JointTrace:
    """The nodes in order, inputs included, and what the ends are.

    Where layers are left out, `targets` has the names of inputs, by index, among those that stay.
    """

    nodes: list[Node]
    inputs: dict[Node, Label]
    outputs: tuple[tuple[Label, Node], ...]
    left_out: tuple[LeftOut, ...] = ()
    targets: Mapping[int, str] = field(default_factory=dict)
