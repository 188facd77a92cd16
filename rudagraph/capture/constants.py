"""Subgraphs that depend on nothing outside: evaluated once, while the step is compiled.

Input: the nodes of a trace. Output: for each that reads no input and no random op, its tensor on
demand. Invariant: a node is evaluated at most once and only if something needs its numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

from rudagraph.capture.nodes import Node, map_nodes
from rudagraph.errors import UnsupportedError

aten = torch.ops.aten

# Depend on shape and dtype of their operand, not on its numbers.
SHAPED_LIKE = frozenset(
    {
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.empty_like.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)
_UNIFORM = {
    aten.zeros.default: 0,
    aten.ones.default: 1,
    aten.empty.memory_format: 0,
    aten.empty_strided.default: 0,
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.empty_like.default: 0,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
    aten.new_empty.default: 0,
    aten.new_empty_strided.default: 0,
}
_UNIFORM_ARGUMENT = {
    aten.full.default: 1,
    aten.full_like.default: 1,
    aten.new_full.default: 2,
    aten.scalar_tensor.default: 0,
}
# Give their operand's elements, so that a uniform one stays uniform.
_KEEP_ELEMENTS = frozenset(
    {
        aten.expand.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.squeeze.dims,
        aten.squeeze.dim,
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten.lift_fresh_copy.default,
        aten._to_copy.default,
    }
)
Number = bool | int | float


class Constants:
    """Which nodes are constant, their numbers, and foreign tensors that stay references."""

    def __init__(self, nodes: Iterable[Node], outer: dict[int, torch.Tensor]) -> None:
        self.outer = outer
        self.known: dict[Node, Any] = {}
        self.nodes: set[Node] = set()
        for node in nodes:
            if self._is_constant(node):
                self.nodes.add(node)

    def _is_constant(self, node: Node) -> bool:
        if node.op == "tensor":
            return self.foreign(node) is None
        if node.op != "call" or is_random(node.target):
            return False
        if node.target in SHAPED_LIKE:
            return True
        return all(parent in self.nodes for parent in node.inputs)

    def foreign(self, node: Node) -> torch.Tensor | None:
        """The tensor of a node that the user's code holds somewhere, else None."""
        return self.outer.get(id(node.target))

    def uniform(self, node: Any) -> Number | None:
        """The one number that a constant node holds everywhere, if that can be told cheaply."""
        if isinstance(node, (bool, int, float)):
            return node
        if not isinstance(node, Node) or node not in self.nodes:
            return None
        value = node.traced
        if not isinstance(value, torch.Tensor):
            return None
        if node.target in _UNIFORM:
            return _as_dtype(_UNIFORM[node.target], value.dtype)
        if node.target in _UNIFORM_ARGUMENT:
            number = node.args[_UNIFORM_ARGUMENT[node.target]]
            return _as_dtype(number, value.dtype) if not isinstance(number, Node) else None
        if node.target in _KEEP_ELEMENTS:
            number = self.uniform(node.args[0])
            return None if number is None else _as_dtype(number, value.dtype)
        if value.numel() != 1:
            return None
        return self.value(node).item()  # type: ignore[no-any-return]

    def value(self, node: Node) -> Any:
        """The result of a constant node: a tensor, or several."""
        pending = [node]
        while pending:
            top = pending[-1]
            if top in self.known:
                pending.pop()
                continue
            needed = [] if top.target in SHAPED_LIKE else top.inputs
            missing = [parent for parent in needed if parent not in self.known]
            if missing:
                pending.extend(missing)
                continue
            self.known[top] = self._evaluate(top)
            pending.pop()
        return self.known[node]

    def _evaluate(self, node: Node) -> Any:
        if node.op == "tensor":
            return node.target.detach().cpu()
        fake = node.traced
        if isinstance(fake, torch.Tensor):
            number = self._direct(node)
            if number is not None:
                return torch.full(tuple(fake.shape), number, dtype=fake.dtype)
        args: Any = map_nodes(node.args, lambda parent: self.known[parent])
        kwargs: Any = map_nodes(node.kwargs, lambda parent: self.known[parent])
        if "device" in kwargs:
            kwargs = {**kwargs, "device": "cpu"}
        if node.target is operator.getitem:
            return args[0][args[1]]
        if not callable(node.target):
            raise UnsupportedError(f"{node.target} cannot be evaluated while compiling")
        with torch.no_grad():
            return node.target(*args, **kwargs)

    def _direct(self, node: Node) -> Number | None:
        if node.target in _UNIFORM or node.target in _UNIFORM_ARGUMENT:
            return self.uniform(node)
        return None


def is_random(target: Any) -> bool:
    """Whether an op draws random numbers: PyTorch's own, or one of ours."""
    if target in (torch.ops.rudagraph.dropout.default, torch.ops.rudagraph.kept.default):
        return True
    tags = getattr(target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _as_dtype(number: Any, dtype: torch.dtype) -> Number:
    return torch.tensor(number, dtype=dtype).item()
