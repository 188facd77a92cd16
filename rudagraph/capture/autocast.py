"""Autocast: active in forward as the caller has it, never in backward.

PyTorch's own autocast casts the operands of its ops while they are traced; our operators replace
some of those ops before it could, so their casts are in the table here, per device type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

_DEVICES = ("cpu", "cuda")

Cast = Literal["lower", "single"]

# Whole functions that become operators of ours: what PyTorch's autocast does to their operands,
# or to the operands of the ops they are made of.
_CASTS: dict[str, dict[Callable[..., Any], Cast]] = {
    "cpu": {
        F.scaled_dot_product_attention: "lower",
        F.cross_entropy: "single",
    },
    "cuda": {
        F.scaled_dot_product_attention: "lower",
        F.cross_entropy: "single",
        F.layer_norm: "single",
        torch.layer_norm: "single",
        F.rms_norm: "single",
        torch.rms_norm: "single",
    },
}


@dataclass(frozen=True)
class Autocast:
    """The autocast state of every device type, as (device type, dtype) where it is enabled."""

    enabled: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def current(cls) -> Autocast:
        return cls(
            tuple(
                (device, torch.get_autocast_dtype(device))
                for device in _DEVICES
                if torch.is_autocast_enabled(device)
            )
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As the caller had it: around forward."""
        with ExitStack() as stack:
            for device, dtype in self.enabled:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            yield

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Off: around the trace, so that backward is traced as `loss.backward()` runs."""
        with ExitStack() as stack:
            for device, _ in self.enabled:
                stack.enter_context(torch.autocast(device, enabled=False))
            yield


def cast_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a function that is replaced, as autocast would have cast them."""
    tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
    if not tensors:
        return args, kwargs
    device = tensors[0].device.type
    cast = _CASTS.get(device, {}).get(function)
    if cast is None or not torch.is_autocast_enabled(device):
        return args, kwargs
    dtype = torch.float32 if cast == "single" else torch.get_autocast_dtype(device)

    def change(item: Any) -> Any:
        fits = isinstance(item, torch.Tensor) and item.is_floating_point()
        return item.to(dtype) if fits and item.dtype is not torch.float64 else item

    return tuple(map(change, args)), {name: change(item) for name, item in kwargs.items()}
