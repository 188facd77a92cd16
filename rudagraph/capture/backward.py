"""Backward of a recorded forward: PyTorch's own autograd runs on the traced tensors.

Where forward leaves layers out, so does backward: autograd runs from the results down to what the
layers beyond the gap read of those before it, and goes on from the tensors that stand there. What
comes of that is backward of a model with fewer layers, op by op. Nothing else changes the course:
each part runs in the order in which the whole would, and sums go on where they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rudagraph.capture.nodes import Node
from rudagraph.capture.repeats import Shortened, requires_grad
from rudagraph.ir.layers import NotRepeating


class Running:
    """The sequence number of the autograd node that backward is in, -1 between them.

    Hooks know this and nothing more: autograd's graph is beyond Python's collector, and what its
    hooks hold would hold it in turn for ever.
    """

    def __init__(self) -> None:
        self.number = -1

    def watch(self, roots: Iterable[Tensor], ends: Iterable[Any]) -> None:
        """Follow which node backward runs, down to `ends`; sums of gradients are in none."""
        stack = [root.grad_fn for root in roots]
        seen = set(ends)
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            node.register_prehook(functools.partial(self._enter, node._sequence_nr()))
            node.register_hook(self._leave)
            stack += [parent for parent, _ in node.next_functions]

    def _enter(self, number: int, gradients: Any) -> None:
        self.number = number

    def _leave(self, *gradients: Any) -> None:
        self.number = -1


def derive(
    forward: Shortened,
    roots: list[Tensor],
    tangents: list[Tensor],
    running: Running,
    recorded: Callable[[], int],
) -> dict[Node, Tensor]:
    """Gradients of the inputs of forward; `recorded` counts the ops recorded so far."""
    found: dict[Node, Tensor] = {}
    for part in _parts(forward):
        # What has a gradient from further up, and is read here or stands for what was read there.
        begun = {node: g for node, g in found.items() if node.op == "call" or node in part.leaves}
        starts = [*roots, *(node.traced for node in begun)]
        wanted = [*(node.traced for node in part.below.values()), *(n.traced for n in part.leaves)]
        ends = {node.traced.grad_fn for node in part.below.values()}
        running.watch(starts, ends)
        gradients: tuple[Tensor | None, ...] = (None,) * len(wanted)
        if starts and wanted:
            with _stopping_at(ends, recorded):
                gradients = torch.autograd.grad(
                    starts,
                    wanted,
                    [*tangents, *begun.values()],
                    allow_unused=True,
                    retain_graph=bool(part.below),
                )
        found = {node: gradient for node, gradient in found.items() if node.op == "input"}
        for node, gradient in zip((*part.below, *part.leaves), gradients, strict=True):
            if gradient is not None:
                found[node] = gradient
        roots, tangents = [], []
    return found


@dataclass(frozen=True)
class _Part:
    """Forward between two gaps: its leaves, and what it reads below, by what stands there."""

    leaves: tuple[Node, ...]
    below: dict[Node, Node]


def _parts(forward: Shortened) -> Iterator[_Part]:
    """From the last part of forward to the first."""
    nodes = forward.nodes
    position = {node: place for place, node in enumerate(nodes)}
    crossing: dict[Node, None] = {}
    end = len(nodes)
    for cut in (*reversed(forward.cuts), None):
        start = 0 if cut is None else position[cut.beyond]
        read = dict.fromkeys(operand for node in nodes[start:end] for operand in node.inputs)
        differentiable = [operand for operand in read if requires_grad(operand.traced)]
        crossing.update(dict.fromkeys(node for node in differentiable if node.op == "call"))
        below = {}
        if cut is not None:
            really = cut.stand_ins
            below = {n: really.get(n, n) for n in crossing if position[n] < start}
        if not all(isinstance(node.traced, Tensor) for node in below):
            raise NotRepeating("several results are taken apart beyond a gap")
        yield _Part(tuple(node for node in differentiable if node.op == "input"), below)
        end = start


@contextmanager
def _stopping_at(ends: set[Any], recorded: Callable[[], int]) -> Iterator[None]:
    """Let no gradient into the autograd nodes `ends`.

    Autograd goes there where a leaf has been read on both sides. Without a gradient its nodes do
    nothing; one that does, as a Function of the user's may, is not for us to follow.
    """
    before: list[int] = []

    def nothing(gradients: tuple[Any, ...]) -> tuple[None, ...]:
        before.append(recorded())
        return (None,) * len(gradients)

    handles = [end.register_prehook(nothing) for end in ends]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if before and before[0] != recorded():
        raise NotRepeating("a derivative is computed of nothing")
