"""Which nodes of a trace are alike: the same call, but for its layer and what nodes it reads.

Input: recorded nodes. Output: a number for each, the same for those that are alike. Invariant: what
is alike gives the same results of the same operands, and autograd takes the same derivative of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from rudagraph.capture.nodes import Node
from rudagraph.capture.operators import NAMESPACE, dropout, kept

# Numbers that a graph holds are compared up to so many; more are the same only as one object.
_FEW = 64
# What PyTorch calls the derivatives of our operators: of what has this one, only arguments tell.
# The operator of a node does not say whose it is: a Function of the user's may return its result.
_OURS = f"GeneratedBackwardFor_{NAMESPACE}_"
# By the identity of an operator of ours: which argument numbers its random stream.
_STREAM_PLACES = {
    id(operator._opoverload): [a.name for a in operator._opoverload._schema.arguments].index(
        "stream"
    )
    for operator in (dropout, kept)
}


def number_of_kind(nodes: list[Node]) -> dict[Node, int]:
    """The same number for nodes that are alike but for their layer and what nodes they read."""
    numbers: dict[Hashable, int] = {}
    return {
        node: numbers.setdefault(_kind(node), len(numbers)) for node in nodes if node.op != "input"
    }


def _kind(node: Node) -> Hashable:
    if node.op == "tensor":
        return _content(node.target), node.location.line
    call = _described(node) if draws(node) else node.question or _described(node)
    return call, node.location.line, _derivative(node.traced)


def _described(node: Node) -> Hashable:
    """A call of which the trace does not tell what it asks, or tells too much: its stream."""
    place = _STREAM_PLACES.get(id(node.target))
    args: Any = node.args
    if place is not None:
        args = (*args[:place], *args[place + 1 :])
    return id(node.target), _spelled((args, node.kwargs)), _forms(node.traced)


def _spelled(value: Any) -> Hashable:
    """An argument; as text 1, 1.0 and True differ, and 0.0 from -0.0."""
    if isinstance(value, Node):
        return Node
    if isinstance(value, dict):
        return tuple([(name, _spelled(item)) for name, item in value.items()])
    if isinstance(value, (tuple, list)):
        return type(value), tuple([_spelled(item) for item in value])
    return repr(value) if isinstance(value, (bool, int, float)) else value


def _forms(traced: Any) -> Hashable:
    if isinstance(traced, (tuple, list)):
        return type(traced), tuple(map(_forms, traced))
    return None if traced is None else traced.form


def _derivative(traced: Any) -> Hashable:
    """How autograd takes the derivative of a result; nothing is like what Python derives."""
    if isinstance(traced, (tuple, list)):
        return tuple([_derivative(part) for part in traced])
    if traced is None or not traced.requires_grad:
        return None
    kind = type(traced.grad_fn)
    if issubclass(kind, BackwardCFunction) and not kind.__name__.startswith(_OURS):
        return object()
    return id(kind)


def _content(tensor: Any) -> Hashable:
    if not isinstance(tensor, torch.Tensor) or tensor.numel() > _FEW:
        return id(tensor)
    return tensor.dtype, tuple(tensor.shape), repr(tensor.tolist())


def draws(node: Node) -> bool:
    """Whether a node draws random numbers of ours."""
    return node.op == "call" and _STREAM_PLACES.get(id(node.target)) is not None


def renumber(node: Node, streams: dict[int, int]) -> None:
    """Let a node that draws do so from another stream."""
    place = _STREAM_PLACES.get(id(node.target))
    if place is not None:
        stream = streams.get(node.args[place], node.args[place])
        node.args = (*node.args[:place], stream, *node.args[place + 1 :])


def stream_of(node: Node) -> int:
    """The random stream a node draws from, 0 where it draws from none."""
    place = _STREAM_PLACES.get(id(node.target))
    return 0 if place is None else int(node.args[place])
