"""The joint trace the fast way: each ATen call is written down once, as fake tensors meet it.

Input and output as for the trace by PyTorch's own machinery in trace.py, which this gives exactly
where nothing is changed in place. Invariant: whatever is out of the ordinary (a write, a real
tensor, an operator with effects, an error of forward) gives None, and the full trace decides:
that one runs forward twice, below three modes, and takes five times as long.
"""

from __future__ import annotations

import functools
import logging
import operator as python
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import traceback as notes
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

from rudagraph.capture.nodes import NOWHERE, JointTrace, Label, Node, Unusual
from rudagraph.capture.shapes import Shapes, Traced
from rudagraph.capture.trace import compiling
from rudagraph.ir.graph import Location

_LOG = logging.getLogger(__name__)
aten = torch.ops.aten

# Ask about a tensor and compute nothing.
_QUESTIONS = frozenset(
    (
        torch.ops.prim.device.default,
        aten.size.default,
        aten.sym_size.default,
        aten.stride.default,
        aten.sym_stride.default,
        aten.storage_offset.default,
        aten.sym_storage_offset.default,
        aten.numel.default,
        aten.sym_numel.default,
        aten.dim.default,
        aten.is_contiguous.default,
        aten.is_contiguous.memory_format,
        aten.is_strides_like_format.default,
        aten.is_non_overlapping_and_dense.default,
    )
)
# Write into running statistics, and their schemas do not say so.
_WRITES_UNSAID = frozenset(
    (
        aten.native_batch_norm.default,
        aten.cudnn_batch_norm.default,
        aten.miopen_batch_norm.default,
        aten._batch_norm_impl_index.default,
    )
)


Arguments = tuple[Any, ...]
Keywords = dict[str, Any]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every ATen call as a node; tensors are known by identity."""

    def __init__(self, decompositions: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.decompositions = decompositions
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self.fakes.cache_enabled = False  # `Shapes` remembers results, and asks about none twice
        self.shapes = Shapes(self.fakes)
        self.in_backward = False
        self.running = _Running()
        # By the identity of the function.
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._nodes: dict[int, Node] = {}
        # All tensors met, by their memory; identities stay valid while these live.
        self._memory: dict[int, list[Traced]] = {}
        self._inputs: set[int] = set()
        self._made_at: dict[int, Location] = {}  # where the autograd node of a number was made
        self.gave_up = ""  # why the full trace has to be made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch's question: without its wrapper, which keeps its compiler out, calls are cheap.

        The compiler never meets a recorder: a step is captured outside of it.
        """
        return False

    def input(self, name: str, tensor: torch.Tensor) -> Node:
        """A placeholder that stands for the tensor."""
        node = Node("input", name)
        self.nodes.append(node)
        self._bind(node, tensor)
        self._inputs.add(id(tensor))
        return node

    def node(self, tensor: torch.Tensor) -> Node:
        """The node that gives the tensor."""
        node = self._nodes.get(id(tensor))
        if node is None:
            raise Unusual("a tensor from elsewhere is read")
        return node

    def gives_up(self, reason: str) -> Unusual:
        """The error to raise; forward may catch it, and has gone another way all the same."""
        self.gave_up = self.gave_up or reason
        return Unusual(reason)

    def begin_backward(self, roots: list[torch.Tensor]) -> None:
        """What is recorded from here on is of backward, and has the places of forward."""
        for node in self.nodes:
            if node.location is not NOWHERE and node.number >= 0:
                self._made_at.setdefault(node.number, node.location)
        self.in_backward = True
        self.running.watch(roots)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            handle = self._handlers.get(id(function))
            if handle is None:
                handle = self._handlers[id(function)] = self._handler(function)
            return handle(self, function, args, kwargs or {})
        except Unusual as reason:
            self.gives_up(str(reason))
            raise

    def _handler(self, function: Any) -> Callable[..., Any]:
        """How calls of an operator are treated, found out when it is first called."""
        if function in _QUESTIONS:
            return Recorder._answer
        if not isinstance(function, torch._ops.OpOverload):
            raise Unusual(f"{function} is called")
        if function in _WRITES_UNSAID:
            raise Unusual(f"{function} writes running statistics")
        if function._schema.is_mutable:
            return Recorder._in_place
        if function is aten.lift_fresh.default:
            return Recorder._lift
        if function in self.decompositions:
            return Recorder._decompose
        if function is aten.detach.default:
            return Recorder._detach
        if torch._C._dispatch_has_kernel_for_dispatch_key(
            function._name, torch._C.DispatchKey.CompositeImplicitAutograd
        ):
            return Recorder._take_apart
        return Recorder._record

    def _answer(self, function: Any, args: Arguments, kwargs: Keywords) -> Any:
        return self.shapes.call(function, args, kwargs)

    def _decompose(self, function: Any, args: Arguments, kwargs: Keywords) -> Any:
        with self:
            return self.decompositions[function](*args, **kwargs)

    def _take_apart(self, function: Any, args: Arguments, kwargs: Keywords) -> Any:
        """A composite operator, where autograd would have had its parts."""
        if autograd_would_have_decomposed(function, [*args, *kwargs.values()]):
            with self:
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return self._record(function, args, kwargs)

    def _record(self, function: Any, args: Arguments, kwargs: Keywords) -> Any:
        operands: list[Node] = []
        given = tuple([self._operand(value, operands) for value in args])
        named = {name: self._operand(value, operands) for name, value in kwargs.items()}
        result = self.shapes.call(function, args, kwargs)
        self._note(Node("call", function, given, named, operands), result)
        return result

    def _detach(self, function: Any, args: Arguments, kwargs: Keywords) -> Any:
        """To the graph the same value, and as unknown where that is; its node keeps its name."""
        result = self.shapes.call(function, args, kwargs)
        node = self._nodes.get(id(args[0]))
        if node is not None:
            self._nodes[id(result)] = node
        self._memory.setdefault(result.memory, []).append(result)
        return result

    def _lift(self, function: Any, args: Arguments, kwargs: Keywords) -> Any:
        """A tensor just made from numbers is held by the trace."""
        (tensor,) = args
        if isinstance(tensor, Traced):
            raise Unusual("a traced tensor is lifted")
        result = self.shapes.lift(tensor)
        held = Node("tensor", tensor)
        held.traced = result
        self._describe(held)
        self.nodes.append(held)
        self._note(Node("call", aten.lift_fresh_copy.default, (held,)), result)
        return result

    def _in_place(self, function: Any, args: Arguments, kwargs: Keywords) -> Any:
        """A pointwise write is the function whose result stands for the tensor from here on.

        Other tensors over the same memory must not be read again, which `node` makes sure of.
        """
        name: str = function._opname
        written: Traced = args[0]
        if torch.Tag.pointwise not in function.tags or name.startswith("__"):
            raise Unusual(f"{function} writes")
        memory = self._memory.get(written.memory, ())
        if any(id(tensor) in self._inputs for tensor in memory):
            raise Unusual(f"{function} writes an input")
        packet = getattr(aten, name.removesuffix("_"), None)
        functional = getattr(packet, function._overloadname, None)
        if functional is None or functional._schema.is_mutable:
            raise Unusual(f"{function} has no functional form")
        result = self.__torch_dispatch__(functional, (), args, kwargs)
        if (result.shape, result.dtype) != (written.shape, written.dtype):
            raise Unusual(f"{function} converts")
        node = self.node(result)
        for tensor in memory:
            self._nodes.pop(id(tensor), None)
            tensor.fake = None  # it may know the numbers from before
        self._nodes[id(written)] = node
        return written

    def _operand(self, value: Any, operands: list[Node]) -> Any:
        """The argument with nodes for tensors; they are added to the operands."""
        if isinstance(value, torch.Tensor):
            node = self.node(value)
            operands.append(node)
            return node
        if isinstance(value, (list, tuple)):
            return type(value)([self._operand(item, operands) for item in value])
        return value

    def _note(self, node: Node, result: Any) -> None:
        """Append a call of this result."""
        self._describe(node)
        self.nodes.append(node)
        self._bind(node, result)

    def _bind(self, node: Node, result: Any) -> None:
        node.traced = result
        if isinstance(result, torch.Tensor):
            if not isinstance(result, Traced):
                raise Unusual("a tensor with data is made")
            self._nodes[id(result)] = node
            self._memory.setdefault(result.memory, []).append(result)
        elif isinstance(result, (list, tuple)):
            for index, part in enumerate(result):
                if isinstance(part, torch.Tensor):
                    item = Node("call", python.getitem, (node, index))
                    item.location, item.number = node.location, node.number
                    item.is_backward = node.is_backward
                    self.nodes.append(item)
                    self._bind(item, part)
        else:
            raise Unusual(f"{node.target} gives no tensor")

    def _describe(self, node: Node) -> None:
        """What the full trace notes: the user's line, for backward that of the forward op."""
        if self.in_backward:
            node.is_backward = True
            node.number = self.running.number
            node.location = self._made_at.get(node.number, NOWHERE)
            return
        # The autograd node of this call, if it has one, has just been made.
        node.number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        custom = notes.get_current_meta().get("custom")
        if custom:
            node.location = Location(custom["module"], custom["line"])


class _Running:
    """The sequence number of the autograd node that backward is in, -1 between them.

    Hooks know this and nothing more: autograd's graph is beyond Python's collector, and what its
    hooks hold would hold it in turn for ever.
    """

    def __init__(self) -> None:
        self.number = -1

    def watch(self, results: list[torch.Tensor]) -> None:
        """Follow which node backward runs; sums of gradients are in none of them."""
        stack = [result.grad_fn for result in results]
        seen = set()
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            node.register_prehook(functools.partial(self._enter, node._sequence_nr()))
            node.register_hook(self._leave)
            stack += [parent for parent, _ in node.next_functions]

    def _enter(self, number: int, gradients: Any) -> None:
        self.number = number

    def _leave(self, *gradients: Any) -> None:
        self.number = -1


def record_joint(
    function: Callable[..., list[torch.Tensor]],
    examples: list[torch.Tensor],
    decompositions: dict[Any, Callable[..., Any]],
) -> JointTrace | None:
    """What `trace_joint` gives, or None where that has to find out."""
    recorder = Recorder(decompositions)
    try:
        stand_ins = [Traced.like(example) for example in examples]
        # What gives up within a block that changes grad mode leaves it changed.
        with compiling(), torch.set_grad_enabled(torch.is_grad_enabled()):
            return _record(function, stand_ins, recorder)
    except Exception as error:  # whatever it is, the full trace words it
        _LOG.debug("recording gave up: %r", error)
        return None


def _record(
    function: Callable[..., list[torch.Tensor]],
    stand_ins: list[Traced],
    recorder: Recorder,
) -> JointTrace:
    inputs: dict[Node, Label] = {}
    outputs: list[tuple[Label, Node]] = []
    for index, tensor in enumerate(stand_ins):
        inputs[recorder.input(f"primals_{index}", tensor)] = Label("input", index)
    with recorder.fakes, recorder:
        results = function(*stand_ins)
    if recorder.gave_up:
        raise Unusual(recorder.gave_up)
    outputs += [(Label("result", i), recorder.node(result)) for i, result in enumerate(results)]
    wanted = [i for i, result in enumerate(results) if result.requires_grad]
    leaves = [i for i, tensor in enumerate(stand_ins) if tensor.requires_grad]
    if torch.is_grad_enabled() and wanted:
        tangents = []
        for index in wanted:
            with recorder.fakes:
                tangent = recorder.shapes.call(aten.empty_like.default, (results[index],), {})
            inputs[recorder.input(f"tangents_{index}", tangent)] = Label("tangent", index)
            tangents.append(tangent)
        roots = [results[index] for index in wanted]
        recorder.begin_backward(roots)
        with recorder.fakes, recorder:
            gradients = torch.autograd.grad(
                roots, [stand_ins[i] for i in leaves], tangents, allow_unused=True
            )
        outputs += [
            (Label("gradient", index), recorder.node(gradient))
            for index, gradient in zip(leaves, gradients, strict=True)
            if gradient is not None
        ]
    return JointTrace(recorder.nodes, inputs, tuple(outputs))
