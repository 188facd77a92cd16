"""Eager with a compiled step's dropout masks: what p > 0 is compared with.

`our_masks(key)` replaces F.dropout and attention with dropout by the same arithmetic on masks
drawn from the key, numbered in the order of the calls, as capture numbers them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from rudagraph.ir import random


@contextmanager
def our_masks(key: int) -> Iterator[None]:
    """Eager calls inside draw the masks that a step draws from this key."""
    streams = iter(range(1_000_000))
    attention = F.scaled_dot_product_attention

    def dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p == 0:
            return input
        shape = tuple(input.shape)
        kept = random.bernoulli(key, next(streams), shape, p, random.bits_for(p))
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        scaled = (wide * random.dropout_scale(p)).to(input.dtype)
        return torch.where(torch.from_numpy(kept), scaled, 0)

    def dropped_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if dropout_p == 0:
            return attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, -3) for x in (key, value))
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = query @ key.transpose(-2, -1) * factor
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return dropout(torch.softmax(scores, -1), dropout_p) @ value

    with (
        mock.patch.object(F, "dropout", dropout),
        mock.patch.object(F, "scaled_dot_product_attention", dropped_attention),
    ):
        yield
