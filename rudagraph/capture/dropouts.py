"""Every kind of dropout in terms of our own masks, numbered in the order of capture.

Input: a dropout call of PyTorch. Output: the same arithmetic on a mask that depends on the key of
the step, the number of the op and the index of the element, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rudagraph.capture import operators

_SELU = 1.7580993408473766


@dataclass
class Streams:
    """Numbers random ops in the order in which forward meets them."""

    count: int = 0

    def next(self) -> int:
        self.count += 1
        return self.count - 1


def dropped(streams: Streams, x: Tensor, probability: float) -> Tensor:
    """Dropout in training."""
    probability = _checked(probability)
    if probability == 0:
        return x
    if probability == 1:
        return x * 0.0
    return operators.dropout(x, probability, streams.next())  # type: ignore[no-any-return]


def _dropout(
    streams: Streams, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    if not input.is_floating_point():
        return NotImplemented  # PyTorch's own error
    return _finish(input, dropped(streams, input, p) if training else input, inplace)


def _channels(
    streams: Streams, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """Whole channels at once: the mask has the first two axes of the input."""
    if input.dim() < 2:
        return NotImplemented
    p = _checked(p)
    if not training or p == 0:
        return input
    if p == 1:
        return _finish(input, input * 0.0, inplace)
    mask = _mask(streams, input, _channel_shape(input), p).to(input.dtype)
    return _finish(input, input * (mask / (1 - p)), inplace)


def _channel_shape(x: Tensor) -> list[int]:
    return [*x.shape[:2], *(1,) * (x.dim() - 2)]


def _unbatched(rank: int) -> Callable[..., Any]:
    """dropout1d and dropout3d also take an input without a batch axis."""

    def replacement(
        streams: Streams,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        if input.dim() not in (rank - 1, rank):
            return NotImplemented
        if input.dim() == rank:
            return _channels(streams, input, p, training, inplace)
        result = _channels(streams, input.unsqueeze(0), p, training).squeeze(0)
        return _finish(input, result, inplace)

    return replacement


def _alpha(
    streams: Streams, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Any:
    return _alpha_with(streams, input, list(input.shape), p, training, inplace)


def _feature_alpha(
    streams: Streams, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Any:
    return _alpha_with(streams, input, _channel_shape(input), p, training, inplace)


def _alpha_with(
    streams: Streams, x: Tensor, shape: list[int], p: float, training: bool, inplace: bool
) -> Any:
    p = _checked(p)
    if not training or p == 0:
        return x
    if p == 1:
        return _finish(x, x * 0.0, inplace)
    scale = 1 / math.sqrt((_SELU * _SELU * p + 1) * (1 - p))
    noise = _mask(streams, x, shape, p).to(x.dtype)
    shift = (noise - 1) * (_SELU * scale) + _SELU * scale * p
    return _finish(x, x * (noise * scale) + shift, inplace)


def _mask(streams: Streams, like: Tensor, shape: list[int], p: float) -> Tensor:
    return operators.kept(like, shape, p, streams.next())  # type: ignore[no-any-return]


def _checked(probability: float) -> float:
    if not 0 <= probability <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {probability}")
    return float(probability)


def _finish(x: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return x.copy_(result) if inplace and result is not x else result


def _low_level(replacement: Callable[..., Any], inplace: bool = False) -> Callable[..., Any]:
    """The spelling (input, p, train) of the functions under torch and torch._VF."""

    def spelled(streams: Streams, input: Tensor, p: float, train: bool) -> Any:
        return replacement(streams, input, p, train, inplace)

    return spelled


DROPOUTS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.dropout: _dropout,
    F.dropout1d: _unbatched(3),
    F.dropout2d: _channels,
    F.dropout3d: _unbatched(5),
    F.alpha_dropout: _alpha,
    F.feature_alpha_dropout: _feature_alpha,
}
for _name, _function in (
    ("dropout", _dropout),
    ("feature_dropout", _channels),
    ("alpha_dropout", _alpha),
    ("feature_alpha_dropout", _feature_alpha),
):
    DROPOUTS[getattr(torch, _name)] = _low_level(_function)
    DROPOUTS[getattr(torch, f"{_name}_")] = _low_level(_function, inplace=True)
