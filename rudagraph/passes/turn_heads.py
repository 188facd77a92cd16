"""What attention reads is computed with heads inside the sequence, as its kernels lay out results.

    %q = add(%a, %b)             [B,H,S,D]   %q = add(%a, %b)
    %o, %l = attention(%q, ...)              %q.turned = permute(%q) [axes=[0, 2, 1, 3]]
                                             %q.heads = permute(%q.turned) [axes=[0, 2, 1, 3]]
                                             %o, %l = attention(%q.heads, ...)
Attention kernels give their results the strides of their operands. The first permute is what
hoist_permutes then finds behind an elementwise op; where it cannot hoist, simplify removes both.
"""

from __future__ import annotations

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Op, Operand, Value
from rudagraph.passes.kernel_shapes import is_elementwise

_TURN = (0, 2, 1, 3)
# Operands with heads: q, k, v; in backward the gradient before them.
_HEADS = {"attention": 3, "attention_backward": 4}


def turn_heads(graph: Graph) -> Graph:
    """The graph with such pairs of permutes in front of attention."""
    producers = graph.producers()
    builder = GraphBuilder(graph.name, list(graph.inputs), [], list(graph.outputs))
    builder.reserve(value.name for value in graph.values())
    made: dict[Operand, Value] = {}

    def turned(operand: Operand) -> Operand:
        if operand in made:
            return made[operand]
        if not isinstance(operand, Value) or not _is_computed(operand, producers):
            return operand
        inside = builder.one("permute", operand, name=f"{operand.name}.turned", axes=_TURN)
        made[operand] = builder.one("permute", inside, name=f"{operand.name}.heads", axes=_TURN)
        return made[operand]

    for op in graph.ops:
        count = _HEADS.get(op.opcode, 0)
        builder.location = op.location
        operands = (*map(turned, op.operands[:count]), *op.operands[count:])
        builder.add(op if operands == op.operands else op.with_operands(operands))
    return builder.finish() if made else graph


def _is_computed(value: Value, producers: dict[Value, Op]) -> bool:
    """Whether an elementwise op makes the value, a reshape behind it looked through."""
    maker = producers.get(value)
    if maker is not None and maker.opcode == "reshape":
        maker = producers.get(maker.inputs[0])
    return maker is not None and is_elementwise(maker)
