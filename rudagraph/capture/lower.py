"""Joint trace -> IR graph, by the one lowering table.

Input: a joint trace and what its inputs and results are called outside. Output: a verified Graph
and the tensors of its constant inputs. Dead code and constants are gone.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from rudagraph.capture import (
    rows_batch_norm,
    rows_composites,
    rows_pointwise,
    rows_reductions,
    rows_strided,
    rows_tensors,
    rows_views,
)
from rudagraph.capture.cleanup import remove_dead
from rudagraph.capture.constants import Constants, is_random
from rudagraph.capture.inputs import Input
from rudagraph.capture.library import lower_library
from rudagraph.capture.lowering import Lowering
from rudagraph.capture.mistakes import HINT, refusal_of, spoken
from rudagraph.capture.names import describe_nodes, short_name
from rudagraph.capture.nodes import JointTrace, Label, Node, link
from rudagraph.capture.places import location_text
from rudagraph.capture.table import ROWS, WIDENED
from rudagraph.errors import RudagraphError, UnsupportedError, UsageError, VerifyError
from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.torch_types import type_of
from rudagraph.ir.type_rules import TypeRuleError
from rudagraph.ir.verify import verify

# The modules whose rows make up the table.
TABLES = (
    rows_pointwise,
    rows_views,
    rows_strided,
    rows_reductions,
    rows_tensors,
    rows_batch_norm,
    rows_composites,
)

_INPUT_ORDER = (Role.PARAMETER, Role.BUFFER, Role.ARGUMENT, Role.CONSTANT, Role.KEY, Role.TANGENT)
_OUTPUT_ORDER = (Role.RESULT, Role.UPDATE, Role.GRADIENT)


@dataclass(frozen=True)
class Lowered:
    """The graph, and the tensors of its inputs of role constant by target."""

    graph: Graph
    constants: dict[str, torch.Tensor]


def lower(
    trace: JointTrace, inputs: list[Input], results: list[str], outer: dict[int, torch.Tensor]
) -> Lowered:
    """The joint graph in IR; `results` are the paths of the traced function's results."""
    link(trace.nodes)
    alive = _alive(trace)
    builder = GraphBuilder("joint")
    described = describe_nodes(trace.nodes, _gradient_names(trace, inputs))
    low = Lowering(builder, Constants(trace.nodes, outer), described)
    for node, label in trace.inputs.items():
        if label.kind == "input" and node not in alive:
            continue
        low.environment[node] = _add_input(builder, node, label, inputs, results)
    for node in trace.nodes:
        if node.op == "call" and node in alive and node not in low.constants.nodes:
            low.environment[node] = _lower_node(low, node)
    for label, node in trace.outputs:
        if node in described:
            low.name = described[node].name
        builder.output(low.value(node), *_output_port(label, inputs, results))
    builder.inputs.sort(key=lambda port: _INPUT_ORDER.index(port.role))
    builder.outputs.sort(key=lambda port: _OUTPUT_ORDER.index(port.role))
    lowered = remove_dead(verify(builder.finish(), stage="capture"))
    used = {port.target for port in lowered.inputs if port.role is Role.CONSTANT}
    return Lowered(lowered, {name: low.tensors[name] for name in low.tensors if name in used})


def _alive(trace: JointTrace) -> set[Node]:
    """Nodes that an output depends on; an update that stores an input's own value is none."""
    alive: set[Node] = set()
    pending = [node for _, node in trace.outputs]
    while pending:
        node = pending.pop()
        if node not in alive:
            alive.add(node)
            pending.extend(node.inputs)
    return alive


def _gradient_names(trace: JointTrace, inputs: list[Input]) -> dict[Node, str]:
    """What the gradients of inputs are called, by the nodes of backward that give them."""
    return {
        node: f"grad.{inputs[label.index].target}"
        for label, node in trace.outputs
        if label.kind == "gradient" and node.op == "call"
    }


def _add_input(
    builder: GraphBuilder, node: Node, label: Label, inputs: list[Input], results: list[str]
) -> Value:
    type = type_of(node.traced)
    if label.kind == "tangent":
        path = results[label.index]
        return builder.input(f"tangent.{path}" if path else "tangent", type, Role.TANGENT, path)
    item = inputs[label.index]
    return builder.input(item.target, type, item.role, item.target)


def _output_port(label: Label, inputs: list[Input], results: list[str]) -> tuple[Role, str]:
    if label.kind == "result":
        return Role.RESULT, results[label.index]
    item = inputs[label.index]
    if label.kind == "update":
        return Role.UPDATE, f"{item.role.value}:{item.target}"
    if item.role is Role.ARGUMENT:
        return Role.GRADIENT, f"argument:{item.target}"
    return Role.GRADIENT, item.target


def _lower_node(low: Lowering, node: Node) -> Any:
    if node.target is operator.getitem:
        return low.value(node.args[0])[node.args[1]]
    low.start(node)
    try:
        _refuse_random(node)
        result = ROWS.get(node.target, lower_library)(low, node)
        _check(node, result)
    except TypeRuleError as error:
        if reason := refusal_of(node):
            raise _mistake(low, node, reason) from None
        raise VerifyError(
            f"lowering {node.target}: {error}", where=location_text(node.location)
        ) from error
    except RudagraphError as error:
        if not error.where:
            error.where = location_text(node.location)
        raise
    return result


def _mistake(low: Lowering, node: Node, reason: str) -> UsageError:
    """PyTorch would not run it either, but finds out only when it runs."""
    operands = [low.environment.get(operand) for operand in node.inputs]
    values = [value for value in operands if isinstance(value, Value)]
    given = ", ".join(f"{value.name} {spoken(value.type)}" for value in values)
    return UsageError(
        f"{short_name(node)}({given}) fails: {reason}", location_text(node.location), HINT
    )


def _refuse_random(node: Node) -> None:
    if is_random(node.target) and node.target not in ROWS:
        raise UnsupportedError(
            f"{node.target} draws random numbers: the step's own random numbers come from "
            "dropout only",
            hint="draw them outside the step and pass them as an argument, or use a dropout of "
            "torch.nn",
        )


def _check(node: Node, result: Any) -> None:
    """A row must give what the trace says: anything else is a fault of the row."""
    traced = node.traced
    values = result if isinstance(result, tuple) else (result,)
    wanted = traced if isinstance(traced, (tuple, list)) else (traced,)
    for value, fake in zip(values, wanted, strict=True):
        if value is None or value.type == type_of(fake):
            continue
        if node.target not in WIDENED or value.type.shape != tuple(fake.shape):
            raise VerifyError(
                f"lowering {node.target} gave {value.type}, the trace says {type_of(fake)}"
            )
