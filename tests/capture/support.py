"""Capture a module, interpret its joint graph, and hold it against eager autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from rudagraph.capture import Capture, capture
from rudagraph.ir.graph import Role
from rudagraph.ir.interpret import interpret
from rudagraph.ir.text import parse_graph, print_graph
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.verify import verify
from rudagraph.runtime.arguments import Arguments
from rudagraph.runtime.structure import take_output_apart

KEY = 0x1234_5678_9ABC_DEF


class Step(NamedTuple):
    """What one forward and backward gave, by path: results, updates, gradients."""

    results: dict[str, torch.Tensor]
    updates: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def find(root: Any, path: str) -> torch.Tensor:
    """The tensor at a path of names and indices below an object."""
    for part in path.replace("[", ".[").split("."):
        if not part:
            continue
        if part.startswith("["):
            root = root[eval(part[1:-1])]
        elif part.isdigit() and not hasattr(root, part):
            root = root[int(part)]
        else:
            root = getattr(root, part)
    return root


def arguments(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    targets: tuple[Any, ...] = (),
) -> dict[str, torch.Tensor]:
    call = Arguments(model.forward).describe(args, kwargs, targets)
    return dict(zip(call.paths, call.leaves, strict=True))


def run(
    captured: Capture,
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    tangents: dict[str, torch.Tensor] | None = None,
    targets: tuple[Any, ...] = (),
) -> Step:
    """Interpret the joint graph; a tangent not given is ones."""
    graph = captured.graph
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    given = arguments(model, args, kwargs or {}, targets)
    feed: dict[str, torch.Tensor] = {}
    for port in graph.inputs:
        match port.role:
            case Role.PARAMETER | Role.BUFFER:
                feed[port.value.name] = find(model, port.target)
            case Role.ARGUMENT:
                feed[port.value.name] = given[port.target]
            case Role.CONSTANT:
                feed[port.value.name] = captured.constants[port.target]
            case Role.KEY:
                feed[port.value.name] = torch.tensor(KEY)
            case Role.TANGENT:
                result = next(
                    o.value
                    for o in graph.outputs
                    if (o.role, o.target) == (Role.RESULT, port.target)
                )
                ones = torch.ones(result.type.shape, dtype=to_torch_dtype(result.type.dtype))
                feed[port.value.name] = (tangents or {}).get(port.target, ones)
    values = interpret(graph, feed)
    step = Step({}, {}, {})
    tables = {Role.RESULT: step.results, Role.UPDATE: step.updates, Role.GRADIENT: step.gradients}
    for port in graph.outputs:
        tables[port.role][port.target] = values[port.value.name]
    return step


def eager(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    keep: Callable[[Any], Any] = lambda output: output,
) -> Step:
    """The same step by PyTorch on a copy of the module: the sum of all results backward."""
    twin = copy.deepcopy(model)
    given = arguments(model, args, kwargs or {})
    args, kwargs = copy.deepcopy((args, kwargs or {}))
    step = Step({}, {}, {})
    output = keep(twin(*args, **kwargs))
    template, tensors = take_output_apart(output)
    step.results.update(zip([leaf.path for leaf in template.leaves], tensors, strict=True))
    total = [value.sum() for value in step.results.values() if value.requires_grad]
    if total:
        torch.autograd.backward(total)
    for name, parameter in twin.named_parameters():
        if parameter.grad is not None:
            step.gradients[name] = parameter.grad
    for path, leaf in arguments(twin, args, kwargs).items():
        if leaf.is_leaf and leaf.grad is not None:
            step.gradients[f"argument:{path}"] = leaf.grad
        if not torch.equal(leaf.nan_to_num(), given[path].nan_to_num()):
            step.updates[f"argument:{path}"] = leaf
    for name, buffer in twin.named_buffers():
        if not torch.equal(buffer, find(model, name)):
            step.updates[f"buffer:{name}"] = buffer
    return step


def assert_same(got: Step, want: Step, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    for mine, theirs in zip(got, want, strict=True):
        missing = sorted(theirs.keys() - mine.keys())
        assert not missing, f"missing: {missing}"
        extra = sorted(mine.keys() - theirs.keys())
        assert not extra, f"extra: {extra}"
        for name, value in theirs.items():
            torch.testing.assert_close(
                mine[name],
                value.detach(),
                rtol=rtol,
                atol=atol,
                equal_nan=True,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def check(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    rtol: float = 1e-9,
    atol: float = 1e-11,
) -> Capture:
    """Capture and compare with eager; returns the capture for further questions."""
    captured = capture(model, args, kwargs)
    got = run(captured, model, args, kwargs)
    assert_same(got, eager(model, args, kwargs), rtol, atol)
    return captured
