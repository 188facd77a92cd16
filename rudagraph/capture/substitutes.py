"""Python code of PyTorch that is replaced while forward is traced, and restored afterwards.

Checkpointed regions run as ordinary code: what to recompute is decided later, by the compiler.
BatchNorm's cumulative average reads its counter as a number; here it stays a tensor. Recurrent
modules do not look where their weights lie, and cuDNN's own forms of modules are left out, so that
the trace is the same on every device. Transformers do not look at the numbers of their masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint as checkpointing


class _ReentrantCheckpoint:
    """Stands for CheckpointFunction: without an input that requires grad there is no gradient."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        reached = any(isinstance(item, torch.Tensor) and item.requires_grad for item in args)
        with torch.set_grad_enabled(torch.is_grad_enabled() and reached):
            return function(*args)


def _no_checkpoint(*_: Any, **__: Any) -> Iterator[None]:
    """Stands for the generator around a non-reentrant checkpoint: nothing before or after."""
    yield


def _is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """What the caller said: False is always right, the mask is then used as it is."""
    return is_causal is True


_batch_norm_forward = _BatchNorm.forward


def _cumulative_batch_norm(module: nn.Module, input: torch.Tensor) -> torch.Tensor:
    """BatchNorm.forward; with momentum None the weight of the new batch is 1 / batches seen."""
    assert isinstance(module, _BatchNorm)
    counter, mean, variance = module.num_batches_tracked, module.running_mean, module.running_var
    cumulative = module.momentum is None and module.training and module.track_running_stats
    if not cumulative or counter is None or mean is None or variance is None:
        return _batch_norm_forward(module, input)
    module._check_input_dim(input)  # type: ignore[no-untyped-call]
    counter.add_(1)
    batch_mean, batch_variance = torch.zeros_like(mean), torch.zeros_like(variance)
    output = F.batch_norm(
        input, batch_mean, batch_variance, module.weight, module.bias, True, 1.0, module.eps
    )
    with torch.no_grad():
        share = 1.0 / counter.to(mean.dtype)
        for running, batch in ((mean, batch_mean), (variance, batch_variance)):
            running.copy_(running * (1 - share) + batch * share)
    return output


def _nothing(self: nn.RNNBase) -> None:
    """Stands for RNNBase.flatten_parameters, which asks for addresses."""


@contextmanager
def substituted() -> Iterator[None]:
    """With the replacements in place."""
    before = (
        checkpointing.CheckpointFunction,
        checkpointing._checkpoint_without_reentrant_generator,
    )
    checkpointing.CheckpointFunction = _ReentrantCheckpoint  # type: ignore[assignment, misc]
    checkpointing._checkpoint_without_reentrant_generator = _no_checkpoint
    flatten = nn.RNNBase.flatten_parameters
    detect = transformer._detect_is_causal_mask
    cudnn = torch._C._get_cudnn_enabled()
    _BatchNorm.forward = _cumulative_batch_norm  # type: ignore[method-assign, assignment]
    nn.RNNBase.flatten_parameters = _nothing  # type: ignore[method-assign]
    transformer._detect_is_causal_mask = _is_causal
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(cudnn)
        transformer._detect_is_causal_mask = detect
        nn.RNNBase.flatten_parameters = flatten  # type: ignore[method-assign]
        checkpointing.CheckpointFunction = before[0]  # type: ignore[misc]
        checkpointing._checkpoint_without_reentrant_generator = before[1]
        _BatchNorm.forward = _batch_norm_forward  # type: ignore[method-assign]
