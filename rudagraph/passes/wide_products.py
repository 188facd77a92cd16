"""Products of widened 16-bit operands become products of the operands themselves.

    %a.f32 = cast(%a) [dtype=f32]                    %p = matmul(%a.t, %b) [dtype=f32]
    %a.t = permute(%a.f32) [axes=[1, 0]]
    %b.f32 = cast(%b) [dtype=f32]
    %p = matmul(%a.t, %b.f32)
The values are the same: a GPU's matrix units multiply 16-bit numbers exactly and add up in f32.
For targets whose library has such a product; the casts' memory is never needed.
"""

from __future__ import annotations

from dataclasses import replace

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Op, Operand, Value, make_attributes
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.rewrite import remove_dead
from rudagraph.ir.types import DType

_HALF = (DType.BF16, DType.F16)


def wide_products(graph: Graph) -> Graph:
    """The graph with such products."""
    producers = graph.producers()
    builder = GraphBuilder(graph.name, list(graph.inputs), [], list(graph.outputs))
    builder.reserve(value.name for value in graph.values())
    changed = False
    for op in graph.ops:
        narrow = _narrow(builder, op, producers)
        changed |= narrow is not op
        builder.add(narrow)
    return remove_dead(builder.finish()) if changed else graph


def _narrow(builder: GraphBuilder, op: Op, producers: dict[Value, Op]) -> Op:
    """The product on what its factors were cast from; the op itself where they were not."""
    if op.opcode not in ("matmul", "addmm") or op.result.type.dtype is not DType.F32:
        return op
    *first, left, right = op.operands
    chains = [_chain(factor, producers) for factor in (left, right)]
    sources = [chain[-1].inputs[0] for chain in chains if chain]
    if len(sources) < 2 or sources[0].type.dtype != sources[1].type.dtype:
        return op
    if sources[0].type.dtype not in _HALF or op.result.type.rank != 2:
        return op
    builder.location = op.location
    factors = [_again(builder, chain) for chain in chains]
    attributes = make_attributes(**dict(op.attributes), dtype=DType.F32)
    return replace(op, operands=(*first, *factors), attributes=attributes)


def _chain(value: Operand, producers: dict[Value, Op]) -> list[Op]:
    """From the value back to the cast that made it, through views; empty if there is none."""
    chain: list[Op] = []
    while isinstance(value, Value) and value in producers:
        op = producers[value]
        if op.opcode != "cast" and not has(op, Tag.VIEW):
            break
        chain.append(op)
        if op.opcode == "cast":
            return chain
        value = op.operands[0]
    return []


def _again(builder: GraphBuilder, chain: list[Op]) -> Value:
    """The views of a chain over what was cast."""
    value = chain[-1].inputs[0]
    for op in reversed(chain[:-1]):
        name = f"{op.result.name}.narrow"
        value = builder.one(op.opcode, value, name=name, **dict(op.attributes))
    return value
