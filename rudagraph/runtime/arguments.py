"""A call's arguments, bound to forward's parameters and flattened: once as a tree, then fast.

Input: args, kwargs and targets of a call. Output: the tensors in the order of forward's parameters
and a key that is equal for calls of one structure, however they were written. Invariant: order and
paths depend on the parameter names alone, not on which arguments were passed by keyword.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rudagraph.errors import ContractError
from rudagraph.ir.tree import CallTree, Constant, Node, TensorLeaf, Tree, tensor_leaves
from rudagraph.runtime.structure import (
    builder,
    extra_attributes,
    join,
    kind_of,
    members,
    resolve,
    take_apart,
)

_MISSING = object()
# What the loss takes; no parameter of a forward can bear this name, though `targets` it may.
_TARGETS = "loss targets"
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = (bool, int, str, type(None), bytes)
_TRACED = frozenset(("FakeTensor", "FunctionalTensor", "ProxyTensor"))
_SCALARS = (*_CONSTANTS, float, complex)


@dataclass(frozen=True, slots=True)
class _Slot:
    """One passed argument: its path, its place in args + kwargs, and its default."""

    path: str
    position: int
    default: Any

    def holds_default(self, value: Any) -> bool:
        """Whether passing this value is the same as leaving the argument out."""
        default = self.default
        if value is default:
            return True
        return type(value) is type(default) and type(value) in _CONSTANTS and value == default


@dataclass(frozen=True, slots=True)
class DescribedCall:
    """A call taken apart for the compiler: tree, tensors and their paths, and the lookup key."""

    tree: CallTree
    leaves: tuple[torch.Tensor, ...]
    paths: tuple[str, ...]
    key: tuple[Any, ...]
    # path and tree of each argument that was passed and is not the default
    arguments: tuple[tuple[str, Tree], ...]


class Arguments:
    """Flattens the calls of one model."""

    def __init__(self, forward: Callable[..., Any], name: str = "forward") -> None:
        self.name = name
        self.signature = inspect.signature(forward)
        self._slots: dict[tuple[Any, ...], tuple[_Slot, ...]] = {}

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...] = ()
    ) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
        """The tensors of a call and its key."""
        form = (len(args), *kwargs)
        slots = self._slots.get(form)
        if slots is None:
            slots = self._slots[form] = self._bind(args, kwargs)
        values = (*args, *kwargs.values()) if kwargs else args
        leaves: list[torch.Tensor] = []
        key: list[Any] = []
        for slot in slots:
            value = values[slot.position]
            kind = type(value)
            if kind in _PLAIN_TENSORS:
                leaves.append(value)
                key.append(slot.path)
                continue
            if slot.holds_default(value):
                continue
            key.append((slot.path, _key(value, slot.path, leaves)))
        if targets:
            key.append((_TARGETS, _key(targets, _TARGETS, leaves)))
        return leaves, tuple(key)

    def describe(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...] = ()
    ) -> DescribedCall:
        """The call as data. Tensors in the same order as `flatten` gives them."""
        slots = self._bind(args, kwargs)
        values = (*args, *kwargs.values())
        leaves: list[torch.Tensor] = []
        trees: dict[int, Tree] = {}
        arguments: list[tuple[str, Tree]] = []
        for slot in slots:
            tree = take_apart(values[slot.position], slot.path, leaves)
            trees[slot.position] = tree
            if not slot.holds_default(values[slot.position]):
                arguments.append((slot.path, tree))
        positional = tuple(trees[index] for index in range(len(args)))
        keywords = tuple((name, trees[len(args) + index]) for index, name in enumerate(kwargs))
        after = tuple(
            take_apart(target, f"{_TARGETS}[{index}]", leaves)
            for index, target in enumerate(targets)
        )
        arguments += [(f"{_TARGETS}[{index}]", tree) for index, tree in enumerate(after)]
        _, key = self.flatten(args, kwargs, targets)
        return DescribedCall(
            tree=CallTree(positional, keywords, after),
            leaves=tuple(leaves),
            paths=tuple(_paths(arguments)),
            key=key,
            arguments=tuple(arguments),
        )

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Slot, ...]:
        """Slots in the order of forward's parameters; ContractError where the call does not fit."""
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ContractError(
                f"the arguments do not fit {self.name}: {error}",
                f"{self.name}{self.signature}",
                "call the step with the arguments that the model takes",
            ) from None
        slots: list[_Slot] = []
        places = {name: len(args) + index for index, name in enumerate(kwargs)}
        position = 0
        for name, parameter in self.signature.parameters.items():
            default = _MISSING if parameter.default is parameter.empty else parameter.default
            if parameter.kind is parameter.VAR_POSITIONAL:
                for index in range(position, len(args)):
                    slots.append(_Slot(f"{name}[{index - position}]", index, _MISSING))
                position = len(args)
            elif parameter.kind is parameter.VAR_KEYWORD:
                slots += [_Slot(extra, places[extra], _MISSING) for extra in sorted(places)]
            elif position < len(args) and parameter.kind is not parameter.KEYWORD_ONLY:
                slots.append(_Slot(name, position, default))
                position += 1
            elif name in places:
                slots.append(_Slot(name, places.pop(name), default))
        return tuple(slots)


def call_builder(
    tree: CallTree,
) -> Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]]:
    """A function from flat tensors to (args, kwargs, targets), spelled as the user did."""
    positional = [builder(child) for child in tree.positional]
    keywords = [(name, builder(child)) for name, child in tree.keywords]
    targets = [builder(child) for child in tree.targets]

    def build(leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        return (
            tuple(child(leaves) for child in positional),
            {name: child(leaves) for name, child in keywords},
            tuple(child(leaves) for child in targets),
        )

    return build


def key_of(arguments: Sequence[tuple[str, Tree]]) -> tuple[Any, ...]:
    """The key that `flatten` gives for a call described by these arguments."""
    key: list[Any] = []
    targets: list[Any] = []
    for path, tree in arguments:
        if path.startswith(f"{_TARGETS}["):
            targets.append(_tree_key(tree))
        else:
            key.append(path if isinstance(tree, TensorLeaf) else (path, _tree_key(tree)))
    if targets:
        key.append((_TARGETS, (tuple, tuple(range(len(targets))), tuple(targets), ())))
    return tuple(key)


def _key(value: Any, path: str, leaves: list[torch.Tensor]) -> Any:
    """What two values of one structure have in common; their tensors are appended to `leaves`."""
    if isinstance(value, torch.Tensor):
        _refuse_wrapper(value, path)
        leaves.append(value)
        return torch.Tensor
    if isinstance(value, _SCALARS):
        return _scalar_key(value)
    kind = kind_of(value)
    if kind is None:
        take_apart(value, path, [])  # raises for what has no known structure
        return type(value), value
    keys, children = members(value, kind)
    inner = [
        _key(child, join(path, key), leaves) for key, child in zip(keys, children, strict=True)
    ]
    extras = extra_attributes(value, kind, keys)
    return type(value), keys, tuple(inner), _extras_key(extras)


def _tree_key(tree: Tree) -> Any:
    match tree:
        case TensorLeaf():
            return torch.Tensor
        case Constant(value):
            return _scalar_key(value)
        case Node():
            inner = tuple(_tree_key(child) for child in tree.children)
            return resolve(tree.type), tree.keys, inner, _extras_key(tree.extras)
    value = builder(tree)(())
    return type(value), value


def _scalar_key(value: Any) -> Any:
    if isinstance(value, float | complex):
        return type(value), repr(value)  # NaN equals itself, -0.0 is not 0.0
    return type(value), value


def _extras_key(extras: tuple[tuple[str, Tree], ...]) -> Any:
    return tuple((name, _tree_key(tree)) for name, tree in extras)


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Subclasses that dispatch by themselves hold their numbers elsewhere."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def _refuse_wrapper(tensor: torch.Tensor, path: str) -> None:
    if is_plain_tensor(tensor):
        return
    kind = type(tensor).__qualname__
    if kind in _TRACED:
        raise ContractError(
            f"argument {path} is a {kind}: the call is being traced (torch.export, make_fx, "
            "another StaticGraph), and a step runs on real tensors only",
            f"argument {path}",
            "call step.model(...) inside what is traced",
        )
    raise ContractError(
        f"argument {path} is a {kind}, which wraps other tensors",
        f"argument {path}",
        "pass the plain tensor inside it",
    )


def refuse_overlap(
    path: str, leaves: list[torch.Tensor], place: int, weights: list[torch.Tensor]
) -> None:
    """An argument that forward changes must not share memory with anything else."""
    storage = leaves[place].untyped_storage().data_ptr()
    others = [*leaves[:place], *leaves[place + 1 :], *weights]
    if any(other.untyped_storage().data_ptr() == storage for other in others):
        raise ContractError(
            f"argument {path} is changed in place and shares memory (an alias) with another tensor",
            f"argument {path}",
            "pass a copy: .clone()",
        )


def _paths(arguments: Sequence[tuple[str, Tree]]) -> list[str]:
    return [leaf.path for _, tree in arguments for leaf in tensor_leaves(tree)]
