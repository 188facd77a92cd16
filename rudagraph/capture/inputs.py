"""Everything outside the traced function that it reads: parameters, buffers, attributes, arguments.

Input: a module and its example arguments. Output: one `Input` per tensor object, with all its
names. Invariant: names of one tied tensor share an input, so their gradients are one sum; a
non-leaf view of a parameter is described by its base, so its gradient reaches the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Role

# What nn.Module itself keeps in an instance; the rest of __dict__ is the user's.
MODULE_FIELDS = frozenset(nn.Module().__dict__) | {"_backward_hooks", "_is_full_backward_hook"}

DEEPEST = 4


@dataclass(frozen=True)
class View:
    """How a tensor lies over its base: the arguments of as_strided, offset relative to the base."""

    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass
class Input:
    """One tensor that the step reads: role, the first of its names, and all of them."""

    role: Role
    target: str
    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"{self.role.value} {self.target}"


@dataclass
class Inputs:
    """All inputs in order; `index` finds one by tensor identity, `views` says how others derive."""

    items: list[Input] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    views: dict[int, View] = field(default_factory=dict)
    # Results of earlier computations, kept in attributes: a forward that makes them anew may.
    derived: set[int] = field(default_factory=set)
    keep: list[torch.Tensor] = field(default_factory=list)  # ids stay valid while these live

    def add(self, role: Role, target: str, tensor: torch.Tensor) -> None:
        """Note a tensor under a name; a tensor met before only gets a further name."""
        known = self.index.get(id(tensor))
        if known is not None:
            self.items[known].names.append(target)
            return
        _check_tensor(role, target, tensor)
        self.index[id(tensor)] = len(self.items)
        self.items.append(Input(role, target, tensor, [target]))


def collect_inputs(model: nn.Module, arguments: Iterable[tuple[str, torch.Tensor]]) -> Inputs:
    """Every tensor the step may read; arguments, with paths as forward spells them, come last."""
    inputs = Inputs()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        inputs.add(Role.PARAMETER, name, parameter)
    buffers = list(model.named_buffers(remove_duplicate=False))
    attributes = [item for item in _attribute_tensors(model) if id(item[1]) not in inputs.index]
    for name, tensor in buffers + attributes:
        if tensor.requires_grad and not tensor.is_leaf:
            _add_view(inputs, tensor)
        else:
            role = Role.PARAMETER if tensor.requires_grad else Role.BUFFER
            inputs.add(role, name, tensor)
    for path, tensor in arguments:
        # The same tensor in two arguments, or an argument that is a parameter, stays two inputs:
        # autograd adds up the two gradients, and the next call may pass two tensors.
        _check_tensor(Role.ARGUMENT, path, tensor)
        inputs.items.append(Input(Role.ARGUMENT, path, tensor, [path]))
    return inputs


def _attribute_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name in MODULE_FIELDS:
                continue
            path = f"{prefix}.{name}" if prefix else name
            yield from tensors_in(value, path)


def tensors_in(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in an attribute: itself, or inside plain lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth < DEEPEST and type(value) in (list, tuple):
        for index, part in enumerate(value):
            yield from tensors_in(part, f"{path}[{index}]", depth + 1)
    elif depth < DEEPEST and type(value) is dict:
        for key, part in value.items():
            yield from tensors_in(part, f"{path}[{key!r}]", depth + 1)


def _add_view(inputs: Inputs, tensor: torch.Tensor) -> None:
    base = tensor._base
    known = inputs.index.get(id(base)) if base is not None else None
    inputs.keep.append(tensor)
    if base is None or known is None:
        inputs.derived.add(id(tensor))
        return
    inputs.views[id(tensor)] = View(
        known,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset() - base.storage_offset()),
    )


def _check_tensor(role: Role, target: str, tensor: torch.Tensor) -> None:
    kind = type(tensor)
    plain = kind in (torch.Tensor, nn.Parameter, nn.Buffer)
    fault = ""
    if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
        raise UnsupportedError(
            f"{role.value} {target} of a lazy module has no shape yet",
            where=f"{role.value} {target}",
            hint="call the model once on a batch before compile()",
        )
    if tensor.layout is not torch.strided:
        fault = f"has layout {tensor.layout}"
    elif tensor.is_complex():
        fault = f"has dtype {tensor.dtype}"
    elif tensor.is_quantized:
        fault = "is quantized"
    elif not plain and hasattr(kind, "__torch_dispatch__") and kind.__module__ != "torch":
        fault = f"is a tensor subclass, {kind.__name__}"
    if fault:
        raise UnsupportedError(
            f"{role.value} {target} {fault}, which a step cannot hold",
            where=f"{role.value} {target}",
            hint="pass an ordinary dense real tensor (torch.view_as_real for complex ones)",
        )


def overlapping(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors may share memory: same storage and byte ranges that meet."""
    if left.device != right.device or left.numel() == 0 or right.numel() == 0:
        return False
    if left.untyped_storage().data_ptr() != right.untyped_storage().data_ptr():
        return False
    (a_low, a_high), (b_low, b_high) = _bytes(left), _bytes(right)
    return a_low < b_high and b_low < a_high


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start * tensor.element_size(), (start + int(reach) + 1) * tensor.element_size()
