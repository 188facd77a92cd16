"""The interpreter: what every op means, in eager torch. It is the oracle of all tests.

Input: a graph and a tensor per graph input. Output: tensors by value name. Invariant: a row of the
semantics tables computes in the op's compute type, and the one rounding to the declared type
happens here, at the op's boundary. With `precision`, floating values are held in that type
throughout and nothing rounds: the yardstick for errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rudagraph.errors import UsageError, VerifyError
from rudagraph.ir.graph import Attribute, Graph, Hole, Op, Value
from rudagraph.ir.interpret_composites import COMPOSITES
from rudagraph.ir.interpret_pointwise import POINTWISE
from rudagraph.ir.interpret_tensors import TENSORS
from rudagraph.ir.semantics import Context, Loaded, Results
from rudagraph.ir.text import print_op
from rudagraph.ir.types import DType, TensorType

Tensors = dict[str, torch.Tensor]


def interpret(
    graph: Graph,
    inputs: Mapping[str, torch.Tensor],
    *,
    precision: torch.dtype | None = None,
    intermediates: bool = False,
) -> Tensors:
    """The graph's outputs by value name; with `intermediates` every value it defines."""
    context = Context(precision)
    environment: dict[Value, torch.Tensor] = {}
    for port in graph.inputs:
        environment[port.value] = _input(port.value, inputs, context)
        context.device = environment[port.value].device
    with torch.no_grad():
        _run(graph, environment, context)
    wanted = graph.values() if intermediates else [port.value for port in graph.outputs]
    return {value.name: environment[value] for value in wanted}


def evaluate(op: Op, operands: tuple[Loaded, ...], context: Context) -> tuple[torch.Tensor, ...]:
    """The results of one op, rounded to their declared types."""
    results = SEMANTICS[op.opcode](op, operands, context)
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(op.results):
        raise _mismatch(op, f"gives {len(results)} results")
    return tuple(
        _rounded(op, value.type, result, context)
        for value, result in zip(op.results, results, strict=True)
    )


def _input(value: Value, inputs: Mapping[str, torch.Tensor], context: Context) -> torch.Tensor:
    if value.name not in inputs:
        raise UsageError(f"no tensor is given for input {value}: {value.type}")
    tensor = inputs[value.name].detach()
    if tuple(tensor.shape) != value.type.shape:
        raise UsageError(f"input {value}: {value.type} is given shape {list(tensor.shape)}")
    wanted = context.storage(value.type.dtype)
    exact = context.precision is None or not value.type.dtype.is_floating
    if exact and tensor.dtype != wanted:
        raise UsageError(f"input {value}: {value.type} is given dtype {tensor.dtype}")
    return tensor.to(wanted)


def _run(graph: Graph, environment: dict[Value, torch.Tensor], context: Context) -> None:
    for op in graph.ops:
        operands = tuple(
            environment[operand] if isinstance(operand, Value) else operand
            for operand in op.operands
        )
        environment.update(zip(op.results, evaluate(op, operands, context), strict=True))


def _rounded(op: Op, type: TensorType, result: torch.Tensor, context: Context) -> torch.Tensor:
    """The result in its storage type; a row that gives another shape is at fault."""
    if tuple(result.shape) != type.shape:
        raise _mismatch(op, f"gives shape {list(result.shape)} for {type}")
    return result.to(context.storage(type.dtype))


def _mismatch(op: Op, what: str) -> VerifyError:
    return VerifyError(f"{op.opcode} {what}", where=print_op(op))


# -- ops whose meaning is a graph or PyTorch itself


def _fused(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    body = op.body
    if body is None:
        raise _mismatch(op, "has no body")
    environment: dict[Value, torch.Tensor] = {}
    for port, operand in zip(body.inputs, operands, strict=True):
        if not isinstance(operand, torch.Tensor):
            raise _mismatch(op, f"passes {operand!r} where its body expects a tensor")
        environment[port.value] = operand
    _run(body, environment, context)
    return tuple(environment[port.value] for port in body.outputs)


def _library(op: Op, operands: tuple[Loaded, ...], context: Context) -> Results:
    """Call the ATen op; results are its tensors in order, lists flattened, None left out."""

    def fill(attribute: Attribute) -> Any:
        match attribute:
            case Hole(index):
                # Some operators insist on row-major operands; none gives other numbers for them.
                operand = operands[index]
                return operand.contiguous() if isinstance(operand, torch.Tensor) else operand
            case DType():
                return context.storage(attribute)
            case str() if attribute.startswith("torch."):
                return getattr(torch, attribute.removeprefix("torch."))  # a memory format
            case tuple():
                return [fill(item) for item in attribute]
        return attribute

    keywords = op.get("keywords", ())
    if not isinstance(keywords, tuple):
        raise _mismatch(op, f"has keywords {keywords!r}, not a list of pairs")
    named = dict(_pair(op, item) for item in keywords)
    function = library_function(str(op["target"]))
    positional = fill(op.get("arguments", ()))
    filled = {name: fill(value) for name, value in named.items()}
    mask = output_mask(function, positional, filled)
    tensors = library_results(function(*positional, **filled), mask)
    if context.precision is None:
        for value, tensor in zip(op.results, tensors, strict=False):
            if tensor.dtype != context.storage(value.type.dtype):
                raise _mismatch(op, f"gives {tensor.dtype} for {value.type}")
    return tensors


def _pair(op: Op, item: Attribute) -> tuple[str, Attribute]:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
        return item[0], item[1]
    raise _mismatch(op, f"has keyword {item!r}, not a pair of name and value")


def library_function(target: str) -> Callable[..., Any]:
    """The torch operator of a dotted name: aten.convolution.default."""
    function: Any = torch.ops
    for part in target.split("."):
        function = getattr(function, part, None)
        if function is None:
            raise VerifyError(f"PyTorch {torch.__version__} has no operator {target}")
    return function  # type: ignore[no-any-return]


def output_mask(
    function: Callable[..., Any], positional: Any, keywords: dict[str, Any]
) -> tuple[bool, ...] | None:
    """Which results this call asks for; None where the operator does not let one choose."""
    for place, argument in enumerate(function._schema.arguments):  # type: ignore[attr-defined]
        if argument.name == "output_mask":
            mask = positional[place] if place < len(positional) else keywords.get(argument.name)
            return None if mask is None else tuple(mask)
    return None


def library_results(result: Any, mask: tuple[bool, ...] | None) -> tuple[torch.Tensor, ...]:
    """The tensors that a call gives and was asked for; some operators give others as well."""
    given = result if isinstance(result, (tuple, list)) else (result,)
    flat = [item for part in given for item in (part if isinstance(part, list) else [part])]
    if mask is not None:
        flat = [item for item, asked in zip(flat, mask, strict=True) if asked]
    return tuple(item for item in flat if item is not None)


Semantics = Callable[[Op, tuple[Loaded, ...], Context], Results]

# Opcode -> its meaning; a test asserts that every op of the table is here.
SEMANTICS: dict[str, Semantics] = {
    **POINTWISE,
    **TENSORS,
    **COMPOSITES,
    "fused": _fused,
    "library": _library,
}
