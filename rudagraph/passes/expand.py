"""Composites become primitives, so that they fuse with what is around them.

    %y = softmax(%x) [axis=1]
becomes
    %y.max = amax(%x) [axes=[1], keepdim=true]
    %y.exp = exp(sub(%x, %y.max))
    %y = div(%y.exp, sum(%y.exp))
One file per family holds the formulas. The result keeps its name; every other composite's results
do as well, and results that nobody reads are left to dead-code removal.
"""

from __future__ import annotations

from collections.abc import Callable

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.passes.expand_dropout import expand_dropout
from rudagraph.passes.expand_loss import expand_cross_entropy, expand_cross_entropy_backward
from rudagraph.passes.expand_norm import (
    expand_layer_norm,
    expand_layer_norm_backward,
    expand_rms_norm,
    expand_rms_norm_backward,
)
from rudagraph.passes.expand_softmax import (
    expand_log_softmax,
    expand_log_softmax_backward,
    expand_softmax,
    expand_softmax_backward,
)
from rudagraph.passes.expansion import Expansion

# Every composite of the op table; a test holds the two together.
EXPANSIONS: dict[str, Callable[[Expansion], None]] = {
    "softmax": expand_softmax,
    "log_softmax": expand_log_softmax,
    "softmax_backward": expand_softmax_backward,
    "log_softmax_backward": expand_log_softmax_backward,
    "layer_norm": expand_layer_norm,
    "layer_norm_backward": expand_layer_norm_backward,
    "rms_norm": expand_rms_norm,
    "rms_norm_backward": expand_rms_norm_backward,
    "dropout": expand_dropout,
    "cross_entropy": expand_cross_entropy,
    "cross_entropy_backward": expand_cross_entropy_backward,
}


def expand(graph: Graph) -> Graph:
    """The graph without composites."""
    if not any(has(op, Tag.COMPOSITE) for op in graph.ops):
        return graph
    builder = GraphBuilder(graph.name)
    builder.inputs += graph.inputs
    builder.outputs += graph.outputs
    builder.reserve(value.name for value in graph.values())
    parts: dict[Value, tuple[Value, ...]] = {}
    for op in graph.ops:
        if not has(op, Tag.COMPOSITE):
            builder.add(op)
            continue
        builder.location = op.location
        EXPANSIONS[op.opcode](Expansion(builder, op, parts))
    return builder.finish()
