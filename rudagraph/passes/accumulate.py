"""Sums of products run as products that add to what is there: the library's beta=1.

    %p = matmul(%a, %b)                           %p = matmul(%a, %b)
    %q = matmul(%c, %d)                           %q = addmm(%p, %c, %d)
    %s = add(%p, %q)                              (%s is %q)
Where a sum has several products (the gradient of what q, k and v read, of a tied weight), each adds
to the one before; other terms are added afterwards. A sum of one product and a value that dies in
it becomes `addmm` where no kernel could take the addition along. The plan lets an addmm write over
what it adds to, so a sum of products needs the memory of one.

Numerics: the addition happens in the product's accumulator and its result is rounded once, where
the captured program rounds the product and then the sum. In f32 and f64 that moves the last bit;
in bf16 and f16 it saves a rounding. Terms keep their order but for this: products come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Op, Value, make_attributes
from rudagraph.ir.ops import Tag, has
from rudagraph.passes.kernel_shapes import is_elementwise


def accumulate(graph: Graph) -> Graph:
    """The graph with its sums of products as chains of addmm."""
    sums = _Sums(graph)
    found = [total for op in graph.ops if (total := sums.of(op)) is not None]
    return _write(graph, found) if found else graph


@dataclass
class _Sum:
    """One sum: its last add, the adds inside it, and its terms."""

    root: Op
    inner: list[Op] = field(default_factory=list)  # adds and reshapes that the sum replaces
    products: list[Op] = field(default_factory=list)
    others: list[Value] = field(default_factory=list)  # in the shape of the sum
    base: Value | None = None  # what the first product adds to


class _Sums:
    """Finds sums, the largest first: an add inside another is part of it."""

    def __init__(self, graph: Graph) -> None:
        self.producers = graph.producers()
        self.users = graph.users()
        self.position = {op.results[0]: at for at, op in enumerate(graph.ops)}
        self.outputs = graph.output_values()

    def of(self, op: Op) -> _Sum | None:
        """The sum that ends with this op, if a chain of products can stand for it."""
        if not _is_sum(op) or self._is_inner(op):
            return None
        total = _Sum(op)
        for operand in op.inputs:
            self._collect(operand, total)
        total.products.sort(key=lambda product: self.position[product.result])
        if not total.products or not self._fits(total):
            return None
        return total if len(total.products) > 1 else self._with_base(total)

    def _is_inner(self, op: Op) -> bool:
        """Whether another add takes the op's result as a term, reshaped or not."""
        value = op.result
        while self._is_single(value):
            (user,) = self.users[value]
            if user.opcode != "reshape":
                return _is_sum(user)
            value = user.result
        return False

    def _is_single(self, value: Value) -> bool:
        return value not in self.outputs and len(self.users[value]) == 1

    def _collect(self, value: Value, total: _Sum) -> None:
        """Sort the value among the terms, looking into adds and reshapes that nobody else reads."""
        path: list[Op] = []
        inside = value
        while self._is_single(inside):
            op = self.producers.get(inside)
            if op is None or (op.opcode == "add" and not _is_sum(op)):
                break
            if op.opcode == "reshape":
                path.append(op)
                inside = op.inputs[0]
                continue
            if has(op, Tag.MATMUL) and op.result.type.rank == 2:
                total.products.append(op)
                total.inner += path
                return
            # Inside a reshape only a product helps: the others would have to be reshaped.
            if op.opcode == "add" and not path:
                total.inner.append(op)
                for operand in op.inputs:
                    self._collect(operand, total)
                return
            break
        total.others.append(value)

    def _fits(self, total: _Sum) -> bool:
        """Products of one shape, of which only the first may add to something already."""
        same = len({product.result.type for product in total.products}) == 1
        return same and all(product.opcode == "matmul" for product in total.products[1:])

    def _with_base(self, total: _Sum) -> _Sum | None:
        """One product and one value: only where the value dies and no kernel reads the sum."""
        (product,) = total.products
        base = total.others[0]
        if len(total.others) != 1 or product.opcode == "addmm":
            return None
        maker = self.producers.get(base)
        dies = self._is_single(base) and base.type == product.result.type
        owned = maker is not None and not has(maker, Tag.VIEW)
        if not dies or not owned or self.position[base] > self.position[product.result]:
            return None
        if any(is_elementwise(user) or has(user, Tag.REDUCTION) for user in self._readers(total)):
            return None
        total.base, total.others = base, []
        return total

    def _readers(self, total: _Sum) -> Iterator[Op]:
        """Who reads the sum, views looked through."""
        stack = [total.root.result]
        while stack:
            for user in self.users[stack.pop()]:
                if has(user, Tag.VIEW):
                    stack += user.results
                else:
                    yield user


def _is_sum(op: Op) -> bool:
    """An add of two tensors of one shape."""
    return (
        op.opcode == "add"
        and len(set(op.inputs)) == 2
        and all(value.type == op.result.type for value in op.inputs)
        and op.result.type.dtype.is_floating
    )


def _write(graph: Graph, sums: list[_Sum]) -> Graph:
    """Each product after the first adds to the one before, at its own place."""
    builder = GraphBuilder(graph.name, list(graph.inputs), [], list(graph.outputs))
    builder.reserve(value.name for value in graph.values())
    changed: dict[Value, Op] = {}  # by the result of the op that it replaces
    ends: dict[Value, tuple[_Sum, Value]] = {}  # by the result of the last add
    gone: set[Value] = set()
    for total in sums:
        gone.update(op.result for op in total.inner)
        previous, rest = total.base, total.products
        if previous is None:
            previous, rest = rest[0].result, rest[1:]
        end = previous
        for product in rest:
            operands, end = (previous, *product.operands), product.result
            previous = builder.fresh(f"{total.root.result.name}.part", end.type)
            changed[end] = replace(product, opcode="addmm", operands=operands, results=(previous,))
        whole = not total.others and previous.type == total.root.result.type
        if whole and end in changed:
            gone.add(total.root.result)
            changed[end] = replace(changed[end], results=total.root.results)
        else:
            ends[total.root.result] = (total, previous)
    for op in graph.ops:
        result = op.results[0]
        if result in ends:
            _end(builder, *ends[result])
        elif result not in gone:
            builder.add(changed.get(result, op))
    return builder.finish()


def _end(builder: GraphBuilder, total: _Sum, chain: Value) -> None:
    """The sum's own result from the chain of products and the other terms, in order."""
    root = total.root
    builder.location = root.location
    shape = root.result.type.shape
    if not total.others:
        attributes = make_attributes(shape=shape)
        builder.add(Op("reshape", (chain,), root.results, attributes, root.location))
        return
    if chain.type.shape != shape:
        chain = builder.one("reshape", chain, name=f"{chain.name}.shaped", shape=shape)
    first, *rest = total.others
    for term in rest:
        first = builder.one("add", first, term, name=f"{root.result.name}.others")
    builder.add(replace(root, operands=(first, chain)))
