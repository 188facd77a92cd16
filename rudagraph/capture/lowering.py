"""The state of one lowering: the graph being built, values by node, casts and constants.

Rows of the lowering table emit IR through it. Invariant: every value that a row returns has the
dtype and shape that the trace gave the node.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any
from typing import cast as typed

import torch

from rudagraph.capture.constants import Constants
from rudagraph.capture.names import Described
from rudagraph.capture.nodes import Node
from rudagraph.errors import UnsupportedError
from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Attribute, Operand, Port, Role, Value
from rudagraph.ir.torch_types import from_torch_dtype, to_torch_dtype, type_of
from rudagraph.ir.types import DType, TensorType, broadcast_shapes

Result = Value | tuple[Value, ...]


class Lowering:
    """What rows see: operands of a node, result types, and short spellings for emitting ops."""

    def __init__(
        self, builder: GraphBuilder, constants: Constants, described: dict[Node, Described]
    ) -> None:
        self.builder = builder
        self.constants = constants
        self.described = described
        self.environment: dict[Node, Any] = {}
        self.tensors: dict[str, torch.Tensor] = {}  # of inputs of role constant, by target
        self.name = ""  # of the node being lowered
        self.names: tuple[str, ...] = ()  # of its results, where it has several
        self.key_name = "key"
        self.masks: dict[Hashable, str] = {}  # what constant masks say, by the memory they are in
        self._casts: dict[tuple[Value, DType], Value] = {}
        self._constants: dict[Node, Value] = {}
        self._key: Value | None = None

    def start(self, node: Node) -> None:
        """What is emitted from here on comes from this node."""
        described = self.described[node]
        self.name, self.builder.location = described.name, described.location
        traced = node.traced
        names = [self.name] * (len(traced) if isinstance(traced, (list, tuple)) else 1)
        for user in node.users:
            if user.target is operator.getitem:
                names[typed(int, user.args[1])] = self.described[user].name
        self.names = tuple(names)

    # -- operands

    def operand(self, argument: Any) -> Any:
        """An argument of a node with values in place of nodes; containers are followed."""
        if isinstance(argument, Node):
            return self.value(argument)
        if isinstance(argument, (list, tuple)):
            return [self.operand(item) for item in argument]
        return argument

    def value(self, node: Any) -> Any:
        if node in self.environment:
            return self.environment[node]
        if node in self.constants.nodes:
            return self._constant(node)
        if node.op == "tensor":
            return self._foreign(node)
        raise KeyError(f"{node} has not been lowered")

    def type(self, node: Node) -> TensorType:
        """The type of a node's one result, as traced."""
        return type_of(node.traced)

    def dtype(self, node: Node) -> DType:
        return from_torch_dtype(node.traced.dtype)

    def number(self, argument: Any, dtype: DType) -> bool | int | float | None:
        """The number that an argument holds everywhere, rounded to `dtype`; None otherwise."""
        number = self.constants.uniform(argument)
        return None if number is None else rounded(number, dtype)

    def everywhere(self, argument: Any) -> bool | int | float | None:
        """Like `number`, but a constant node is evaluated to find out."""
        number = self.constants.uniform(argument)
        if number is None and argument in self.constants.nodes:
            number = _one_number(self.constants.value(argument))
        return number

    @property
    def key(self) -> Value:
        """The random key of this forward, an input from the first time it is asked for."""
        if self._key is None:
            self._key = self.builder.input(self.key_name, TensorType(DType.I64, ()), Role.KEY)
        return self._key

    def constant(self, tensor: torch.Tensor, hint: str = "constant") -> Value:
        """A constant tensor as a value: one number, a range, or an input of role constant."""
        tensor = tensor.detach()
        type = type_of(tensor)
        number = _one_number(tensor)
        if number is not None:
            return self.full(type, number, hint)
        compact = _without_repeats(tensor)
        if compact.shape != tensor.shape:
            return self.expand(self.constant(compact, hint), type.shape)
        steps = _arithmetic(tensor)
        if steps is not None:
            start, step = steps
            return self.one(
                "iota", dtype=type.dtype, length=tensor.numel(), start=start, step=step, name=hint
            )
        for target, known in self.tensors.items():
            if known.dtype == tensor.dtype and torch.equal(known, tensor):
                return next(port.value for port in self.builder.inputs if port.target == target)
        return self._constant_input(hint, tensor.contiguous())

    def full(self, type: TensorType, number: bool | int | float, hint: str = "") -> Value:
        return self.one("full", dtype=type.dtype, shape=type.shape, value=number, name=hint)

    def _constant_input(self, hint: str, tensor: torch.Tensor) -> Value:
        value = self.builder.fresh(hint, type_of(tensor))
        self.builder.inputs.append(Port(value, Role.CONSTANT, value.name))
        self.tensors[value.name] = tensor
        return value

    def _constant(self, node: Node) -> Value:
        if node not in self._constants:
            number = self.constants.uniform(node)
            type = self.type(node)
            if number is not None:
                value = self.full(type, number, self.described[node].name)
            else:
                value = self.constant(self.constants.value(node), self.described[node].name)
            self._constants[node] = value
        return self._constants[node]

    def _foreign(self, node: Node) -> Value:
        tensor = self.constants.foreign(node)
        assert tensor is not None
        if node not in self._constants:
            self._constants[node] = self._constant_input(self.described[node].name, tensor)
        return self._constants[node]

    # -- emitting

    def one(
        self, opcode: str, *operands: Operand, name: str = "", **attributes: Attribute
    ) -> Value:
        return self.builder.one(opcode, *operands, name=name or self.name, **attributes)

    def cast(self, operand: Value, dtype: DType, name: str = "") -> Value:
        """A value in another dtype; what already has it passes unchanged."""
        if operand.type.dtype is dtype:
            return operand
        known = self._casts.get((operand, dtype))
        if known is None:
            known = self.one("cast", operand, dtype=dtype, name=name or f"{operand.name}.{dtype}")
            self._casts[operand, dtype] = known
        return known

    def pointwise(
        self, node: Node, opcode: str, arguments: Sequence[Any], dtype: DType, **attributes: Any
    ) -> Value:
        """A pointwise op computed in `dtype`: operands cast, uniform constants bare numbers."""
        shape = tuple(node.traced.shape)
        operands: list[Any] = []
        bare: list[int] = []
        for argument in arguments:
            number = self.number(argument, dtype) if isinstance(argument, Node) else None
            if number is not None:
                bare.append(len(operands))
                operands.append(number)
            elif isinstance(argument, Node):
                operands.append(self.cast(self.value(argument), dtype))
            else:
                operands.append(plain_number(argument, dtype))
        shapes = [operand.type.shape for operand in operands if isinstance(operand, Value)]
        if bare and (not shapes or broadcast_shapes(*shapes) != shape):
            index = bare[0]
            operands[index] = self.cast(self.value(arguments[index]), dtype)
        return self.one(opcode, *operands, **attributes)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        shape = tuple(int(n) for n in shape)
        return value if value.type.shape == shape else self.one("reshape", value, shape=shape)

    def permute(self, value: Value, axes: Sequence[int]) -> Value:
        axes = tuple(axes)
        return value if axes == tuple(range(len(axes))) else self.one("permute", value, axes=axes)

    def expand(self, value: Value, shape: Sequence[int]) -> Value:
        shape = tuple(int(n) for n in shape)
        return value if value.type.shape == shape else self.one("expand", value, shape=shape)

    def slice(self, value: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        extent = value.type.shape[axis]
        if (start, stop, step) == (0, extent, 1):
            return value
        return self.one("slice", value, axis=axis, start=start, stop=stop, step=step)


def rounded(number: Any, dtype: DType) -> bool | int | float:
    """A Python number as an element of that dtype holds it."""
    return torch.tensor(number, dtype=to_torch_dtype(dtype)).item()


def plain_number(argument: Any, dtype: DType) -> Any:
    """A Python number of the kind of the dtype, unrounded."""
    if isinstance(argument, complex):
        raise UnsupportedError(f"the complex number {argument} is used, which the IR does not hold")
    if isinstance(argument, bool) and dtype is not DType.B8:
        return int(argument)
    return argument


def _one_number(tensor: torch.Tensor) -> bool | int | float | None:
    if tensor.numel() == 0:
        return 0 if tensor.dtype is not torch.bool else False
    first = tensor.reshape(-1)[0] if tensor.is_contiguous() else tensor[(0,) * tensor.dim()]
    same = tensor == first
    if bool(same.all()):
        return first.item()
    return None


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with axes along which it only repeats itself cut to length 1."""
    for axis, extent in enumerate(tensor.shape):
        if extent > 1:
            first = tensor.narrow(axis, 0, 1)
            if tensor.stride(axis) == 0 or torch.equal(tensor, first.expand_as(tensor)):
                tensor = first
    return tensor


def _arithmetic(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Start and step where an integer vector is a range."""
    if tensor.dim() != 1 or tensor.dtype not in (torch.int64, torch.int32) or tensor.numel() < 2:
        return None
    start, step = int(tensor[0]), int(tensor[1] - tensor[0])
    reference = torch.arange(tensor.numel(), dtype=tensor.dtype) * step + start
    return (start, step) if torch.equal(reference, tensor) else None
