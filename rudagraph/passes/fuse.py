"""Grow kernels: ops that share a domain become the body of one `fused` op.

    %a = add(%x, %y)                         %s, %a = fused(%x, %y) [kind="rows"] {
    %s = sum(%a) [axes=[1], keepdim=true]      %x: f32[8,64] = input operand ...
                                               %a: f32[8,64] = add(%x, %y)
                                               %s: f32[8,1] = sum(%a) [axes=[1], keepdim=true]
                                             }
A pointwise op, creation, random mask or row reduction joins its producers, then its siblings (those
that read the same value over the same domain), as long as no value would leave the kernel and come
back. Creation, widening casts and scalar arithmetic cost nothing to repeat: every kernel that
reads one has its own. Reductions that fit no kernel stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rudagraph.ir.graph import Graph, Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.passes.fused_body import fused_op, values_read
from rudagraph.passes.kernel_shapes import (
    Fold,
    Shape,
    broadcasts_to,
    domain_of,
    fold_of,
    is_elementwise,
    leaves_only,
    rows_of,
)
from rudagraph.passes.regions import Regions

# Bodies stay readable and compile in well under a second.
_MOST_OPS = 96
_MOST_POINTERS = 28
# A value of this many elements, or one row of a table, is computed again by each of its readers.
_SMALL = 1 << 16
# How many earlier readers of a value a group is offered to.
_NEAREST = 4
_COSTLY = Tag.EXPENSIVE | Tag.RANDOM


def fuse(graph: Graph) -> Graph:
    """The graph with every fusable op inside a fused op."""
    fuser = _Fuser(graph)
    if not fuser.groups:
        return graph
    fuser.join_producers()
    fuser.join_siblings()
    return fuser.finish()


@dataclass
class _Group:
    """What is known of a group of ops that will be one kernel."""

    domain: Shape
    ops: int = 1
    folds: bool = False  # holds a row reduction or column sum
    costly: bool = False  # holds a transcendental or random op


class _Fuser:
    """Nodes are ops; a column sum has a second node, on which its readers hang."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = graph.output_values()
        self.inlined = inlined_ops(graph)
        self.nodes: list[Op | None] = []
        self.home: dict[Value, int] = {}  # the node that gives the value
        self.readers: dict[Value, list[int]] = {}  # nodes that read it, through inlined ops too
        self.read: list[tuple[Value, ...]] = []  # per node
        self.groups: dict[int, _Group] = {}
        domains = [domain_of(op) for op in graph.ops]
        in_memory = set(self.outputs)
        for op, domain in zip(graph.ops, domains, strict=True):
            if domain is None:
                in_memory.update(op.inputs)
        edges: list[tuple[int, int]] = []
        for op, domain in zip(graph.ops, domains, strict=True):
            if op.results[0] in self.inlined and op.results[0] not in in_memory:
                continue
            if domain is not None:
                folds = fold_of(op) in (Fold.ROWS, Fold.COLUMNS)
                self.groups[len(self.nodes)] = _Group(domain, 1, folds, has(op, _COSTLY))
            read = op.inputs if domain is None else values_read(op, self.inlined)
            edges += self._add_node(op, read)
        self.regions = Regions(len(self.nodes), edges)

    def _add_node(self, op: Op, read: tuple[Value, ...]) -> Iterator[tuple[int, int]]:
        node = len(self.nodes)
        self.nodes.append(op)
        self.read.append(read)
        for value in dict.fromkeys(read):
            self.readers.setdefault(value, []).append(node)
            if value in self.home:
                yield self.home[value], node
        outlet = node
        if leaves_only(op):
            outlet = len(self.nodes)
            self.nodes.append(None)
            self.read.append(())
            yield node, outlet
        for result in op.results:
            self.home[result] = outlet

    # -- growing

    def join_producers(self) -> None:
        """Each op into the groups it reads from, largest value first, nearest first."""
        for node in range(len(self.nodes)):
            if node not in self.groups:
                continue
            sources = [
                (value.type.bytes, self.home[value])
                for value in self.read[node]
                if value in self.home and self.nodes[self.home[value]] is not None
            ]
            for _, source in sorted(set(sources), reverse=True):
                self._join(source, node)

    def join_siblings(self) -> None:
        """Groups that read one whole value of their domain, the nearest earlier one first."""
        for value, readers in self.readers.items():
            groups = list(dict.fromkeys(self.regions.find(node) for node in readers))
            for index, group in enumerate(groups):
                for earlier in reversed(groups[max(0, index - _NEAREST) : index]):
                    self._join(earlier, group, sharing=value.type.shape)

    def _join(self, left: int, right: int, sharing: Shape | None = None) -> None:
        left, right = self.regions.find(left), self.regions.find(right)
        if left == right or left not in self.groups or right not in self.groups:
            return
        first, second = self.groups[left], self.groups[right]
        if sharing is not None and not first.domain == second.domain == sharing:
            return
        domain = self._common_domain(left, right)
        if domain is None or first.ops + second.ops > _MOST_OPS:
            return
        if self._pointers(left, right) > _MOST_POINTERS:
            return
        if not self.regions.merge(left, right):
            return
        merged = _Group(
            domain,
            first.ops + second.ops,
            first.folds or second.folds,
            first.costly or second.costly,
        )
        del self.groups[left], self.groups[right]
        self.groups[self.regions.find(left)] = merged

    def _common_domain(self, left: int, right: int) -> Shape | None:
        """The domain both can run in; None where there is none, or a value could not leave it."""
        first, second = self.groups[left], self.groups[right]
        if first.domain == second.domain:
            return first.domain
        small, large = (left, right) if _fits(first.domain, second.domain) else (right, left)
        inner, domain = self.groups[small], self.groups[large].domain
        if not _fits(inner.domain, domain) or inner.folds:
            return None
        if inner.domain == rows_of(domain):
            return domain
        # A partial broadcast is computed again along the missing axes.
        if inner.costly or any(self._leaves(value, left, right) for value in self._made(small)):
            return None
        return domain

    def _made(self, group: int) -> Iterator[Value]:
        for node in self.regions.members[group]:
            op = self.nodes[node]
            if op is not None:
                yield from op.results

    def _leaves(self, value: Value, *inside: int) -> bool:
        if value in self.outputs:
            return True
        return any(self.regions.find(node) not in inside for node in self.readers.get(value, ()))

    def _pointers(self, *groups: int) -> int:
        """Operands and results that the groups would have as one."""
        made = {value for group in groups for value in self._made(group)}
        read = {
            value
            for group in groups
            for node in self.regions.members[group]
            for value in self.read[node]
        }
        return len(read - made) + sum(self._leaves(value, *groups) for value in made)

    # -- writing

    def finish(self) -> Graph:
        ops: list[Op] = []
        for members in self.regions.groups():
            parts = [op for node in members if (op := self.nodes[node]) is not None]
            group = self.regions.find(members[0])
            if group in self.groups:
                leaving = [v for op in parts for v in op.results if self._leaves(v, group)]
                if leaving:
                    ops.append(fused_op(parts, self.inlined, leaving))
            else:
                ops += parts
        return self.graph.with_ops(tuple(ops))


def inlined_ops(graph: Graph) -> dict[Value, Op]:
    """Ops that every kernel repeats rather than reads: their results by value.

    Creation, casts to a type that is no narrower, arithmetic on single elements, on little that was
    created, and on one row of parameters.
    """
    found: dict[Value, Op] = {}
    given = {port.value for port in graph.inputs}
    for op in graph.ops:
        if not is_elementwise(op) or has(op, _COSTLY):
            continue
        result = op.result
        if has(op, Tag.CREATION) or _is_widening(op):
            found[result] = op
        elif op.opcode in ("copy", "check_index"):
            continue
        elif result.type.numel == 1 or (
            result.type.numel <= _SMALL
            and all(value in found or (value in given and _is_row(result)) for value in op.inputs)
        ):
            found[result] = op
    return found


def _is_row(value: Value) -> bool:
    return value.type.shape[-1:] == (value.type.numel,)


def _is_widening(op: Op) -> bool:
    return op.opcode == "cast" and op.result.type.bytes >= op.inputs[0].type.bytes


def _fits(inner: Shape, domain: Shape) -> bool:
    return inner != domain and broadcasts_to(inner, domain)
