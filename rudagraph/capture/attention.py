"""What a constant attention mask says: nothing, causality, or itself.

Under tracing libraries turn causal attention into an explicit mask; here it is recognised by its
numbers, so that fast attention applies. A mask that depends on an input stays a mask.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from rudagraph.capture.lowering import Lowering
from rudagraph.capture.nodes import Node
from rudagraph.ir.graph import Value


def mask_of(low: Lowering, mask: Any, causal: bool) -> tuple[Value | None, bool]:
    """The mask operand and the causal flag of an attention op."""
    if mask is None:
        return None, causal
    if not isinstance(mask, Node) or mask not in low.constants.nodes:
        return low.value(mask), causal
    numbers = low.constants.value(mask)
    # Layers have views of one mask: large, and looked at once.
    memory = (numbers.data_ptr(), numbers.shape, numbers.stride(), numbers.dtype)
    if memory not in low.masks:
        low.masks[memory] = _meaning(numbers)
    if low.masks[memory] == "all":
        return None, causal
    if low.masks[memory] == "causal" and not causal:
        return None, True
    return low.value(mask), causal


def _meaning(mask: torch.Tensor) -> Literal["all", "causal", "other"]:
    visible = visibility(mask)
    if visible is None:
        return "other"
    if bool(visible.all()):
        return "all"
    return "causal" if _is_causal(visible) else "other"


def visibility(mask: torch.Tensor) -> torch.Tensor | None:
    """Which positions a mask shows, where it does nothing but show and hide."""
    if mask.dtype is torch.bool:
        return mask
    if not mask.is_floating_point():
        return None
    hidden = mask <= torch.finfo(mask.dtype).min
    shown = mask == 0
    return shown if bool((hidden | shown).all()) else None


def _is_causal(visible: torch.Tensor) -> bool:
    """Row i sees columns 0..i, in every batch and head; rows and columns as many."""
    rows, columns = visible.shape[-2:]
    if rows != columns:
        return False
    wanted = torch.ones(rows, columns, dtype=torch.bool).tril()
    return bool((visible == wanted).all())
