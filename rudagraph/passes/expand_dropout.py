"""dropout as a random mask and a choice; its derivative is dropout again, so both share the mask.

    %y = dropout(%x, %key) [probability=0.1, stream=3]
becomes
    %kept = bernoulli(%key) [bits=16, probability=0.1, shape=[8, 512], stream=3]
    %y = where(%kept, mul(%x, 1.1111111111111112), 0)
"""

from __future__ import annotations

from rudagraph.ir.random import bits_for, dropout_scale
from rudagraph.passes.expansion import Expansion


def expand_dropout(e: Expansion) -> None:
    x, key = e.value(0), e.value(1)
    probability = e.number("probability")
    kept = e.one(
        "kept",
        "bernoulli",
        key,
        bits=bits_for(probability),
        probability=probability,
        shape=x.type.shape,
        stream=e.integer("stream"),
    )
    scaled = e.one("scaled", "mul", e.wide(x), dropout_scale(probability))
    e.define_cast(e.op.result, e.one("chosen", "where", kept, scaled, 0))
