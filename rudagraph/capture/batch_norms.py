"""Batch and instance norm by PyTorch's device-neutral operators instead of the device's own.

On a GPU these functions would become cuDNN's operators, whose writes to running statistics no
trace sees. The operators here say what they write, and have one meaning on every device.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rudagraph.capture.dropouts import Streams

aten = torch.ops.aten


def batch_norm(
    streams: Streams,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """F.batch_norm."""
    if input.dim() < 2 or (running_mean is None) != (running_var is None):
        return NotImplemented
    if training and input.numel() == input.shape[1]:
        return NotImplemented  # one value a channel: PyTorch's own error
    if running_mean is None:
        if not training:
            return NotImplemented
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, True, momentum, eps)[0]
    if training:
        return aten._native_batch_norm_legit(
            input, weight, bias, running_mean, running_var, True, momentum, eps
        )[0]
    return aten._native_batch_norm_legit_no_training(
        input, weight, bias, running_mean, running_var, momentum, eps
    )[0]


def low_level_batch_norm(
    streams: Streams,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """torch.batch_norm, which takes the same in another order."""
    return batch_norm(
        streams, input, running_mean, running_var, weight, bias, training, momentum, eps
    )


def instance_norm(
    streams: Streams,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """F.instance_norm: batch norm with a channel of its own for every sample."""
    if input.dim() < 3 or (running_mean is None and not use_input_stats):
        return NotImplemented
    if use_input_stats and input.numel() == input.shape[0] * input.shape[1]:
        return NotImplemented  # one value an instance: PyTorch's own error
    samples, channels = input.shape[:2]
    mean, variance, scale, shift = (
        None if part is None else part.repeat(samples)
        for part in (running_mean, running_var, weight, bias)
    )
    flat = input.reshape(1, samples * channels, *input.shape[2:])
    output = batch_norm(streams, flat, mean, variance, scale, shift, use_input_stats, momentum, eps)
    if use_input_stats:
        with torch.no_grad():
            for running, repeated in ((running_mean, mean), (running_var, variance)):
                if running is not None and repeated is not None:
                    running.copy_(repeated.view(samples, channels).mean(0))
    return output.view(input.shape)


BATCH_NORMS: dict[Any, Any] = {
    F.batch_norm: batch_norm,
    torch.batch_norm: low_level_batch_norm,
    F.instance_norm: instance_norm,
}
