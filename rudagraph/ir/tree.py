"""Nested Python values as frozen data: what a call takes and what it gives back.

A tree says which containers hold which tensors, under which paths; tensors themselves stand in a
flat list beside it. Types are kept by name, so that a tree can be stored and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Scalar = bool | int | float | complex | str | bytes | None
Key = str | int | bool | None

# How a container is built again from its children.
NodeKind = Literal["dict", "list", "tuple", "namedtuple", "dataclass", "userdict"]


@dataclass(frozen=True, slots=True)
class TypeName:
    """A class or other object by the place it can be imported from."""

    module: str
    qualname: str

    def __str__(self) -> str:
        return self.qualname if self.module == "builtins" else f"{self.module}.{self.qualname}"


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor: its path as the user would write it ("" if it is all), its place in the list."""

    path: str
    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A Python scalar, part of the contract."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Reference:
    """Something importable: a dtype, an enum member, a function, a class."""

    name: TypeName


@dataclass(frozen=True, slots=True)
class Spelled:
    """A value that its type makes again from a text: `torch.device("cpu")`."""

    type: TypeName
    text: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A part of the output that the step does not produce; using it raises `what` and `hint`."""

    path: str
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Node:
    """A container. `extras` are further attributes of the instance, restored without __init__."""

    kind: NodeKind
    type: TypeName
    keys: tuple[Key, ...]
    children: tuple[Tree, ...]
    extras: tuple[tuple[str, Tree], ...] = ()


Tree = TensorLeaf | Constant | Reference | Spelled | Dropped | Node


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """A kept tensor of the output: its path, and whether eager's would require grad."""

    path: str
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Template:
    """The user's output: its tree and, for each index in it, the tensor that goes there."""

    tree: Tree
    leaves: tuple[OutputLeaf, ...]


@dataclass(frozen=True, slots=True)
class CallTree:
    """A call `forward(*positional, **keywords)`, and the targets of a loss function after it."""

    positional: tuple[Tree, ...]
    keywords: tuple[tuple[str, Tree], ...]
    targets: tuple[Tree, ...] = ()


def tensor_leaves(tree: Tree) -> Iterator[TensorLeaf]:
    """All tensors of a tree, from left to right."""
    if isinstance(tree, TensorLeaf):
        yield tree
    elif isinstance(tree, Node):
        for child in tree.children:
            yield from tensor_leaves(child)
        for _, child in tree.extras:
            yield from tensor_leaves(child)
