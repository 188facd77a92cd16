"""Result types of an op, from its row of the op table.

Input: an op's opcode, operands, attributes and body. Output: its result types. Invariant: what
does not fit the op raises TypeRuleError with the reason. Equal layers ask the same questions, so
answers are remembered by all that the rules can see.
"""

from __future__ import annotations

from collections.abc import Mapping

from rudagraph.ir import type_rules as rules
from rudagraph.ir.graph import Attribute, Graph, Operand, Value
from rudagraph.ir.ops import OPS
from rudagraph.ir.types import TensorType


def infer(
    opcode: str,
    operands: tuple[Operand, ...],
    attributes: Mapping[str, Attribute],
    body: Graph | None = None,
) -> tuple[TensorType, ...]:
    """Result types; raises TypeRuleError where operands or attributes do not fit the op."""
    if body is not None:
        return _inferred(opcode, operands, attributes, body)
    # Equal layers ask the same: what the rules can see of operands and attributes is the key.
    seen = tuple(o.type if isinstance(o, Value) else (type(o), o) for o in operands)
    key = (opcode, seen, tuple((name, _exactly(attributes[name])) for name in attributes))
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) > _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[key] = _inferred(opcode, operands, attributes, None)
    return known


_KNOWN: dict[object, tuple[TensorType, ...]] = {}
_MOST_KNOWN = 1 << 16


def _exactly(attribute: Attribute) -> object:
    """To Python 1, 1.0 and true are equal, to the rules they are not."""
    if isinstance(attribute, tuple):
        return tuple(map(_exactly, attribute))
    return type(attribute), attribute


def _inferred(
    opcode: str,
    operands: tuple[Operand, ...],
    attributes: Mapping[str, Attribute],
    body: Graph | None,
) -> tuple[TensorType, ...]:
    spec = OPS.get(opcode)
    if spec is None:
        raise rules.TypeRuleError(f"there is no op named {opcode}")
    least, most = spec.operands
    if len(operands) < least or (most is not None and len(operands) > most):
        wanted = (
            str(least) if most == least else f"{least} to {most if most is not None else 'any'}"
        )
        raise rules.TypeRuleError(f"{opcode} takes {wanted} operands, not {len(operands)}")
    unknown = [name for name in attributes if name not in spec.attributes]
    if unknown:
        known = ", ".join(spec.attributes) or "none"
        raise rules.TypeRuleError(f"{opcode} has no attribute {unknown[0]}; it has: {known}")
    return spec.infer(operands, attributes, body)
