"""One op on given tensors, through a graph of its own."""

from __future__ import annotations

import torch

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Attribute, Graph, Number, Operand, Role
from rudagraph.ir.interpret import interpret
from rudagraph.ir.text import parse_graph
from rudagraph.ir.torch_types import type_of
from rudagraph.ir.types import TensorType
from rudagraph.ir.verify import verify


def apply(
    opcode: str,
    *operands: torch.Tensor | Number | None,
    types: list[str] | None = None,
    precision: torch.dtype | None = None,
    **attributes: Attribute,
) -> list[torch.Tensor]:
    """The op's results by the interpreter; `types` declares those of a library op."""
    graph, inputs = single(opcode, *operands, types=types, **attributes)
    got = interpret(graph, inputs, precision=precision)
    return [got[port.value.name] for port in graph.outputs]


def single(
    opcode: str,
    *operands: torch.Tensor | Number | None,
    types: list[str] | None = None,
    **attributes: Attribute,
) -> tuple[Graph, dict[str, torch.Tensor]]:
    """A verified graph of the one op, results named r, and its inputs."""
    builder = GraphBuilder("single")
    inputs: dict[str, torch.Tensor] = {}
    given: list[Operand] = []
    for operand in operands:
        if not isinstance(operand, torch.Tensor):
            given.append(operand)
            continue
        value = builder.input("x", type_of(operand), Role.ARGUMENT)
        inputs[value.name] = operand
        given.append(value)
    declared = None if types is None else tuple(map(parse_type, types))
    for value in builder.emit(opcode, *given, name="r", types=declared, **attributes):
        builder.output(value, Role.RESULT)
    return verify(builder.finish()), inputs


def parse_type(text: str) -> TensorType:
    return parse_graph(f"graph g {{ %x: {text} = input argument }}").inputs[0].value.type
