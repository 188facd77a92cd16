"""Running graphs before and after passes and comparing what they give, port by port."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rudagraph.ir.graph import Graph, Role
from rudagraph.ir.interpret import interpret

Key = tuple[Role, str]
Tensors = Mapping[str, torch.Tensor]


def run(
    graph: Graph, inputs: Tensors, precision: torch.dtype | None = None
) -> dict[Key, torch.Tensor]:
    """Results, updates and gradients by role and target."""
    given = {port.value.name: inputs[port.value.name] for port in graph.inputs}
    values = interpret(graph, given, precision=precision)
    return {(port.role, port.target): values[port.value.name] for port in graph.outputs}


def run_step(
    forward: Graph, backward: Graph | None, inputs: Tensors, precision: torch.dtype | None = None
) -> dict[Key, torch.Tensor]:
    """Both graphs, residuals handed over by name; an input that forward overwrites is spoilt."""
    outputs = run(forward, inputs, precision)
    residuals = {t: v for (role, t), v in outputs.items() if role is Role.RESIDUAL}
    outputs = {key: v for key, v in outputs.items() if key[0] is not Role.RESIDUAL}
    if backward is None:
        return outputs
    written = {target for role, target in outputs if role is Role.UPDATE}
    given: dict[str, torch.Tensor] = {}
    for port in backward.inputs:
        name = port.value.name
        if port.role is Role.RESIDUAL:
            given[name] = residuals[port.target]
        elif f"{port.role.value}:{port.target}" in written:
            given[name] = torch.full_like(inputs[name], float("nan"))
        else:
            given[name] = inputs[name]
    outputs.update(run(backward, given, precision))
    return outputs


def assert_same(
    got: Mapping[Key, torch.Tensor],
    wanted: Mapping[Key, torch.Tensor],
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Equal ports and equal tensors; exact, NaN equal to NaN, unless tolerances are given.

    What is saved for backward is not compared: the passes decide it.
    """
    got, wanted = _without_residuals(got), _without_residuals(wanted)
    assert got.keys() == wanted.keys()
    for key, tensor in wanted.items():
        torch.testing.assert_close(
            got[key], tensor, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, k=key: f"{k}: {m}"
        )


def _without_residuals(values: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
    return {key: value for key, value in values.items() if key[0] is not Role.RESIDUAL}
