"""The verifier: SSA and type rules, checked after every pass.

A violation is a VerifyError that shows the ops around the faulty one with the message under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Attribute, Graph, Hole, Op, Role, Value
from rudagraph.ir.infer import infer
from rudagraph.ir.ops import OPS, Tag
from rudagraph.ir.text import BODY, NAME, print_op
from rudagraph.ir.type_rules import TypeRuleError, declared, fail_unless

_INPUT_ROLES = frozenset(Role) - {Role.RESULT, Role.UPDATE, Role.GRADIENT}
_OUTPUT_ROLES = frozenset((Role.RESULT, Role.UPDATE, Role.GRADIENT, Role.RESIDUAL))


def verify(
    graph: Graph,
    *,
    stage: str = "",
    forbidden: Tag = Tag.NONE,
    verified: Graph | None = None,
) -> Graph:
    """Return the graph if it keeps all rules; raise VerifyError otherwise.

    Args:
        stage: named in the message (the pass just run).
        forbidden: tags that no op may carry at this stage (composites once scheduled, say).
        verified: a graph that keeps all rules; what an op of it gives is not inferred again.
    """
    # What has been verified: ops, and bodies, which equal ops of equal layers share.
    known = set(map(id, verified.ops)) if verified is not None else set()
    _verify_section(graph, stage or graph.name, forbidden, known, nested=False)
    return graph


def _verify_section(
    graph: Graph, stage: str, forbidden: Tag, known: set[int], *, nested: bool
) -> None:
    def fail(index: int | None, message: str) -> VerifyError:
        return VerifyError(
            what="\n".join([message, *_excerpt(graph, index)]),
            where=f"graph {graph.name} after {stage}",
            hint="this is a fault of the pass just run; RUDAGRAPH_DUMP=dir writes every stage",
        )

    defined: dict[str, Value] = {}
    for port in graph.inputs:
        if port.role not in _INPUT_ROLES:
            raise fail(None, f"{port.value} cannot be an input of role {port.role.value}")
        if port.value.name in defined:
            raise fail(None, f"{port.value} is defined twice")
        if not NAME.fullmatch(port.value.name):
            raise fail(None, f"{port.value.name!r} is no name: letters, digits, _ and . only")
        defined[port.value.name] = port.value
    for index, op in enumerate(graph.ops):
        if id(op) in known:
            _verify_use(op, index, defined, forbidden, fail)
            continue
        _verify_op(op, index, defined, forbidden, nested, fail)
        if op.body is not None and id(op.body) not in known:
            _verify_section(op.body, stage, forbidden, known, nested=True)
            known.add(id(op.body))
    for port in graph.outputs:
        if port.role not in _OUTPUT_ROLES:
            raise fail(None, f"{port.value} cannot be an output of role {port.role.value}")
        if defined.get(port.value.name) != port.value:
            raise fail(None, f"output {port.value} is not defined")


def _verify_use(
    op: Op,
    index: int,
    defined: dict[str, Value],
    forbidden: Tag,
    fail: Callable[[int | None, str], VerifyError],
) -> None:
    """What depends on the ops before this one."""
    if forbidden and (found := OPS[op.opcode].tags & forbidden):
        raise fail(index, f"{op.opcode} ({found}) must be gone by now")
    for value in op.inputs:
        known = defined.get(value.name)
        if known is None:
            raise fail(index, f"{value} is used before it is defined")
        if known is not value and known.type != value.type:
            raise fail(index, f"{value} is {known.type}, the operand says {value.type}")
    for value in op.results:
        if value.name in defined:
            raise fail(index, f"{value} is defined twice")
        defined[value.name] = value


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
    if nested and op.body is not None:
        raise fail(index, "a fused body cannot hold a fused op")
    if op.body is not None and op.body.name != BODY:
        raise fail(index, f"a body is named {BODY}, not {op.body.name}")
    _verify_use(op, index, defined, forbidden, fail)
    given = tuple(value.type for value in op.results)
    try:
        if spec.infer is declared:
            _check_library(op)
            wanted = given
        else:
            wanted = infer(op.opcode, op.operands, dict(op.attributes), op.body)
    except TypeRuleError as error:
        raise fail(index, str(error)) from None
    if wanted != given:
        raise fail(index, f"results are {_types(given)}, the op gives {_types(wanted)}")
    if not given:
        raise fail(index, f"{op.opcode} has no result")
    for value in op.results:
        if not NAME.fullmatch(value.name):
            raise fail(index, f"{value.name!r} is no name: letters, digits, _ and . only")


def _check_library(op: Op) -> None:
    """A library op names its target and a call whose holes are its operands."""
    fail_unless(isinstance(op.get("target"), str), "a library op needs a target")
    unknown = [name for name, _ in op.attributes if name not in OPS["library"].attributes]
    fail_unless(not unknown, f"library has no attribute {', '.join(unknown)}")
    arguments, keywords = op.get("arguments", ()), op.get("keywords", ())
    fail_unless(isinstance(arguments, tuple), f"arguments must be a list, not {arguments!r}")
    fail_unless(
        isinstance(keywords, tuple) and all(_is_pair(item) for item in keywords),
        f"keywords must be pairs of name and value, not {keywords!r}",
    )
    for index in _holes((arguments, keywords)):
        fail_unless(index < len(op.operands), f"the call has a hole ${index} that no operand fills")


def _is_pair(item: Attribute) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def _holes(attribute: Attribute) -> Iterator[int]:
    if isinstance(attribute, Hole):
        yield attribute.index
    elif isinstance(attribute, tuple):
        for item in attribute:
            yield from _holes(item)


def _types(types: tuple[object, ...]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _excerpt(graph: Graph, index: int | None) -> list[str]:
    if index is None:
        return []
    lines: list[str] = []
    for at in range(max(0, index - 2), min(len(graph.ops), index + 2)):
        text = print_op(graph.ops[at]).splitlines()
        lines += ["  " + line for line in text]
        if at == index:
            lines.append("  ^ here")
    return lines
