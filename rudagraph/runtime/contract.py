"""Writes the contract of a model and a call, and checks calls against it.

The check that passes is a handful of comparisons of flat lists, a few tens of microseconds for two
hundred parameters; only a check that fails looks closely, and says what differs, where, and what
to do. Invariant: no call that differs from its contract passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as all_modules
from torch.utils.hooks import RemovableHandle

from rudagraph.errors import ContractError
from rudagraph.ir.contract import (
    ArgumentContract,
    Contract,
    Modes,
    ModuleContract,
    TensorContract,
)
from rudagraph.ir.torch_types import type_of
from rudagraph.runtime.arguments import DescribedCall, is_plain_tensor
from rudagraph.runtime.attributes import (
    INTERNAL,
    NO_PART_OF_FORWARD,
    Getters,
    attribute_tables,
    plain_attributes,
)
from rudagraph.runtime.behaviour import Behaviour
from rudagraph.runtime.skeletons import CONTAINERS, Skeletons
from rudagraph.runtime.structure import name_of
from rudagraph.runtime.untouched import Untouched
from rudagraph.runtime.weights import Weights

HOOK_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_DEEPEST = 4  # containers in containers that tensors are looked for in
_Attributes = tuple[str, Any, dict[str, Any]]  # path, owner, its dictionary
_MUTABLE = (*CONTAINERS, tuple)  # a tuple may hold lists


def build_contract(
    model: nn.Module,
    call: DescribedCall,
    renewed: frozenset[tuple[str, str]] = frozenset(),
) -> Contract:
    """The contract of `call` on the model as it is now, under the modes that are set now.

    `renewed` are attributes, by path and name, that forward sets for itself.
    """
    return Contract(
        arguments=call.arguments,
        leaves=tuple(
            ArgumentContract(path, type_of(leaf), str(leaf.device), leaf.requires_grad)
            for path, leaf in zip(call.paths, call.leaves, strict=True)
        ),
        tensors=tuple(_tensor_contracts(model)),
        modules=tuple(
            _module_contract(path, owner, attributes, renewed)
            for path, owner, attributes in attribute_tables(model)
        ),
        modes=current_modes(_device_type(model, call)),
    )


def _device_type(model: nn.Module, call: DescribedCall) -> str:
    first = next(chain(call.leaves, model.parameters(), model.buffers()), None)
    return "cpu" if first is None else first.device.type


def current_modes(device_type: str) -> Modes:
    """What is set around this call, for steps on this type of device."""
    autocast = torch.is_autocast_enabled(device_type)
    dtype = str(torch.get_autocast_dtype(device_type)) if autocast else None
    dtype = dtype and dtype.removeprefix("torch.")
    default = str(torch.get_default_dtype()).removeprefix("torch.")
    return Modes(torch.is_grad_enabled(), dtype, default)


def _module_contract(
    path: str, owner: Any, attributes: dict[str, Any], renewed: frozenset[tuple[str, str]]
) -> ModuleContract:
    module = owner if isinstance(owner, nn.Module) else None
    hooks = tuple(
        f"{table.removeprefix('_').removesuffix('s')} {_name(hook)}"
        for table in HOOK_TABLES
        for hook in (getattr(module, table).values() if module else ())
    )
    return ModuleContract(
        path=path,
        type=name_of(type(owner)),
        training=module.training if module else None,
        attributes=tuple(
            (name, value)
            for name, value in plain_attributes(attributes)
            if (path, name) not in renewed
        ),
        hooks=hooks,
        renewed=tuple(sorted(name for where, name in renewed if where == path)),
    )


def _name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _attribute_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that modules hold as plain attributes, or in lists, tuples and dicts of those."""
    for prefix, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name not in INTERNAL:
                yield from _tensors_in(value, f"{prefix}.{name}" if prefix else name, 0)


def _tensors_in(value: Any, path: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth < _DEEPEST and type(value) in (list, tuple, dict):
        parts = value.items() if type(value) is dict else enumerate(value)
        for key, part in parts:
            yield from _tensors_in(part, f"{path}[{key!r}]", depth + 1)


def _tensor_contracts(model: nn.Module) -> Iterator[TensorContract]:
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    known = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
        *_attribute_tensors(model),
    ]
    for name, tensor in known:
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    for key, tensor in tensors.items():
        yield TensorContract(
            names=tuple(names[key]),
            type=type_of(tensor),
            device=str(tensor.device),
            requires_grad=tensor.requires_grad,
            parameter=isinstance(tensor, nn.Parameter),
        )


def global_hooks() -> list[Any]:
    """The user's hooks of all modules of the process.

    PyTorch's own, of its counters and profilers, only watch; so do those that follow a capture.
    """
    return [
        hook
        for name in HOOK_TABLES
        for hook in getattr(all_modules, f"_global{name}").values()
        if not str(getattr(hook, "__module__", "")).startswith(("torch.", "rudagraph."))
    ]


class Checker:
    """Compares the model with its contract, quickly."""

    def __init__(self, model: nn.Module, contract: Contract) -> None:
        tables = list(attribute_tables(model))
        _check_same_modules(tables, contract)
        self.model = model
        self.contract = contract
        # One name of each tensor first, then the further names of tied ones.
        names = [tensor.names[0] for tensor in contract.tensors]
        self._count = len(names)
        names += [name for tensor in contract.tensors for name in tensor.names[1:]]
        self.weights = Weights(model, names)
        self.tied = _tied_pairs(contract, self.weights)
        self._guard: Callable[..., bool] | None = None
        self._watch_modules(model)
        self._watch_attributes(tables)

    def _watch_modules(self, model: nn.Module) -> None:
        named = list(model.named_modules())
        modules = [module for _, module in named]
        self._paths = [path for path, _ in named]
        self._tables = [module._modules for module in modules]
        self._children = [dict(table) for table in self._tables]
        self._hook_tables = [getattr(m, table) for m in modules for table in HOOK_TABLES]
        self._hooks = [list(table) for table in self._hook_tables]
        self.global_hooks = global_hooks()
        self._hooked = any(self._hook_tables) or bool(self.global_hooks)
        self._handles = RemovableHandle.next_id

    def _watch_attributes(self, tables: list[_Attributes]) -> None:
        fixed, containers = Getters(), Getters()
        self.behaviour = Behaviour(tables)
        for (_, _, table), module, objects in zip(
            tables, self.contract.modules, self.behaviour.objects, strict=True
        ):
            watched: dict[str, Any] = dict((*module.attributes, *objects))
            if module.training is not None:
                watched["training"] = module.training
            mutable = {name for name, value in watched.items() if isinstance(value, _MUTABLE)}
            fixed.add(table, {n: value for n, value in watched.items() if n not in mutable})
            containers.add(table, {name: watched[name] for name in mutable})
        self._fixed = fixed
        self._contents = containers
        renewed = {(m.path, name) for m in self.contract.modules for name in m.renewed}
        self.skeletons = Skeletons(tables, INTERNAL | NO_PART_OF_FORWARD, renewed)
        self._untouched = Untouched([table for _, _, table in tables] + self.behaviour.tables)

    def model_fits(self, tensors: list[torch.Tensor]) -> bool:
        """Whether modules, attributes, hooks and tensors are as the contract says."""
        return (
            self._attributes_fit()
            and self._contents.fit()
            and self.skeletons.fit()
            and self._tables == self._children
            and self.behaviour.classes_fit()
            and self._hooks_fit()
            and self._tensors_fit(tensors)
        )

    def _attributes_fit(self) -> bool:
        versions = self._untouched.versions()
        if self._untouched.since(versions):
            return True
        fits = self._fixed.fit() and self._fixed.exactly()
        if not fits or not self.behaviour.instances_fit():
            return False
        self._untouched.remember(versions)
        return True

    def replaced(self) -> list[str]:
        """Paths of submodules that are other objects than when this was made."""
        return [
            f"{path}.{name}" if path else name
            for path, table, children in zip(self._paths, self._tables, self._children, strict=True)
            for name in {**children, **table}
            if table.get(name) is not children.get(name)
        ]

    def _hooks_fit(self) -> bool:
        if self._handles == RemovableHandle.next_id and not self._hooked:
            return True
        hooked = self._hooked or any(self._hook_tables)
        if hooked and [list(table) for table in self._hook_tables] != self._hooks:
            return False
        if global_hooks() != self.global_hooks:
            return False
        self._handles = RemovableHandle.next_id
        return True

    def _tensors_fit(self, tensors: list[torch.Tensor]) -> bool:
        for first, other in self.tied:
            if tensors[first] is not tensors[other]:
                return False
        distinct = tensors[: self._count]
        if self._guard is not None and self._guard(*distinct):
            return True
        if not all(
            isinstance(tensor, torch.Tensor)
            and is_plain_tensor(tensor)
            and type_of(tensor) == expected.type
            and tensor.requires_grad == expected.requires_grad
            and str(tensor.device) == expected.device
            for expected, tensor in zip(self.contract.tensors, distinct, strict=True)
        ):
            return False
        self._guard = _tensor_guard(distinct)
        return True


def _check_same_modules(tables: list[_Attributes], contract: Contract) -> None:
    here = [(path, name_of(type(owner))) for path, owner, _ in tables]
    there = [(module.path, module.type) for module in contract.modules]
    for (path, kind), (wanted_path, wanted) in zip(here, there, strict=False):
        if (path, kind) != (wanted_path, wanted):
            raise ContractError(
                f"the model has a {kind.qualname} at {path or 'its root'}, the step was compiled "
                f"for a {wanted.qualname} at {wanted_path or 'its root'}",
                path,
                "compile the step for this model",
            )
    if len(here) != len(there):
        raise ContractError(
            f"the model has {len(here)} modules, the step was compiled for {len(there)}",
            hint="compile the step for this model",
        )


def _tied_pairs(contract: Contract, weights: Weights) -> list[tuple[int, int]]:
    return [
        (weights.index[tensor.names[0]], weights.index[name])
        for tensor in contract.tensors
        for name in tensor.names[1:]
    ]


def _tensor_guard(tensors: list[torch.Tensor]) -> Callable[..., bool] | None:
    """PyTorch's own check of many tensors in one call: dtype, device, flags, shape, strides.

    It is private, so it only ever speeds up a check that the comparison above would pass as well;
    where it is missing, or says no (under autocast, say), that comparison decides.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        shapes: Any = [list(tensor.shape) for tensor in tensors]
        strides: Any = [list(tensor.stride()) for tensor in tensors]
        guards = TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    except (ImportError, TypeError, RuntimeError):
        return None
    check: Callable[..., bool] = guards.check
    return check
