"""The model's own tensors, looked up anew at each call, so a swapped parameter is never stale.

Input: a model and paths such as `layers.0.weight` or `tables[0]`. Output: the tensors now there.
Invariant: nothing is cached but the dictionaries that hold them; the model is never modified.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from rudagraph.errors import ContractError

_STEP = re.compile(r"\[([^\]]+)\]")


def locate(modules: Mapping[str, nn.Module], path: str) -> tuple[Any, Any]:
    """The container and key that hold the tensor of that path, in a model's modules by path."""
    head, _, rest = path.partition("[")
    owner, _, name = head.rpartition(".")
    try:
        module = modules[owner]
        container: Any = module.__dict__
        for table in (module._parameters, module._buffers):
            if name in table:
                container = table
        key: Any = name
        for literal in _STEP.findall("[" + rest) if rest else ():
            container = container[key]
            key = ast.literal_eval(literal)
        container[key]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise ContractError(
            f"the model has no tensor {path}",
            path,
            "the step was compiled for a model that has it; compile again",
        ) from None
    return container, key


def modules_by_path(model: nn.Module) -> dict[str, nn.Module]:
    """Every module, under each of its paths."""
    return dict(model.named_modules(remove_duplicate=False))


class Weights:
    """Every tensor that a contract names, in its order."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.index = {name: index for index, name in enumerate(self.names)}
        modules = modules_by_path(model)
        places = [locate(modules, name) for name in self.names]
        self._containers = [container for container, _ in places]
        self._keys = [key for _, key in places]

    def tensors(self) -> list[torch.Tensor]:
        """The tensors now in place; KeyError or None entries where some were taken away."""
        return list(map(operator.getitem, self._containers, self._keys))
