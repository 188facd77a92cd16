"""Names and places of values: from module paths and operations, stable from run to run.

    layers.0.mlp, layers.0.mlp.mul          the last op that a module runs itself, and another one
    grad.layers.0.mlp                       the gradient of that value
    grad.layers.0.mlp.part                  a term of it: several ops read the value
    grad.layers.0.mlp.mul                   a step on the way to it
Which forward op a node of backward belongs to is in autograd's sequence numbers, which both traces
note: what it gives to a node of a lower number is the gradient of the value that one has made.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from rudagraph.capture.nodes import Node
from rudagraph.ir.graph import Location

_SAME = frozenset({"clone", "alias", "detach", "getitem", "lift_fresh_copy"})
# Whose results look at the same elements: a function's own views are named after what they view.
_VIEWS = frozenset({"view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", *_SAME})
# What the further results of our operators are.
_RESULTS = {
    "attention": ("logsumexp",),
    "cross_entropy": ("logsumexp", "divisor"),
    "layer_norm": ("mean", "rstd"),
    "rms_norm": ("rstd",),
}


@dataclass(frozen=True)
class Described:
    """What a value is to be called, and where in the user's program it comes from."""

    name: str
    location: Location


def short_name(node: Node) -> str:
    """What the op does, in a word: addmm, layer_norm."""
    if node.target is operator.getitem:
        return "getitem"
    return getattr(node.target, "_opname", str(node.target)).strip("_")


def describe_nodes(nodes: Sequence[Node], ends: Mapping[Node, str]) -> dict[Node, Described]:
    """A hint for the name of each node's value, and its place; `ends` are named already."""
    names = _forward_names(nodes)
    described = {node: Described(name, node.location) for node, name in names.items()}
    described.update(_Gradients(nodes, names, ends).described)
    return described


def _forward_names(nodes: Sequence[Node]) -> dict[Node, str]:
    last: dict[str, Node] = {}
    for node in nodes:
        if node.op == "call" and not node.is_backward:
            path = node.location.module
            if path and short_name(node) not in _SAME:
                last[path] = node
    names: dict[Node, str] = {}
    for node in nodes:
        path = node.location.module
        if node.op == "tensor":
            names[node] = _joined(path, "tensor")
        elif node.is_backward:
            continue
        elif node.target is operator.getitem and node.args[0] in names:
            names[node] = _result_name(node, names)
        else:
            names[node] = path if last.get(path) is node else _joined(path, short_name(node))
    return names


def _result_name(item: Node, names: dict[Node, str]) -> str:
    owner, index = item.args
    assert isinstance(owner, Node) and isinstance(index, int)
    parts = _RESULTS.get(short_name(owner), ())
    if index == 0:
        return names[owner]
    return f"{names[owner]}.{parts[index - 1]}" if index <= len(parts) else names[owner]


class _Gradients:
    """Nodes of backward, each with the forward node whose value's gradient it is about."""

    def __init__(
        self, nodes: Sequence[Node], names: Mapping[Node, str], ends: Mapping[Node, str]
    ) -> None:
        self.names, self.ends = names, ends
        self.makers: dict[int, Node] = {}  # by the number of the autograd node
        self.sums: set[Node] = set()  # which autograd itself adds, in no node of its own
        calls = [node for node in nodes if node.op == "call"]
        for node in calls:
            if not node.is_backward:
                self.makers.setdefault(node.number, node)
            elif self._is_sum(node):
                self.sums.add(node)
        self.subjects: dict[Node, Described] = {}
        self.described: dict[Node, Described] = {}
        self.turned: list[Node] = []  # views of a gradient within the op that reads it
        for node in reversed(calls):
            if node.is_backward:
                self.described[node] = self._describe(node)
        for node in reversed(self.turned):
            source = self.described.get(node.inputs[0])
            if source is not None:  # an upstream gradient has no description of its own
                where = self.described[node].location
                self.described[node] = Described(f"{source.name}.{short_name(node)}", where)

    def _is_sum(self, node: Node) -> bool:
        """Autograd runs its nodes from the highest number down: a term that is lower tells.

        PyTorch's own trace gives a sum the number of the last node of all, ours gives it none.
        """
        number = node.number
        return node.target is torch.ops.aten.add.Tensor and (
            number < 0
            or any(
                term.number < number or (term in self.sums and term.number == number)
                for term in node.inputs
                if term.is_backward
            )
        )

    def _describe(self, node: Node) -> Described:
        subject, suffix = self._about(node)
        if subject is None:
            return Described(
                f"grad.{_joined(node.location.module, short_name(node))}", node.location
            )
        self.subjects[node] = subject
        # A sum is in no op of forward: it is where the value is made whose gradient it is.
        where = subject.location if node in self.sums else node.location
        return Described(_joined(subject.name, suffix), where)

    def _about(self, node: Node) -> tuple[Described | None, str]:
        """The value whose gradient this is, or helps to make, and what tells it from that."""
        if node in self.ends:
            return Described(self.ends[node], node.location), ""
        readers = [user for user in node.users if user in self.described]
        for reader in readers:
            inside = node not in self.sums and reader.number >= node.number
            maker = self.makers.get(reader.number)
            if maker is not None and reader not in self.sums and not inside:
                return self._gradient_of(maker), ""
        for reader in readers:
            if reader in self.subjects:
                suffix = "part" if reader in self.sums else short_name(node)
                operands = node.inputs
                if suffix in _VIEWS - _SAME and len(operands) == 1 and operands[0].is_backward:
                    self.turned.append(node)
                return self.subjects[reader], suffix
        return None, ""

    def _gradient_of(self, maker: Node) -> Described:
        """A view that a function outside any module makes goes by what it views."""
        while not maker.location.module and short_name(maker) in _VIEWS and maker.args:
            source = maker.args[0]
            if not isinstance(source, Node) or source not in self.names:
                break
            maker = source
        return Described(f"grad.{self.names[maker]}", maker.location)


def _joined(path: str, name: str) -> str:
    return ".".join(part for part in (path, name) if part)
