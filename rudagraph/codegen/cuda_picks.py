"""One element of a row that is not like the others: the class of a cross-entropy.

    %hit = eq(%class, %target)        %class counts 0, 1, 2, …; %target is one number a row
    %at_target = where(%hit, %v, 0)   %chosen = sum(%at_target) over the row

Input: the stages of a body. Output: `Pick`s, for a loop shape that computes %v at one place instead
of comparing every element: of a sum, or of a stored result, which is then stored twice there.
Invariant: the same bits, since a sum of one number and zeros is it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rudagraph.codegen.stages import Place, Stages
from rudagraph.ir.graph import Op, Value
from rudagraph.ir.ops import Tag, has


@dataclass(frozen=True)
class Pick:
    """`fold` gives `value` at index `target` of the row, 0 where that is outside."""

    fold: Op
    value: Value
    target: Value
    operands: tuple[Value, ...]  # element operands that the value is made of


def find_pick(stages: Stages, fold: Op) -> Pick | None:
    """The pick that a row reduction is, if it is one."""
    chosen = stages.producer.get(fold.inputs[0])
    if fold.opcode != "sum" or chosen is None or chosen.opcode != "where":
        return None
    condition, value, other = chosen.operands
    if not isinstance(condition, Value) or not isinstance(value, Value) or other != 0:
        return None
    target = _compared(stages, condition)
    operands = _operands(stages, value)
    if target is None or operands is None or fold.result.type.dtype != value.type.dtype:
        return None
    return Pick(fold, value, target, operands)


@dataclass(frozen=True)
class StoredPick:
    """`value` is stored; `hit` tells its element `target` from the others."""

    value: Value
    hit: Value
    target: Value
    operands: tuple[Value, ...]


def find_stored_pick(stages: Stages, value: Value) -> StoredPick | None:
    """The element of a stored result that a comparison with its index singles out."""
    hits: dict[Value, Value] = {}
    operands: dict[Value, None] = {}

    def visit(current: Value) -> bool:
        if stages.place.get(current) is not Place.ELEMENT or current in hits:
            return True
        op = stages.producer.get(current)
        if op is None:
            operands[current] = None
            return True
        target = _compared(stages, current)
        if target is not None:
            hits[current] = target
            return True
        if op.opcode == "iota" or has(op, Tag.RANDOM) or has(op, Tag.REDUCTION):
            return False
        return all(visit(operand) for operand in op.inputs)

    if not visit(value) or len(hits) != 1:
        return None
    ((hit, target),) = hits.items()
    return StoredPick(value, hit, target, tuple(operands))


def is_index(stages: Stages, value: Value) -> bool:
    """Whether the value counts the elements of the row: 0, 1, 2, …"""
    op = stages.producer.get(value)
    if op is None or op.opcode != "iota" or (op["start"], op["step"]) != (0, 1):
        return False
    return stages.nest.inner_stride(value.name) == 1


def _compared(stages: Stages, condition: Value) -> Value | None:
    test = stages.producer.get(condition)
    if test is None or test.opcode != "eq" or len(test.inputs) != 2:
        return None
    for counted, wanted in (test.inputs, reversed(test.inputs)):
        is_number = stages.place.get(wanted) is not Place.ELEMENT
        if is_index(stages, counted) and is_number and not wanted.type.dtype.is_floating:
            return wanted
    return None


def _operands(stages: Stages, value: Value) -> tuple[Value, ...] | None:
    """Element operands below a value; None where it depends on an element's place otherwise."""
    found: dict[Value, None] = {}

    def visit(current: Value) -> bool:
        if stages.place.get(current) is not Place.ELEMENT:
            return True
        op = stages.producer.get(current)
        if op is None:
            found[current] = None
            return True
        if op.opcode == "iota" or has(op, Tag.RANDOM) or has(op, Tag.REDUCTION):
            return False
        return all(visit(operand) for operand in op.inputs)

    return tuple(found) if visit(value) else None
