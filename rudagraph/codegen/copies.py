"""Takes ops out of a fused body that do nothing to a register: copies and widening casts.

    %h: bf16 = add(%x, %r)
    %wide: f32 = cast(%h)           a bf16 register is an f32 that bf16 can hold: nothing to do
    %s = mul(%wide, %wide)          becomes mul(%h, %h)

Input: a body. Output: a body whose registers hold the same bits; operand types may no longer match
what the verifier asks for, so it is for code generation only. A result stays an op of its own.
"""

from __future__ import annotations

from dataclasses import replace

from rudagraph.codegen.expressions import REGISTER, needs_rounding
from rudagraph.ir.graph import Graph, Op, Value


def without_copies(body: Graph) -> Graph:
    """The body with users of a copy reading what it copies."""
    outputs = body.output_values()
    source: dict[Value, Value] = {}

    ops: list[Op] = []
    for op in body.ops:
        op = op.reading(source)
        if _changes_nothing(op):
            source[op.result] = op.inputs[0]
            if op.result not in outputs:
                continue
        ops.append(op)
    return replace(body, ops=tuple(ops))


def _changes_nothing(op: Op) -> bool:
    if op.opcode not in ("copy", "cast"):
        return False
    same_register = REGISTER[op.inputs[0].type.dtype] == REGISTER[op.result.type.dtype]
    return same_register and not needs_rounding(op)
