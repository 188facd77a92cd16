"""The contract of a fused body, checked: what code generation may rely on."""

from __future__ import annotations

from rudagraph.ir.graph import Op
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.types import broadcast_shapes
from rudagraph.passes.kernel_shapes import (
    Fold,
    broadcasts_to,
    fold_of,
    is_elementwise,
    leaves_only,
    may_leave,
)


def check_body(op: Op) -> None:
    body = op.body
    assert body is not None
    assert body.ops, "an empty kernel"
    shapes = [
        value.type.shape
        for inner in body.ops
        for value in (inner.inputs if has(inner, Tag.REDUCTION) else inner.results)
    ]
    domain = broadcast_shapes(*shapes)
    sums = set()
    for inner in body.ops:
        assert is_elementwise(inner) or fold_of(inner) is not None, f"{inner.opcode} in a body"
        assert not sums.intersection(inner.inputs), "a column sum is read inside its kernel"
        for value in inner.inputs:
            assert broadcasts_to(value.type.shape, domain)
        fold = fold_of(inner)
        if leaves_only(inner):
            sums.add(inner.result)
        if fold in (Fold.ROWS, Fold.COLUMNS):
            assert inner.inputs[0].type.shape == domain
        if fold is Fold.ALL:
            assert may_leave(inner.inputs[0].type.shape, domain)
    defined = {value for inner in body.ops for value in inner.results}
    outputs = [port.value for port in body.outputs]
    assert len(set(outputs)) == len(outputs) > 0
    for value in outputs:
        assert value in defined, "an operand is passed through"
        assert value in sums or may_leave(value.type.shape, domain)
    used = {value for inner in body.ops for value in inner.inputs}
    assert defined <= used | set(outputs), "a body value that nobody reads"
    assert {port.value for port in body.inputs} <= used
