"""Orders of random and of hand-written graphs, against a peak counted naively."""

from __future__ import annotations

import random

import pytest

from rudagraph.ir.graph import Graph, Op, Port, Role, Value
from rudagraph.ir.text import parse_graph
from rudagraph.ir.types import DType, TensorType
from rudagraph.schedule.order import order

ROLES = (Role.PARAMETER, Role.ARGUMENT, Role.TANGENT)


def random_graph(seed: int) -> Graph:
    """A graph whose ops read what came before, many of them views; each view is read or kept."""
    draw = random.Random(seed)
    inputs = [Port(value("in", i, draw), draw.choice(ROLES), f"in{i}") for i in range(3)]
    values = [port.value for port in inputs]
    ops = []
    for index in range(draw.randint(1, 30)):
        operands = tuple(draw.choices(values, k=draw.choice((1, 2))))
        if draw.random() < 0.4:
            result = Value(f"view{index}", operands[0].type)
            ops.append(Op("permute", operands[:1], (result,), (("axes", (0,)),)))
        else:
            results = (value("a", index, draw), value("b", index, draw))
            ops.append(Op("fused", operands, results[: len(operands)]))
        values += ops[-1].results
    read = {operand for op in ops for operand in op.inputs}
    unread = [v for v in values if v.name.startswith("view") and v not in read]
    kept = dict.fromkeys((*draw.sample(values, 2), *unread))
    outputs = tuple(Port(kept_value, Role.RESULT, kept_value.name) for kept_value in kept)
    return Graph("backward", tuple(inputs), tuple(ops), outputs)


def value(name: str, index: int, draw: random.Random) -> Value:
    return Value(f"{name}{index}", TensorType(DType.F32, (draw.choice((1, 8, 64, 300)),)))


def peak(graph: Graph) -> int:
    """The most bytes of roots between the op that makes them and the last that reads them."""
    inputs = {port.value for port in graph.inputs}
    root = {port.value: port.value for port in graph.inputs}
    for op in graph.ops:
        for result in op.results:
            root[result] = root[op.operands[0]] if op.opcode == "permute" else result
    kept = {root[port.value] for port in graph.outputs}
    made = {root[v]: at for at, op in reversed([*enumerate(graph.ops)]) for v in op.results}
    read = {root[v]: at for at, op in enumerate(graph.ops) for v in (*op.inputs, *op.results)}
    return max(
        sum(
            v.type.bytes
            for v in made.keys() - inputs
            if made[v] <= at and (v in kept or at <= read[v])
        )
        for at in range(len(graph.ops))
    )


@pytest.mark.parametrize("seed", range(60))
def test_an_order_is_the_same_ops_in_no_more_memory(seed: int) -> None:
    graph = random_graph(seed)
    ordered = order(graph)
    assert (ordered.inputs, ordered.outputs) == (graph.inputs, graph.outputs)
    assert sorted(map(id, ordered.ops)) == sorted(map(id, graph.ops))
    defined = {port.value for port in graph.inputs}
    for op in ordered.ops:
        assert defined.issuperset(op.inputs)
        defined.update(op.results)
    assert peak(ordered) <= peak(graph)
    assert order(random_graph(seed)) == ordered


def test_what_is_computed_again_waits_for_its_reader() -> None:
    graph = parse_graph(
        """
graph backward {
  %t: f32[64] = input tangent "y"
  %a: f32[64] = input residual "a"
  %again: f32[64] = exp(%a)
  %g: f32[64] = mul(%t, %a)
  %h: f32[64] = mul(%g, %g)
  %d: f32[1] = mul(%h, %again)
  output gradient "a" = %d
}
"""
    )
    names = [op.results[0].name for op in order(graph).ops]
    assert names == ["g", "h", "again", "d"]
    assert peak(order(graph)) < peak(graph)


def test_the_last_reader_of_a_large_value_goes_first() -> None:
    graph = parse_graph(
        """
graph forward {
  %x: f32[4] = input argument "x"
  %big: f32[400] = exp(%x)
  %other: f32[400] = exp(%x)
  %small: f32[4] = neg(%big)
  %less: f32[4] = neg(%other)
  %y: f32[4] = add(%small, %less)
  output result "y" = %y
}
"""
    )
    names = [op.results[0].name for op in order(graph).ops]
    assert names == ["big", "small", "other", "less", "y"]
