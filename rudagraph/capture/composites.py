"""Functions of PyTorch that are replaced by our operators while forward is traced.

Input: the call as the user's module made it. Output: the result, or NotImplemented where the call
stays PyTorch's own. Invariant: shapes, dtypes and gradients are those of the function replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rudagraph.capture import operators
from rudagraph.capture.batch_norms import BATCH_NORMS
from rudagraph.capture.dropouts import DROPOUTS, Streams, dropped
from rudagraph.errors import UnsupportedError, UsageError

Replacement = Callable[..., Any]


def _layer_norm(
    streams: Streams,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    shape = _normalized(normalized_shape)
    if not _fits(input, shape, weight, bias):
        return NotImplemented
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        return NotImplemented
    if weight is None and bias is not None and bias.dtype != input.dtype:
        return NotImplemented
    return operators.layer_norm(input, weight, bias, len(shape), float(eps))[0]


def _rms_norm(
    streams: Streams,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    shape = _normalized(normalized_shape)
    if not _fits(input, shape, weight, None):
        return NotImplemented
    epsilon = torch.finfo(operators.compute_dtype(input.dtype)).eps if eps is None else float(eps)
    return operators.rms_norm(input, weight, len(shape), epsilon)[0]


def _normalized(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _fits(x: Tensor, shape: tuple[int, ...], *affine: Tensor | None) -> bool:
    """Whether a norm is one that PyTorch would accept; else its own error is the better one."""
    floating = x.is_floating_point() and bool(shape) and tuple(x.shape[-len(shape) :]) == shape
    return floating and all(
        part is None or (tuple(part.shape) == shape and part.is_floating_point()) for part in affine
    )


def _cross_entropy(
    streams: Streams,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    if target.dtype in (torch.int8, torch.int16, torch.int32):
        raise UsageError(  # PyTorch finds out when it runs
            f"cross_entropy takes class indices of dtype int64, not {_dtype(target)}",
            hint="pass labels.long()",
        )
    classes_last = input.dim() >= 1 and target.dim() == input.dim() - 1
    if target.dtype is not torch.int64 or not classes_last or not input.is_floating_point():
        return NotImplemented  # class probabilities, or an error that PyTorch words itself
    class_axis = 0 if input.dim() == 1 else 1
    rows_shape = (*input.shape[:class_axis], *input.shape[class_axis + 1 :])
    if tuple(target.shape) != tuple(rows_shape):
        return NotImplemented
    if weight is not None and (weight.dtype != input.dtype or weight.requires_grad):
        return NotImplemented
    rows = input.movedim(class_axis, -1).reshape(-1, input.shape[class_axis])
    loss = operators.cross_entropy(
        rows, target.reshape(-1), weight, int(ignore_index), float(label_smoothing), reduction
    )[0]
    return loss.reshape(target.shape) if reduction == "none" else loss


def _attention(
    streams: Streams,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    fits = query.shape[-1:] == key.shape[-1:] and key.shape[-2:-1] == value.shape[-2:-1]
    if (is_causal and attn_mask is not None) or not fits or not query.is_floating_point():
        return NotImplemented  # PyTorch's own error
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    tensors = (query, key, value)
    whole = (
        dropout_p == 0
        and all(tensor.dim() == 4 for tensor in tensors)
        and len({tensor.dtype for tensor in tensors}) == 1
        and len({tensor.shape[0] for tensor in tensors}) == 1
        and key.shape[1] == value.shape[1]
        and (enable_gqa or key.shape[1] == query.shape[1])
        and all(tensor.numel() > 0 for tensor in tensors)
        and (attn_mask is None or _plain_mask(attn_mask, query))
    )
    if whole:
        if attn_mask is not None:
            attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + tuple(attn_mask.shape))
        return operators.attention(query, key, value, attn_mask, is_causal, factor)[0]
    return _spelled_attention(streams, *tensors, attn_mask, dropout_p, is_causal, factor)


def _plain_mask(mask: Tensor, query: Tensor) -> bool:
    return not mask.requires_grad and mask.dtype in (torch.bool, query.dtype) and mask.dim() <= 4


def _spelled_attention(
    streams: Streams,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    probability: float,
    causal: bool,
    scale: float,
) -> Tensor:
    """Attention in plain ops: with dropout, with a learned mask, in odd shapes."""
    if query.dim() > 2 and key.dim() > 2 and query.shape[-3] != key.shape[-3] != 1:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = query @ key.transpose(-2, -1) * scale
    hidden = None  # rows that see nothing: they give zeros, not NaN
    if causal:
        rows, columns = query.shape[-2], key.shape[-2]
        seen = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    elif mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
        hidden = (~mask).all(-1, keepdim=True)
    elif mask is not None:
        scores = scores + mask
        # Of a learned mask nothing is known before the step runs; others are often constant.
        if mask.requires_grad:
            hidden = scores.detach().amax(-1, keepdim=True) == -math.inf
        else:
            hidden = (mask == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores, -1)
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)
    return dropped(streams, weights, probability) @ value


def _multi_head_attention(streams: Streams, *args: Any, **kwargs: Any) -> Any:
    return without_override(F.multi_head_attention_forward)(*args, **kwargs)


def without_override(function: Any) -> Callable[..., Any]:
    """A Python function of torch.nn.functional whose body runs although a mode is active.

    Its body calls functions that the mode replaces, so they have to be called one by one.
    """
    scope = dict(function.__globals__)
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        if name in scope:
            scope[name] = lambda *_: False
    clone = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    clone.__kwdefaults__ = function.__kwdefaults__
    return clone


def _embedding(
    streams: Streams,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """PyTorch's own, unless it would scale rows of the table in forward."""
    if max_norm is None:
        return NotImplemented
    raise _renormalised(max_norm, norm_type)


def _embedding_bag(
    streams: Streams,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if max_norm is not None:
        raise _renormalised(max_norm, norm_type)
    if weight.dtype is torch.bfloat16:
        raise UnsupportedError(
            "PyTorch's embedding_bag of bfloat16 gives results of other shapes than it declares",
            hint="take the rows with F.embedding and add them up, or keep this table in float32",
        )
    return NotImplemented


def _renormalised(max_norm: float, norm_type: float) -> UnsupportedError:
    return UnsupportedError(
        f"an embedding with max_norm={max_norm} changes rows of its own weight in forward",
        hint="leave max_norm out, and after each optimizer.step() run: with torch.no_grad(): "
        f"weight.copy_(weight.renorm({norm_type:g}, 0, {max_norm}))",
    )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _refuse_second_order(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "forward asks for gradients itself; a compiled step is first order only",
        hint="keep this part out of the compiled step and run it eagerly",
    )


REPLACEMENTS: dict[Callable[..., Any], Replacement] = {
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
    F.cross_entropy: _cross_entropy,
    F.embedding: _embedding,
    F.embedding_bag: _embedding_bag,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head_attention,
    torch.Tensor.backward: _refuse_second_order,
    torch.autograd.backward: _refuse_second_order,
    torch.autograd.grad: _refuse_second_order,
    **DROPOUTS,
    **BATCH_NORMS,
}

# Replacements whose inner calls are replaced in turn.
NESTED = frozenset({F.multi_head_attention_forward})
