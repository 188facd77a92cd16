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
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx

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


def is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def place(node: fx.Node) -> Location:
    """Module path and file:line noted while the node was traced."""
    custom = node.meta.get("custom") or {}
    return Location(custom.get("module", ""), custom.get("line", ""))


def short_name(node: fx.Node) -> str:
    """What the op does, in a word: addmm, layer_norm."""
    if node.target is operator.getitem:
        return "getitem"
    return getattr(node.target, "_opname", str(node.target)).strip("_")


def describe_nodes(graph: fx.Graph, ends: Mapping[fx.Node, str]) -> dict[fx.Node, Described]:
    """A hint for the name of each node's value, and its place; `ends` are named already."""
    names = _forward_names(graph)
    described = {node: Described(name, place(node)) for node, name in names.items()}
    described.update(_Gradients(graph, names, ends).described)
    return described


def _forward_names(graph: fx.Graph) -> dict[fx.Node, str]:
    last: dict[str, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_function" and not is_backward(node):
            path = place(node).module
            if path and short_name(node) not in _SAME:
                last[path] = node
    names: dict[fx.Node, str] = {}
    for node in graph.nodes:
        path = place(node).module
        if node.op == "get_attr":
            names[node] = _joined(path, "tensor")
        elif is_backward(node):
            continue
        elif node.target is operator.getitem and node.args[0] in names:
            names[node] = _result_name(node, names)
        else:
            names[node] = path if last.get(path) is node else _joined(path, short_name(node))
    return names


def _result_name(item: fx.Node, names: dict[fx.Node, str]) -> str:
    owner, index = item.args
    assert isinstance(owner, fx.Node) and isinstance(index, int)
    parts = _RESULTS.get(short_name(owner), ())
    if index == 0:
        return names[owner]
    return f"{names[owner]}.{parts[index - 1]}" if index <= len(parts) else names[owner]


class _Gradients:
    """Nodes of backward, each with the forward node whose value's gradient it is about."""

    def __init__(
        self, graph: fx.Graph, names: Mapping[fx.Node, str], ends: Mapping[fx.Node, str]
    ) -> None:
        self.names, self.ends = names, ends
        self.makers: dict[int, fx.Node] = {}  # by the number of the autograd node
        self.sums: set[fx.Node] = set()  # which autograd itself adds, in no node of its own
        calls = [node for node in graph.nodes if node.op == "call_function"]
        for node in calls:
            if not is_backward(node):
                self.makers.setdefault(_number(node), node)
            elif self._is_sum(node):
                self.sums.add(node)
        self.subjects: dict[fx.Node, Described] = {}
        self.described: dict[fx.Node, Described] = {}
        self.turned: list[fx.Node] = []  # views of a gradient within the op that reads it
        for node in reversed(calls):
            if is_backward(node):
                self.described[node] = self._describe(node)
        for node in reversed(self.turned):
            source = self.described.get(node.all_input_nodes[0])
            if source is not None:  # an upstream gradient has no description of its own
                where = self.described[node].location
                self.described[node] = Described(f"{source.name}.{short_name(node)}", where)

    def _is_sum(self, node: fx.Node) -> bool:
        """Autograd runs its nodes from the highest number down: a term that is lower tells.

        PyTorch's own trace gives a sum the number of the last node of all, ours gives it none.
        """
        number = _number(node)
        return node.target is torch.ops.aten.add.Tensor and (
            number < 0
            or any(
                _number(term) < number or (term in self.sums and _number(term) == number)
                for term in node.all_input_nodes
                if is_backward(term)
            )
        )

    def _describe(self, node: fx.Node) -> Described:
        subject, suffix = self._about(node)
        if subject is None:
            return Described(f"grad.{_joined(place(node).module, short_name(node))}", place(node))
        self.subjects[node] = subject
        # A sum is in no op of forward: it is where the value is made whose gradient it is.
        where = subject.location if node in self.sums else place(node)
        return Described(_joined(subject.name, suffix), where)

    def _about(self, node: fx.Node) -> tuple[Described | None, str]:
        """The value whose gradient this is, or helps to make, and what tells it from that."""
        if node in self.ends:
            return Described(self.ends[node], place(node)), ""
        readers = [user for user in node.users if user in self.described]
        for reader in readers:
            inside = node not in self.sums and _number(reader) >= _number(node)
            maker = self.makers.get(_number(reader))
            if maker is not None and reader not in self.sums and not inside:
                return self._gradient_of(maker), ""
        for reader in readers:
            if reader in self.subjects:
                suffix = "part" if reader in self.sums else short_name(node)
                operands = node.all_input_nodes
                if suffix in _VIEWS - _SAME and len(operands) == 1 and is_backward(operands[0]):
                    self.turned.append(node)
                return self.subjects[reader], suffix
        return None, ""

    def _gradient_of(self, maker: fx.Node) -> Described:
        """A view that a function outside any module makes goes by what it views."""
        while not place(maker).module and short_name(maker) in _VIEWS and maker.args:
            source = maker.args[0]
            if not isinstance(source, fx.Node) or source not in self.names:
                break
            maker = source
        return Described(f"grad.{self.names[maker]}", place(maker))


def _number(node: fx.Node) -> int:
    """Of the autograd node that was made last, or in backward of the one that runs."""
    return int(node.meta.get("seq_nr", -1))


def _joined(path: str, name: str) -> str:
    return ".".join(part for part in (path, name) if part)
