"""The one joint trace: forward and first-order backward of a function as an FX graph.

Input: a function of flat tensors that returns a list of tensors, and one example each. Output: an
FX graph of functional ATen ops whose inputs and outputs say what they are. Nothing is executed on
real data. Only this module, record.py and shapes.py touch PyTorch's private tracing interfaces
(2.11-2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    InputMutationAOTOutput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx import traceback as notes

from rudagraph.capture.mode import data_dependent
from rudagraph.capture.names import place
from rudagraph.capture.places import location_text
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Location

Kind = Literal["input", "tangent", "result", "update", "gradient"]


# Operators that only check. Older PyTorch would drop them from the trace as giving nothing.
_EFFECTS = frozenset(
    {
        torch.ops.aten._linalg_check_errors.default,
        torch.ops.aten._assert_async.default,
        torch.ops.aten._assert_async.msg,
    }
)
for _operator in _EFFECTS:
    fx.node.has_side_effect(_operator)


@dataclass(frozen=True)
class Label:
    """What a graph input or output is: `index` counts inputs of the function, or its results."""

    kind: Kind
    index: int


@dataclass(frozen=True)
class JointTrace:
    """The FX graph, the module that holds its attributes, and what its ends are."""

    module: nn.Module
    graph: fx.Graph
    inputs: dict[fx.Node, Label]
    outputs: tuple[tuple[Label, fx.Node], ...]


def trace_joint(
    function: Callable[..., list[torch.Tensor]],
    examples: list[torch.Tensor],
    decompositions: dict[Any, Callable[..., Any]],
) -> JointTrace:
    """Trace `function`, called with stand-ins for the examples in order."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    stand_ins = tuple(stand_in(example, mode) for example in examples)
    with ExitStack() as stack:
        stack.enter_context(compiling())
        stack.enter_context(notes.preserve_node_meta())
        try:
            joint = aot_export_joint_with_descriptors(
                stack, _Function(function), stand_ins, decompositions=decompositions
            )
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise data_dependent(str(error.func), Location()) from error
        module = joint.graph_module
    return _labelled(module)


class _Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., list[torch.Tensor]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *flat: torch.Tensor) -> list[torch.Tensor]:
        return self.function(*flat)


def stand_in(example: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor of its own storage: aliases among inputs are our business, not the trace's."""
    with mode:
        size = example.untyped_storage().nbytes() // example.element_size()
        whole = torch.empty(size, dtype=example.dtype, device=example.device)
        fake = torch.empty(0, dtype=example.dtype, device=example.device)
        fake.set_(
            whole.untyped_storage(), example.storage_offset(), example.shape, example.stride()
        )
    return fake.requires_grad_(example.requires_grad)


@contextmanager
def compiling() -> Iterator[None]:
    """Libraries leave out checks that depend on data where torch.compiler says it is compiling."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _labelled(module: fx.GraphModule) -> JointTrace:
    inputs: dict[fx.Node, Label] = {}
    outputs: list[tuple[Label, fx.Node]] = []
    for node in module.graph.nodes:
        if node.target is torch.ops.higher_order.with_effects:
            raise _effect(node, str(node.args[1]))
        if node.target in _EFFECTS:
            raise _effect(node, str(node.target))
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs[node] = _input_label(node.meta.get("desc"))
        elif node.op == "output":
            flat = torch.utils._pytree.tree_leaves(node.args, is_leaf=lambda x: x is None)
            for value, description in zip(flat, node.meta["desc"], strict=True):
                if isinstance(value, fx.Node):
                    outputs.append((_output_label(description), value))
    return JointTrace(module, module.graph, inputs, tuple(outputs))


def _input_label(description: Any) -> Label:
    match description:
        case PlainAOTInput(idx=index):
            return Label("input", index)
        case TangentAOTInput(output=PlainAOTOutput(idx=index)):
            return Label("tangent", index)
    raise _unknown(description)


def _output_label(description: Any) -> Label:
    match description:
        case PlainAOTOutput(idx=index):
            return Label("result", index)
        case InputMutationAOTOutput(mutated_input=PlainAOTInput(idx=index)):
            return Label("update", index)
        case GradAOTOutput(grad_of=PlainAOTInput(idx=index)):
            return Label("gradient", index)
    raise _unknown(description)


def _effect(node: fx.Node, operator: str) -> UnsupportedError:
    return UnsupportedError(
        f"{operator} looks at the numbers in a tensor, or has another effect, while it runs",
        where=location_text(place(node)),
        hint="use the form that does not check, such as torch.linalg.inv_ex for inv, "
        "or leave this part out of the step",
    )


def _unknown(description: Any) -> UnsupportedError:
    return UnsupportedError(
        f"the trace has an input or output that a step cannot hold: {description}",
        hint="an argument that requires grad is changed in place, or a tensor subclass is used; "
        "leave that part out of the step",
    )
