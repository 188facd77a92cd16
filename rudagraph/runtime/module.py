"""A step as an nn.Module, for what wraps modules: DistributedDataParallel above all.

Input: a step. Output: a module with the model's own parameters, buffers, submodules and names,
whose forward is the step. Invariant: it holds no tensor of its own; what is done to its parameters
is done to the model's.
"""

from __future__ import annotations

from typing import Any

from torch import nn

_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class StepModule(nn.Module):
    """Made by `step.as_module()`."""

    step: Any

    def __init__(self, step: Any) -> None:
        super().__init__()
        own = self.__dict__
        own["step"] = step  # past nn.Module's registration
        for table in _SHARED:
            own[table] = step.model.__dict__[table]
        self.training = step.model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.step(*args, **kwargs)

    def train(self, mode: bool = True) -> StepModule:
        self.step.model.train(mode)
        self.training = mode
        return self

    def __repr__(self) -> str:
        return f"StepModule({self.step!r})"
