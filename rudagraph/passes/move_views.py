"""Reshapes move out of the way of fusion: neighbouring ops compute in one shape.

    %a = gelu(%h)              [4,128,256]       %a = gelu(%h)              [4,128,256]
    %f = reshape(%a)           [512,256]         %f = reshape(%a)           [512,256]
    %p = matmul(%f, %w)                          %p = matmul(%f, %w)
    %b = sum(%f) [axes=[0]]    [256]             %b = sum(%a) [axes=[0, 1]] [256]
Elementwise ops and reductions that are joined by reshapes, or read one value through reshapes, form
a component; all that can compute in its finest shape do, because splitting an axis never needs a
copy. Reshapes remain where something else reads the old shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Attribute, Graph, Op, Operand, Value, make_attributes
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.types import broadcast_shapes
from rudagraph.passes.kernel_shapes import (
    Fold,
    Shape,
    domain_of,
    fold_of,
    is_elementwise,
    rows_of,
)
from rudagraph.passes.liveness import needed_ops
from rudagraph.passes.translate_shapes import splits, translate


def move_views(graph: Graph) -> Graph:
    """The graph with one shape per component wherever that joins kernels."""
    components = _Components(graph)
    targets = {op.results[0]: shape for op, shape in components.targets()}
    if not targets:
        return graph
    mover = _Mover(graph, components, targets)
    for op in graph.ops:
        mover.write(op)
    moved = mover.builder.finish()
    return moved.with_ops(needed_ops(moved.ops, moved.output_values()))


class _Components:
    """Values joined by elementwise ops and reshapes, and the ops that compute over each."""

    def __init__(self, graph: Graph) -> None:
        self.base: dict[Value, Value] = {}  # through reshapes
        self._parent: dict[Value, Value] = {}
        self.ops = [op for op in graph.ops if domain_of(op) is not None]
        for port in graph.inputs:
            self.base[port.value] = port.value
        for op in graph.ops:
            is_reshape = op.opcode == "reshape"
            for result in op.results:
                self.base[result] = self.base[op.inputs[0]] if is_reshape else result
            if is_elementwise(op):
                self._join_operands(op)

    def _join_operands(self, op: Op) -> None:
        for value in op.inputs:
            if value.type.numel == op.result.type.numel:
                self._union(self.base[value], op.result)

    def _union(self, left: Value, right: Value) -> None:
        self._parent[self.find(right)] = self.find(left)

    def find(self, value: Value) -> Value:
        root = value
        while (above := self._parent.get(root, root)) != root:
            root = above
        while value != root:
            self._parent[value], value = root, self._parent.get(value, root)
        return root

    def home(self, op: Op) -> Value:
        """The component whose shape the op computes in."""
        return self.find(op.result if is_elementwise(op) else self.base[op.inputs[0]])

    def targets(self) -> Iterator[tuple[Op, Shape]]:
        """Ops that are to compute in another shape than they do, with that shape."""
        members: dict[Value, list[Op]] = {}
        for op in self.ops:
            members.setdefault(self.home(op), []).append(op)
        rows = {self.find(op.result) for op in self.ops if fold_of(op) is Fold.ROWS}
        chosen = {home: _finest(ops) for home, ops in members.items() if home not in rows}
        for home, shapes in self._anchors(rows, chosen).items():
            chosen[home] = _finest(members.get(home, []), shapes)
        for home, ops in members.items():
            for op in ops:
                if _domain(op) != chosen[home] and can_compute_in(op, chosen[home]):
                    yield op, chosen[home]

    def _anchors(self, rows: set[Value], chosen: dict[Value, Shape]) -> dict[Value, list[Shape]]:
        """Shapes in which full components, in the shapes chosen for them, make and read rows."""
        found: dict[Value, list[Shape]] = {home: [] for home in rows}
        for op in self.ops:
            domain = _domain(op)
            shape = chosen.get(self.home(op), domain)
            shape = shape if can_compute_in(op, shape) else domain
            if fold_of(op) is Fold.ROWS:
                found[self.find(op.result)].append(rows_of(shape))
            if not is_elementwise(op):
                continue
            for value in op.inputs:
                home = self.find(self.base[value])
                if home in found and value.type.numel < op.result.type.numel:
                    read = translate(value.type.shape, domain, shape)
                    found[home] += [read] if read is not None and len(read) > 1 else []
        return found


def _finest(ops: list[Op], shapes: list[Shape] | None = None) -> Shape:
    """Of the shapes (or the ops' own) the one that fewest ops cannot take; then the finest."""
    candidates = dict.fromkeys(shapes or [_domain(op) for op in ops])

    def rank(shape: Shape) -> tuple[int, int, int]:
        behind = sum(not can_compute_in(op, shape) for op in ops)
        fine = sum(extent != 1 for extent in shape)
        return behind, -fine, len(shape)

    return min(candidates, key=rank)


def can_compute_in(op: Op, shape: Shape) -> bool:
    """Whether the op can compute over another shape of the same elements."""
    domain = _domain(op)
    if domain == shape:
        return True
    if not splits(domain, shape):
        return False  # a merged axis may have no stride
    fold = fold_of(op)
    if fold is Fold.ALL:
        return bool(shape)
    if fold is not None:
        return len(shape) > 1 and shape[-1:] == domain[-1:]
    operands = [translate(value.type.shape, domain, shape) for value in op.inputs]
    if None in operands:
        return False
    # Axes of extent 1 in front of every operand would be lost.
    return has(op, Tag.CREATION | Tag.RANDOM) or shape == broadcast_shapes(
        *(operand for operand in operands if operand is not None)
    )


def _domain(op: Op) -> Shape:
    domain = domain_of(op)
    assert domain is not None
    return domain


@dataclass
class _Mover:
    """Writes the graph anew; a moved op's old result is a reshape of the new one."""

    graph: Graph
    components: _Components
    targets: dict[Value, Shape]
    builder: GraphBuilder = field(init=False)
    moved: dict[Value, Value] = field(default_factory=dict)  # base -> where it is computed now
    shaped: dict[tuple[Value, Shape], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.builder = GraphBuilder(self.graph.name)
        self.builder.inputs += self.graph.inputs
        self.builder.outputs += self.graph.outputs
        self.builder.reserve(value.name for value in self.graph.values())

    def write(self, op: Op) -> None:
        self.builder.location = op.location
        shape = self.targets.get(op.results[0])
        if shape is not None:
            self._compute_in(op, shape)
        elif has(op, Tag.VIEW) or domain_of(op) is None:
            self.builder.add(op)
        else:
            operands = tuple(self._as(v, _shape_of(v)) for v in op.operands)
            self.builder.add(op if operands == op.operands else op.with_operands(operands))

    def _compute_in(self, op: Op, shape: Shape) -> None:
        fold = fold_of(op)
        if fold is None:
            domain = _domain(op)
            operands = tuple(
                self._as(v, translate(_shape_of(v), domain, shape)) for v in op.operands
            )
        else:
            operands = (self._as(op.inputs[0], shape),)
        attributes = dict(op.attributes)
        if "shape" in attributes:
            attributes["shape"] = shape
        if fold is not None:
            attributes["axes"] = _axes(fold, len(shape))
        if fold in (Fold.COLUMNS, Fold.ALL):
            self._define(op, operands, attributes)
            return
        value = self.builder.one(op.opcode, *operands, name=op.result.name, **attributes)
        self.moved[op.result] = value
        self._add_view(op, value)

    def _define(
        self, op: Op, operands: tuple[Operand, ...], attributes: dict[str, Attribute]
    ) -> None:
        self.builder.add(replace(op, operands=operands, attributes=make_attributes(**attributes)))

    def _add_view(self, op: Op, value: Value) -> None:
        attributes = make_attributes(shape=op.result.type.shape)
        self.builder.add(Op("reshape", (value,), (op.result,), attributes, op.location))

    def _as(self, operand: Operand, shape: Shape | None) -> Operand:
        """The operand in the given shape, through one reshape at most."""
        if not isinstance(operand, Value) or shape is None:
            return operand
        base = self.components.base[operand]
        current = self.moved.get(base, base)
        if current.type.shape == shape:
            return current
        if operand.type.shape == shape:
            return operand
        key = (current, shape)
        if key not in self.shaped:
            name = f"{operand.name}.shaped"
            self.shaped[key] = self.builder.one("reshape", current, name=name, shape=shape)
        return self.shaped[key]


def _shape_of(operand: Operand) -> Shape:
    return operand.type.shape if isinstance(operand, Value) else ()


def _axes(fold: Fold, rank: int) -> Shape:
    match fold:
        case Fold.ROWS:
            return (rank - 1,)
        case Fold.COLUMNS:
            return tuple(range(rank - 1))
    return tuple(range(rank))
