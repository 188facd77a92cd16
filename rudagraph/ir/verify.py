"""The verifier: SSA and type rules, checked after every pass.

A violation is a VerifyError that shows the ops around the faulty one with the message under it.
"""

from __future__ import annotations

from collections.abc import Callable

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Graph, Op, Role, Value
from rudagraph.ir.ops import OPS, Tag, infer
from rudagraph.ir.text import print_op
from rudagraph.ir.type_rules import TypeRuleError, declared

_INPUT_ROLES = frozenset(Role) - {Role.RESULT, Role.UPDATE, Role.GRADIENT}
_OUTPUT_ROLES = frozenset((Role.RESULT, Role.UPDATE, Role.GRADIENT, Role.RESIDUAL))


def verify(graph: Graph, *, stage: str = "", forbidden: Tag = Tag.NONE) -> Graph:
    """Return the graph if it keeps all rules; raise VerifyError otherwise.

    Args:
        stage: named in the message (the pass just run).
        forbidden: tags that no op may carry at this stage (composites once scheduled, say).
    """
    _verify_section(graph, stage or graph.name, forbidden, nested=False)
    return graph


def _verify_section(graph: Graph, stage: str, forbidden: Tag, *, nested: bool) -> None:
    def fail(index: int | None, message: str) -> VerifyError:
        return VerifyError(
            what=f"{message}\n{_excerpt(graph, index)}",
            where=f"graph {graph.name} after {stage}",
            hint="this is a fault of the pass just run; RUDAGRAPH_DUMP=dir writes every stage",
        )

    defined: dict[str, Value] = {}
    for port in graph.inputs:
        if port.role not in _INPUT_ROLES:
            raise fail(None, f"%{port.value.name} cannot be an input of role {port.role.value}")
        if port.value.name in defined:
            raise fail(None, f"%{port.value.name} is defined twice")
        defined[port.value.name] = port.value
    for index, op in enumerate(graph.ops):
        _verify_op(op, index, defined, forbidden, nested, fail)
        if op.body is not None:
            _verify_section(op.body, stage, forbidden, nested=True)
    for port in graph.outputs:
        if port.role not in _OUTPUT_ROLES:
            raise fail(None, f"%{port.value.name} cannot be an output of role {port.role.value}")
        if defined.get(port.value.name) != port.value:
            raise fail(None, f"output %{port.value.name} is not defined")


def _verify_op(
    op: Op,
    index: int,
    defined: dict[str, Value],
    forbidden: Tag,
    nested: bool,
    fail: Callable[[int | None, str], VerifyError],
) -> None:
    spec = OPS.get(op.opcode)
    if spec is None:
        raise fail(index, f"there is no op named {op.opcode}")
    if spec.tags & forbidden:
        raise fail(index, f"{op.opcode} ({spec.tags & forbidden}) must be gone by now")
    if nested and op.body is not None:
        raise fail(index, "a fused body cannot hold a fused op")
    for value in op.inputs:
        known = defined.get(value.name)
        if known is None:
            raise fail(index, f"%{value.name} is used before it is defined")
        if known.type != value.type:
            raise fail(index, f"%{value.name} is {known.type}, the operand says {value.type}")
    given = tuple(value.type for value in op.results)
    if spec.infer is not declared:
        try:
            wanted = infer(op.opcode, op.operands, dict(op.attributes), op.body)
        except TypeRuleError as error:
            raise fail(index, str(error)) from None
        if wanted != given:
            raise fail(index, f"results are {_types(given)}, the op gives {_types(wanted)}")
    for value in op.results:
        if value.name in defined:
            raise fail(index, f"%{value.name} is defined twice")
        defined[value.name] = value


def _types(types: tuple[object, ...]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _excerpt(graph: Graph, index: int | None) -> str:
    if index is None:
        return ""
    lines: list[str] = []
    for at in range(max(0, index - 2), min(len(graph.ops), index + 2)):
        text = print_op(graph.ops[at]).splitlines()
        lines += ["  " + line for line in text]
        if at == index:
            lines.append("  ^ here")
    return "\n".join(lines)
