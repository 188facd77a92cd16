"""The joint trace by PyTorch's own machinery: forward and first-order backward of a function.

Input: a function of flat tensors that returns a list of tensors, and one example each. Output: a
trace of functional ATen ops whose inputs and outputs say what they are. Nothing is executed on
real data. Only this module, record.py and shapes.py touch PyTorch's private tracing interfaces
(2.11-2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

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
from rudagraph.capture.nodes import JointTrace, Label, Node
from rudagraph.capture.places import location_text
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Location

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
    return _joint_trace(module)


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


def _joint_trace(module: fx.GraphModule) -> JointTrace:
    made: dict[fx.Node, Node] = {}
    inputs: dict[Node, Label] = {}
    outputs: list[tuple[Label, Node]] = []
    for node in module.graph.nodes:
        _refuse_effects(node)
    for node in module.graph.nodes:
        if node.op == "output":
            flat = torch.utils._pytree.tree_leaves(node.args, is_leaf=lambda x: x is None)
            for value, description in zip(flat, node.meta["desc"], strict=True):
                if isinstance(value, fx.Node):
                    outputs.append((_output_label(description), made[value]))
            continue
        made[node] = _node(module, node, made)
        if node.op == "placeholder":
            inputs[made[node]] = _input_label(node.meta.get("desc"))
    return JointTrace(list(made.values()), inputs, tuple(outputs))


def _node(module: fx.GraphModule, node: fx.Node, made: dict[fx.Node, Node]) -> Node:
    """The same in our terms."""
    if node.op == "placeholder":
        new = Node("input", node.target)
        new.traced = node.meta["val"]
        return new
    if node.op == "get_attr":
        held: Any = module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        new = Node("tensor", held)
    else:
        args = tuple(_operand(value, made) for value in node.args)
        kwargs = {name: _operand(value, made) for name, value in node.kwargs.items()}
        new = Node("call", node.target, args, kwargs)
    new.traced = node.meta.get("val")
    new.location = _location(node)
    new.is_backward = node.meta.get("partitioner_tag") == "is_backward"
    new.number = int(node.meta.get("seq_nr", -1))
    return new


def _operand(value: Any, made: dict[fx.Node, Node]) -> Any:
    """Our node for one of FX, which has kinds of lists and dicts of its own too."""
    if isinstance(value, fx.Node):
        return made[value]
    if isinstance(value, (list, tuple)):
        parts = [_operand(item, made) for item in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict):
        return {name: _operand(item, made) for name, item in value.items()}
    return value


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


def _location(node: fx.Node) -> Location:
    custom = node.meta.get("custom") or {}
    return Location(custom.get("module", ""), custom.get("line", ""))


def _refuse_effects(node: fx.Node) -> None:
    if node.target is torch.ops.higher_order.with_effects:
        operator = node.args[1]
    elif node.target in _EFFECTS:
        operator = node.target
    else:
        return
    raise UnsupportedError(
        f"{operator} looks at the numbers in a tensor, or has another effect, while it runs",
        where=location_text(_location(node)),
        hint="use the form that does not check, such as torch.linalg.inv_ex for inv, "
        "or leave this part out of the step",
    )


def _unknown(description: Any) -> UnsupportedError:
    return UnsupportedError(
        f"the trace has an input or output that a step cannot hold: {description}",
        hint="an argument that requires grad is changed in place, or a tensor subclass is used; "
        "leave that part out of the step",
    )
