"""Says how a call differs from a contract: what, where, and what to do about it.

Only runs where the quick check has failed. Input: the call and the model as they are, and a
contract. Output: all differences, the ones that the caller caused first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rudagraph.errors import ContractError, RudagraphError
from rudagraph.ir.contract import Contract, ModuleContract
from rudagraph.ir.torch_types import to_torch_dtype, type_of
from rudagraph.ir.tree import Constant, Node, Reference, Spelled, TensorLeaf, Tree
from rudagraph.runtime.arguments import DescribedCall, is_plain_tensor
from rudagraph.runtime.attributes import attribute_tables
from rudagraph.runtime.contract import (
    HOOK_TABLES,
    Checker,
    current_modes,
    global_hooks,
)
from rudagraph.runtime.structure import name_of
from rudagraph.runtime.weights import locate, modules_by_path

_ADD = "add this signature to the step with step.add(...), called as the model is; "
_WITHOUT = "step.model(...) runs the model without the step"
ADD = _ADD + _WITHOUT
ADD_SHAPE = f"{_ADD}for a smaller last batch DataLoader(drop_last=True) avoids it; {_WITHOUT}"
RECORD = "; a record that forward does not read belongs outside the model"
COMPILE_AGAIN = "undo the change, or compile the step again"


_UNORDERED = (set, frozenset, dict)
_LONGEST = 100  # characters of a value in a message


@dataclass(frozen=True)
class Difference:
    """One thing that is not as the contract says."""

    what: str
    where: str
    hint: str = ADD


def _replaced(paths: list[str]) -> Difference:
    """Modules that are others than at compile time, and alike in all that a contract names."""
    verb = "is another module" if len(paths) == 1 else "are other modules"
    what = f"{', '.join(paths[:4])} {verb} than when the step was compiled"
    return Difference(what, paths[0], COMPILE_AGAIN)


def unnamed(checker: Checker) -> Difference | None:
    """What a contract does not name, and what is yet not as it was when the step was bound."""
    if paths := checker.replaced():
        return _replaced(paths)
    if changes := list(checker.behaviour.changes()):
        spoken = [f"{path or 'model'}.{name} {words}" for path, name, words in changes[:4]]
        path, name, _ = changes[0]
        return Difference("; ".join(spoken), f"{path}.{name}" if path else name, COMPILE_AGAIN)
    if global_hooks() != checker.global_hooks:
        what = "hooks of all modules (register_module_…_hook) are others than at compile"
        return Difference(what, "torch.nn.modules.module", COMPILE_AGAIN)
    if paths := list(checker.skeletons.changes()):
        what = f"{paths[0]} holds other things than when the step was compiled"
        return Difference(what, paths[0], COMPILE_AGAIN + RECORD)
    return None


def contract_error(differences: list[Difference]) -> ContractError:
    """The error that shows the first few differences, those of one kind as one."""
    kinds: dict[tuple[str, str], list[Difference]] = {}
    for difference in differences:
        kind = difference.what.replace(difference.where, "", 1), difference.hint
        kinds.setdefault(kind, []).append(difference)
    lines = [line for found in kinds.values() for line in _lines(found)]
    further = [f"also: {line}" for line in lines[1:4]]
    if len(lines) > 4:
        further.append(f"and {len(lines) - 4} more differences")
    first = differences[0]
    return ContractError("\n".join([lines[0], *further]), first.where, first.hint)


def _lines(alike: list[Difference]) -> list[str]:
    if len(alike) < 3:
        return [difference.what for difference in alike]
    first, *others = alike
    named = ", ".join(other.where for other in others[:4])
    dots = ", …" if len(others) > 4 else ""
    return [f"{first.what}; {len(others)} more likewise: {named}{dots}"]


def differences(model: nn.Module, call: DescribedCall, contract: Contract) -> list[Difference]:
    """Everything in which this call of the model, now, is not the contract's."""
    return [
        *_arguments(call, contract),
        *_leaves(call, contract),
        *_modes(contract),
        *model_differences(model, contract),
    ]


def model_differences(model: nn.Module, contract: Contract) -> list[Difference]:
    """Everything in which the model itself, whatever it is called with, is not the contract's."""
    return [*_modules(model, contract), *_tensors(model, contract)]


def _arguments(call: DescribedCall, contract: Contract) -> Iterator[Difference]:
    given, wanted = dict(call.arguments), dict(contract.arguments)
    for path, tree in wanted.items():
        if path not in given:
            what = f"argument {path} is left out; the step was compiled for {_describe(tree)}"
            yield Difference(what, f"argument {path}")
        else:
            yield from _trees(path, given[path], tree)
    for path, tree in given.items():
        if path not in wanted:
            what = f"argument {path} is {_describe(tree)}; the step was compiled without it"
            yield Difference(what, f"argument {path}")


def _trees(path: str, given: Tree, wanted: Tree) -> Iterator[Difference]:
    match given, wanted:
        case TensorLeaf(), TensorLeaf():
            return
        case Node(), Node() if (given.type, given.keys) == (wanted.type, wanted.keys):
            for here, there in zip(given.children, wanted.children, strict=True):
                yield from _trees(path, here, there)
            return
    if repr(given) != repr(wanted):  # 3 and 3.0 are equal, and not the same argument
        what = f"argument {path} is {_describe(given)}, the step was compiled for"
        yield Difference(f"{what} {_describe(wanted)}", f"argument {path}")


def _describe(tree: Tree) -> str:
    match tree:
        case TensorLeaf():
            return "a tensor"
        case Constant(value):
            return "None" if value is None else f"the {type(value).__name__} {value!r}"
        case Reference(name):
            return str(name)
        case Spelled(type_name, text):
            return f"{type_name}({text!r})"
        case Node():
            keys = ", ".join(map(str, tree.keys[:6]))
            return f"a {tree.type.qualname} of {len(tree.keys)} ({keys})"
    return "left out"


def _leaves(call: DescribedCall, contract: Contract) -> Iterator[Difference]:
    grad = torch.is_grad_enabled() and contract.modes.grad
    wanted = {leaf.path: leaf for leaf in contract.leaves}
    for path, tensor in zip(call.paths, call.leaves, strict=True):
        expected = wanted.get(path)
        if expected is None:
            continue
        where = f"argument {path}"
        try:
            found = type_of(tensor)
        except RudagraphError as error:
            yield Difference(error.what, where, error.hint)
            continue
        dtype = _torch_name(tensor.dtype)
        if found.shape != expected.type.shape:
            yield Difference(
                f"argument {path} has shape {_shape(found.shape)}, "
                f"the step was compiled for {_shape(expected.type.shape)}",
                where,
                ADD_SHAPE,
            )
        if found.dtype is not expected.type.dtype:
            from_dtype = _dtype_name(expected.type.dtype)
            yield Difference(
                f"argument {path} has dtype {dtype}, the step was compiled for {from_dtype}", where
            )
        if str(tensor.device) != expected.device:
            yield Difference(
                f"argument {path} is on {tensor.device}, the step was compiled for "
                f"{expected.device}",
                where,
                f"move it with .to({expected.device!r})",
            )
        if tensor.layout is not torch.strided:
            yield Difference(
                f"argument {path} has layout {_torch_name(tensor.layout)}, a step takes dense "
                "tensors",
                where,
                "pass .to_dense()",
            )
        if grad and tensor.requires_grad != expected.requires_grad:
            state = "requires grad" if tensor.requires_grad else "does not require grad"
            yield Difference(
                f"argument {path} {state}, the step was compiled for "
                f"requires_grad={expected.requires_grad}",
                where,
            )


def _modes(contract: Contract) -> Iterator[Difference]:
    now = current_modes(contract.device.partition(":")[0])
    if now.grad and not contract.modes.grad:
        yield Difference(
            "grad mode is enabled, the step was compiled under no_grad and has no backward",
            "grad mode",
        )
    if now.autocast != contract.modes.autocast:
        yield Difference(
            f"autocast is {now.autocast or 'off'}, the step was compiled for "
            f"{contract.modes.autocast or 'off'}",
            "autocast",
        )
    if now.default_dtype != contract.modes.default_dtype:
        yield Difference(
            f"the default dtype is {now.default_dtype}, the step was compiled for "
            f"{contract.modes.default_dtype}",
            "torch.set_default_dtype",
        )


def _modules(model: nn.Module, contract: Contract) -> Iterator[Difference]:
    here = {path: (owner, table) for path, owner, table in attribute_tables(model)}
    for wanted in contract.modules:
        if wanted.path not in here:
            what = f"module {wanted.path} is gone; the step was compiled with it"
            yield Difference(what, wanted.path, COMPILE_AGAIN)
            continue
        yield from _module(*here.pop(wanted.path), wanted)
    for path in here:
        what = f"module {path} is new; the step was compiled without it"
        yield Difference(what, path, COMPILE_AGAIN)


def _module(owner: Any, table: dict[str, Any], wanted: ModuleContract) -> Iterator[Difference]:
    path = wanted.path or "model"
    kind = name_of(type(owner))
    if kind != wanted.type:
        what = f"{path} is a {kind.qualname}, the step was compiled for a {wanted.type.qualname}"
        yield Difference(what, path, COMPILE_AGAIN)
        return
    if wanted.training is not None and owner.training != wanted.training:
        mode = {True: "train", False: "eval"}
        yield Difference(
            f"{path} is in {mode[owner.training]} mode, the step was compiled for "
            f"{mode[wanted.training]} mode",
            path,
        )
    for name, value in wanted.attributes:
        if name not in table:
            yield Difference(f"{path}.{name} is gone, it was {value!r}", path, COMPILE_AGAIN)
        elif not _same(table[name], value):
            record = RECORD if isinstance(value, list | dict | set | deque) else ""
            yield Difference(
                f"{path}.{name} is {_short(table[name])}, the step was compiled for "
                f"{_short(value)}",
                f"{path}.{name}",
                ADD + record,
            )
    if not isinstance(owner, nn.Module):
        return
    count = sum(len(getattr(owner, hooks)) for hooks in HOOK_TABLES)
    if count != len(wanted.hooks):
        yield Difference(
            f"{path} has {count} hooks, the step was compiled with {len(wanted.hooks)}",
            path,
            "register hooks before compiling: the step runs those it was compiled with; "
            "or " + COMPILE_AGAIN,
        )


def _same(now: Any, before: Any) -> bool:
    """As the quick check compares, but 3 is not 3.0."""
    if type(now) is not type(before):
        return False
    return repr(now) == repr(before) or (isinstance(now, _UNORDERED) and now == before)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _tensors(model: nn.Module, contract: Contract) -> Iterator[Difference]:
    modules = modules_by_path(model)
    for wanted in contract.tensors:
        found: list[Any] = []
        for name in wanted.names:
            try:
                container, key = locate(modules, name)
                found.append(container[key])
            except ContractError as error:
                yield Difference(error.what, name, error.hint)
        if not found:
            continue
        name, tensor = wanted.names[0], found[0]
        kind = "parameter" if wanted.parameter else "buffer"
        if not isinstance(tensor, torch.Tensor):
            yield Difference(f"{kind} {name} is {tensor!r}, no tensor", name, COMPILE_AGAIN)
            continue
        if not is_plain_tensor(tensor):
            what = f"{kind} {name} is a {type(tensor).__qualname__}, which wraps other tensors"
            yield Difference(what, name, COMPILE_AGAIN)
            continue
        if any(other is not tensor for other in found[1:]):
            yield Difference(
                f"{kind} {' and '.join(wanted.names)} were one tied tensor and are now different",
                name,
                "tie them again (model.tie_weights()), or compile the step again",
            )
        type_now = type_of(tensor)
        if type_now != wanted.type or str(tensor.device) != wanted.device:
            yield Difference(
                f"{kind} {name} is {type_now} {_shape(type_now.shape)} on {tensor.device}, "
                f"the step was compiled for {wanted.type} {_shape(wanted.type.shape)} "
                f"on {wanted.device}",
                name,
                COMPILE_AGAIN,
            )
        if tensor.requires_grad != wanted.requires_grad:
            yield Difference(
                f"{kind} {name} has requires_grad={tensor.requires_grad}, the step was compiled "
                f"for requires_grad={wanted.requires_grad}",
                name,
            )


def _shape(shape: tuple[int, ...]) -> str:
    return str(tuple(shape))


def _torch_name(value: torch.dtype | torch.layout) -> str:
    return str(value).removeprefix("torch.")


def _dtype_name(dtype: Any) -> str:
    return _torch_name(to_torch_dtype(dtype))
