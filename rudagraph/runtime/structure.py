"""Takes nested Python values apart into tensors and a tree, and builds them again.

Input: what a user passes or a model returns. Output: a `Tree` and the flat list of its tensors;
`builder(tree)` is the way back. Invariant: building never runs a user's __init__, so a rebuilt
dataclass or ModelOutput has exactly the fields that were taken apart.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import operator
import sys
import types
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch

from rudagraph.errors import UnsupportedError, UsageError, suggest
from rudagraph.ir.tree import (
    Constant,
    Dropped,
    Key,
    Node,
    NodeKind,
    OutputLeaf,
    Reference,
    Spelled,
    Template,
    TensorLeaf,
    Tree,
    TypeName,
)
from rudagraph.options import Outputs
from rudagraph.runtime.dropped import DroppedOutput

Builder = Callable[[Sequence[Any]], Any]

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_TORCH_NAMED = (torch.dtype, torch.layout, torch.memory_format)

# Classes met so far, among them those that cannot be imported because a function defined them.
_seen: WeakValueDictionary[tuple[str, str], type] = WeakValueDictionary()


def take_apart(value: object, path: str, leaves: list[torch.Tensor]) -> Tree:
    """The tree of any supported value; its tensors are appended to `leaves`.

    UnsupportedError names the path of what has no known structure.
    """
    return _Apart(leaves, (), drop_caches=False).tree(value, path)


def take_output_apart(
    output: object, outputs: Outputs = None
) -> tuple[Template, list[torch.Tensor]]:
    """The template of a model's output and its kept tensors, as the option `outputs` says.

    With a function, the step returns what that function returns; else the structure stays, and
    what is left out becomes a placeholder. UsageError where a path of the option names nothing.
    """
    if callable(outputs) and not isinstance(outputs, str | tuple):
        output, outputs = outputs(output), None
    wanted = (outputs,) if isinstance(outputs, str) else tuple(outputs or ())
    leaves: list[torch.Tensor] = []
    apart = _Apart(leaves, wanted, drop_caches=True)
    tree = apart.tree(output, "")
    for path in wanted:
        if path not in apart.matched:
            raise UsageError(
                f"option outputs names {path!r}, which the output of the model has not",
                hint=suggest(path, apart.paths)
                if apart.paths
                else "the output is one tensor: leave the option out",
            )
    kept = tuple(
        OutputLeaf(path, leaf.requires_grad)
        for path, leaf in zip(apart.kept_paths, leaves, strict=True)
    )
    return Template(tree, kept), leaves


def builder(tree: Tree) -> Builder:
    """A function from the flat list of tensors to the value that `tree` describes."""
    if isinstance(tree, TensorLeaf):
        return operator.itemgetter(tree.index)
    if isinstance(tree, Node):
        return _node_builder(tree)
    value = _constant(tree)
    return lambda leaves: value


def resolve(name: TypeName) -> Any:
    """The object of that name; UsageError where it cannot be imported."""
    if (name.module, name.qualname) in _seen:
        return _seen[name.module, name.qualname]
    try:
        module = sys.modules.get(name.module) or importlib.import_module(name.module)
        return operator.attrgetter(name.qualname)(module)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the step uses {name}, which cannot be imported here: {error}",
            hint="make the module that defines it importable",
        ) from error


def name_of(cls: type) -> TypeName:
    """The name of a class, and the class remembered under it."""
    _seen[cls.__module__, cls.__qualname__] = cls
    return TypeName(cls.__module__, cls.__qualname__)


def kind_of(value: object) -> NodeKind | None:
    """How a value is taken apart; None where it is no container."""
    if isinstance(value, dict):
        return "dataclass" if _is_model_output(type(value)) else "dict"
    if isinstance(value, tuple):
        return "namedtuple" if hasattr(value, "_fields") else "tuple"
    if isinstance(value, list):
        return "list"
    if isinstance(value, UserDict):
        return "userdict"
    return "dataclass" if dataclasses.is_dataclass(value) and not isinstance(value, type) else None


def members(value: Any, kind: NodeKind) -> tuple[tuple[Key, ...], Sequence[Any]]:
    """Keys and children of a container; fields that were never set are left out."""
    match kind:
        case "dict":
            return tuple(value), list(value.values())
        case "userdict":
            return tuple(value.data), list(value.data.values())
        case "dataclass":
            names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
            return tuple(names), [getattr(value, name) for name in names]
        case "namedtuple":
            return tuple(value._fields), value
    return tuple(range(len(value))), value


def join(path: str, key: Key) -> str:
    """The path of a member as a user would write it: `batch.mask`, `xs[0]`."""
    if not isinstance(key, str) or not key.isidentifier():
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key


class _Apart:
    """One walk: collects tensors, and drops the parts that `wanted` does not name."""

    def __init__(
        self, leaves: list[torch.Tensor], wanted: tuple[str, ...], drop_caches: bool
    ) -> None:
        self.leaves = leaves
        self.wanted = wanted
        self.drop_caches = drop_caches
        self.matched: set[str] = set()
        self.paths: list[str] = []
        self.kept_paths: list[str] = []

    def tree(self, value: Any, path: str, kept: bool = False) -> Tree:
        if path:
            self.paths.append(path)
        if path in self.wanted:
            self.matched.add(path)
            kept = True
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, kept)
        if isinstance(value, _SCALARS):
            return Constant(value)
        if self.drop_caches and _is_cache(value):
            return _dropped_cache(path)
        kind = kind_of(value)
        if kind is not None:
            return self._node(value, path, kind, kept)
        return _plain(value, path)

    def _tensor(self, value: torch.Tensor, path: str, kept: bool) -> Tree:
        if self.wanted and not kept:
            paths = ", ".join(repr(p) for p in (*self.wanted, path))
            return Dropped(
                path,
                f"{path or 'the output'} was not kept by this step",
                f"keep it with StaticGraph(model, outputs=({paths}))",
            )
        self.kept_paths.append(path)
        self.leaves.append(value)
        return TensorLeaf(path, len(self.leaves) - 1)

    def _node(self, value: Any, path: str, kind: NodeKind, kept: bool) -> Tree:
        keys, children = members(value, kind)
        trees: list[Tree] = []
        for key, child in zip(keys, children, strict=True):
            if not isinstance(key, str | int | bool | None):
                raise UnsupportedError(
                    f"a {type(value).__name__} has the key {key!r}",
                    path,
                    "use strings or whole numbers as keys",
                )
            inner = join(path, key)
            cache = self.drop_caches and key == "past_key_values" and child is not None
            if cache and _is_model_output(type(value)):
                trees.append(_dropped_cache(inner))
            else:
                trees.append(self.tree(child, inner, kept))
        extras = extra_attributes(value, kind, keys)
        return Node(kind, name_of(type(value)), keys, tuple(trees), extras)


def extra_attributes(
    value: Any, kind: NodeKind, keys: tuple[Key, ...]
) -> tuple[tuple[str, Tree], ...]:
    """Scalar attributes of an instance beyond its members, such as what __post_init__ has set.

    Of a defaultdict, the factory.
    """
    if isinstance(value, defaultdict):
        factory = value.default_factory
        return () if factory is None else (("default_factory", _factory(factory)),)
    if kind not in ("dataclass", "userdict"):
        return ()
    attributes = getattr(value, "__dict__", {})
    return tuple(
        (name, Constant(attribute))
        for name, attribute in attributes.items()
        if name not in keys and name != "data" and isinstance(attribute, _SCALARS)
    )


def _factory(factory: Any) -> Tree:
    try:
        return _plain(factory, "")
    except UnsupportedError:
        raise UnsupportedError(
            "a defaultdict has a factory that cannot be found again by its name",
            getattr(factory, "__qualname__", repr(factory)),
            "use a class or a function of a module, such as list, or a plain dict",
        ) from None


def _plain(value: Any, path: str) -> Tree:
    if isinstance(value, enum.Enum):
        owner = name_of(type(value))
        return Reference(TypeName(owner.module, f"{owner.qualname}.{value.name}"))
    if isinstance(value, _TORCH_NAMED):
        return Reference(TypeName("torch", str(value).removeprefix("torch.")))
    if isinstance(value, torch.device):
        return Spelled(TypeName("torch", "device"), str(value))
    if isinstance(value, type):
        return Reference(name_of(value))
    if isinstance(value, _FUNCTIONS) and (name := _importable(value)):
        return Reference(name)
    hint = "use tensors, Python scalars, dict, list, tuple, NamedTuple, dataclass or ModelOutput"
    if type(value).__module__ == "numpy":
        hint = "pass torch.from_numpy(array), and number.item() for a NumPy scalar"
    raise UnsupportedError(
        f"a {type(value).__module__}.{type(value).__qualname__} has no known structure",
        path or "the output",
        hint,
    )


def _importable(function: Any) -> TypeName | None:
    """The name under which a function is found again, if there is one."""
    module = sys.modules.get(function.__module__)
    for qualname in (function.__qualname__, function.__name__):
        try:
            if operator.attrgetter(qualname)(module) is function:
                return TypeName(function.__module__, qualname)
        except AttributeError:
            continue
    return None


def _constant(tree: Tree) -> Any:
    match tree:
        case Constant(value):
            return value
        case Reference(name):
            return resolve(name)
        case Spelled(type, text):
            return resolve(type)(text)
        case Dropped():
            return DroppedOutput(UsageError(tree.what, tree.path, tree.hint))
    raise TypeError(tree)


def _node_builder(node: Node) -> Builder:
    children = [builder(child) for child in node.children]
    keys = node.keys
    cls = resolve(node.type)
    match node.kind:
        case "list" | "tuple":
            if cls in (list, tuple) or cls is torch.Size:
                return lambda leaves: cls([child(leaves) for child in children])
            make: Callable[..., Any] = list.__new__ if node.kind == "list" else tuple.__new__
            if node.kind == "tuple":
                return lambda leaves: make(cls, [child(leaves) for child in children])
            return lambda leaves: _filled(make(cls), [child(leaves) for child in children])
        case "namedtuple":
            return lambda leaves: tuple.__new__(cls, [child(leaves) for child in children])
        case "dict":
            if cls is dict:
                pairs = list(zip(keys, children, strict=True))
                return lambda leaves: {key: child(leaves) for key, child in pairs}
            return _dict_builder(node, cls, children)
    return _instance_builder(node, cls, children)


def _filled(target: list[Any], items: list[Any]) -> list[Any]:
    target.extend(items)
    return target


def _dict_builder(node: Node, cls: Any, children: list[Builder]) -> Builder:
    keys, extras = node.keys, [(name, _constant(tree)) for name, tree in node.extras]
    put = OrderedDict.__setitem__ if issubclass(cls, OrderedDict) else dict.__setitem__

    def build(leaves: Sequence[Any]) -> Any:
        result = cls.__new__(cls)
        for key, child in zip(keys, children, strict=True):
            put(result, key, child(leaves))
        for name, value in extras:
            setattr(result, name, value)
        return result

    return build


def _instance_builder(node: Node, cls: Any, children: list[Builder]) -> Builder:
    """Dataclasses, ModelOutput and UserDict: a bare instance, then its fields."""
    keys = node.keys
    extras = [(name, _constant(tree)) for name, tree in node.extras]
    as_dict = issubclass(cls, OrderedDict)
    as_data = node.kind == "userdict"
    assign = object.__setattr__

    def build(leaves: Sequence[Any]) -> Any:
        result = cls.__new__(cls)
        values = [child(leaves) for child in children]
        if as_data:
            assign(result, "data", dict(zip(keys, values, strict=True)))
        else:
            for key, value in zip(keys, values, strict=True):
                assign(result, str(key), value)
                if as_dict and value is not None:
                    OrderedDict.__setitem__(result, key, value)
        for name, value in extras:
            assign(result, name, value)
        return result

    return build


def _is_model_output(cls: type) -> bool:
    return any(
        base.__name__ == "ModelOutput" and base.__module__.startswith("transformers.")
        for base in cls.__mro__
    )


def _is_cache(value: object) -> bool:
    return any(
        base.__module__ == "transformers.cache_utils" and base.__name__.endswith("Cache")
        for base in type(value).__mro__
    )


def _dropped_cache(path: str) -> Dropped:
    return Dropped(
        path,
        "a key/value cache is no output of a training step",
        "call step.model(...) to generate, or pass use_cache=False",
    )
