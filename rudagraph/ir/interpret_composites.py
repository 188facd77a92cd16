"""Reference semantics of composites and attention: softmax, norms, dropout, cross-entropy.

Each computes in the compute type of its data operand and rounds where its summary in ops.py says:
once at the end, but for the llama style of rms_norm. Backward ops are exact derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from rudagraph.errors import ContractError
from rudagraph.ir import random
from rudagraph.ir.graph import Op
from rudagraph.ir.semantics import (
    Context,
    Loaded,
    Results,
    float_of,
    int_of,
    optional,
    tensor,
    wide,
)

Operands = tuple[Loaded, ...]


# -- softmax


def _softmax_operand(op: Op, operands: Operands, index: int, context: Context) -> torch.Tensor:
    """The operand in the wider of its own and the result's compute type."""
    x = wide(tensor(op, operands, index))
    return x.to(torch.promote_types(x.dtype, context.compute(op.result.type.dtype)))


def _softmax(op: Op, operands: Operands, context: Context) -> Results:
    return torch.softmax(_softmax_operand(op, operands, 0, context), int_of(op, "axis"))


def _log_softmax(op: Op, operands: Operands, context: Context) -> Results:
    return torch.log_softmax(_softmax_operand(op, operands, 0, context), int_of(op, "axis"))


def _softmax_backward(op: Op, operands: Operands, context: Context) -> Results:
    gradient, y = (_softmax_operand(op, operands, index, context) for index in (0, 1))
    return y * (gradient - _sum_along(op, gradient * y))


def _log_softmax_backward(op: Op, operands: Operands, context: Context) -> Results:
    gradient, y = (_softmax_operand(op, operands, index, context) for index in (0, 1))
    return gradient - y.exp() * _sum_along(op, gradient)


def _sum_along(op: Op, x: torch.Tensor) -> torch.Tensor:
    return x.sum(int_of(op, "axis"), keepdim=True)


# -- norms


def _last_axes(op: Op) -> tuple[int, ...]:
    return tuple(range(-int_of(op, "axes"), 0))


def _leading_sum(op: Op, x: torch.Tensor) -> torch.Tensor:
    """The sum over all axes that are not normalised: a weight's gradient."""
    leading = tuple(range(x.dim() - int_of(op, "axes")))
    return x.sum(leading) if leading else x


def _as_needed(op: Op, results: tuple[Callable[[], torch.Tensor], ...]) -> Results:
    needs = op["needs"]
    assert isinstance(needs, tuple)
    return tuple(result() for result, needed in zip(results, needs, strict=True) if needed)


def _layer_norm(op: Op, operands: Operands, context: Context) -> Results:
    x = wide(tensor(op, operands, 0))
    weight, bias = optional(operands, 1), optional(operands, 2)
    mean = x.mean(_last_axes(op), keepdim=True)
    centred = x - mean
    variance = centred.square().mean(_last_axes(op), keepdim=True)
    rstd = torch.rsqrt(variance + float_of(op, "epsilon"))
    y = centred * rstd
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias, mean, rstd)


def _layer_norm_backward(op: Op, operands: Operands, context: Context) -> Results:
    gradient, x, mean, rstd = (wide(tensor(op, operands, index)) for index in range(4))
    weight, axes = optional(operands, 4), _last_axes(op)
    normal = (x - mean) * rstd
    weighted = gradient if weight is None else gradient * weight

    def dx() -> torch.Tensor:
        along = (weighted * normal).mean(axes, keepdim=True)
        return rstd * (weighted - weighted.mean(axes, keepdim=True) - normal * along)

    return _as_needed(
        op,
        (dx, lambda: _leading_sum(op, gradient * normal), lambda: _leading_sum(op, gradient)),
    )


def _rms_norm(op: Op, operands: Operands, context: Context) -> Results:
    given = tensor(op, operands, 0)
    x, weight = wide(given), optional(operands, 1)
    rstd = torch.rsqrt(x.square().mean(_last_axes(op), keepdim=True) + float_of(op, "epsilon"))
    normal = _styled_normal(op, x * rstd, given.dtype)
    return (normal if weight is None else normal * _styled_weight(op, weight), rstd)


def _styled_normal(op: Op, normal: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """Llama rounds the normalised value to x's dtype before the weight multiplies it."""
    return wide(normal.to(stored)) if op["style"] == "llama" else normal


def _styled_weight(op: Op, weight: torch.Tensor) -> torch.Tensor:
    """Gemma's weight is the distance from one."""
    return 1 + weight if op["style"] == "gemma" else weight


def _rms_norm_backward(op: Op, operands: Operands, context: Context) -> Results:
    given = tensor(op, operands, 1)
    gradient, x, rstd = (wide(tensor(op, operands, index)) for index in range(3))
    weight = optional(operands, 3)
    normal = x * rstd
    weighted = gradient if weight is None else gradient * _styled_weight(op, weight)

    def dx() -> torch.Tensor:
        return rstd * (weighted - normal * (weighted * normal).mean(_last_axes(op), keepdim=True))

    def dweight() -> torch.Tensor:
        return _leading_sum(op, gradient * _styled_normal(op, normal, given.dtype))

    return _as_needed(op, (dx, dweight))


# -- dropout


def _dropout(op: Op, operands: Operands, context: Context) -> Results:
    x, probability = wide(tensor(op, operands, 0)), float_of(op, "probability")
    kept = random.bernoulli(
        int(tensor(op, operands, 1).item()),
        int_of(op, "stream"),
        tuple(x.shape),
        probability,
        random.bits_for(probability),
    )
    mask = torch.from_numpy(kept).to(x.device)
    return torch.where(mask, x * random.dropout_scale(probability), 0)


# -- cross-entropy


def _targets(op: Op, logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(counted rows, target with 0 in the rows left out); a class out of range is an error."""
    counted = target != int_of(op, "ignore_index")
    classes = logits.shape[1]
    wrong = target[counted & ((target < 0) | (target >= classes))]
    if wrong.numel():
        raise ContractError(
            f"target {int(wrong[0])} is out of range for {classes} classes",
            where=f"{op.opcode} {op.results[0]} {op.location.line}".rstrip(),
        )
    return counted, torch.where(counted, target, 0).long()


def _row_weight(
    logits: torch.Tensor, counted: torch.Tensor, safe: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    """The weight of each row's class, 0 in the rows left out."""
    of_target = counted.to(logits.dtype) if weight is None else weight[safe].to(logits.dtype)
    return torch.where(counted, of_target, 0)


def _cross_entropy(op: Op, operands: Operands, context: Context) -> Results:
    """As torch: smoothing spreads over all classes, weighted; a mean divides by targets' weights.

    All rows left out: the mean is 0 / 0, so NaN.
    """
    logits, weight = wide(tensor(op, operands, 0)), optional(operands, 2)
    counted, safe = _targets(op, logits, tensor(op, operands, 1))
    smoothing, reduction = float_of(op, "label_smoothing"), op["reduction"]
    of_row = _row_weight(logits, counted, safe, weight)
    logsumexp = torch.logsumexp(logits, 1)
    log_probability = logits - logsumexp[:, None]
    chosen = log_probability.gather(1, safe[:, None])[:, 0]
    each = torch.where(counted, -of_row * chosen, 0)
    if smoothing:
        spread = log_probability if weight is None else log_probability * weight
        spread_loss = torch.where(counted, -spread.sum(1), 0)
        each = (1 - smoothing) * each + smoothing / logits.shape[1] * spread_loss
    divisor = of_row.sum() if reduction == "mean" else torch.ones_like(of_row.sum())
    loss = each if reduction == "none" else each.sum() / divisor
    return loss, logsumexp, divisor


def _cross_entropy_backward(op: Op, operands: Operands, context: Context) -> Results:
    """Rows left out get 0 whatever comes from above: their divisor may be 0."""
    gradient, logits = (wide(tensor(op, operands, index)) for index in (0, 1))
    weight = optional(operands, 3)
    counted, safe = _targets(op, logits, tensor(op, operands, 2))
    logsumexp, divisor = tensor(op, operands, 4), tensor(op, operands, 5)
    smoothing, classes = float_of(op, "label_smoothing"), logits.shape[1]
    of_row = _row_weight(logits, counted, safe, weight)[:, None]
    probability = torch.exp(logits - logsumexp[:, None])
    hit = torch.zeros_like(logits).scatter_(1, safe[:, None], 1)
    slope = (1 - smoothing) * of_row * (probability - hit)
    if smoothing:
        spread = torch.ones_like(logits[0]) if weight is None else weight
        slope = slope + smoothing / classes * (spread.sum() * probability - spread)
    upstream = (gradient / divisor).reshape(-1, 1)
    return torch.where(counted[:, None], upstream * slope, 0)


# -- attention


def _repeated(op: Op, x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Key or value heads, each repeated for the query heads of its group."""
    return x.repeat_interleave(query.shape[1] // max(x.shape[1], 1), 1)


def _scores(
    op: Op, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Scaled and masked products. Causal is top-left as in torch: position s sees keys 0 … s."""
    scale = op.get("scale")
    factor = 1 / math.sqrt(query.shape[3]) if scale is None else float_of(op, "scale")
    scores = query @ key.transpose(2, 3) * factor
    if op.get("causal", False):
        future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores + mask


def _weights(scores: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """Softmax from its logsumexp; a row that sees nothing has weights 0, as torch's math path."""
    blind = logsumexp == -math.inf
    return torch.where(blind, 0, torch.exp(scores - torch.where(blind, 0, logsumexp)))


def _attention(op: Op, operands: Operands, context: Context) -> Results:
    query, key, value = (wide(tensor(op, operands, index)) for index in range(3))
    key, value = _repeated(op, key, query), _repeated(op, value, query)
    scores = _scores(op, query, key, optional(operands, 3))
    logsumexp = torch.logsumexp(scores, 3)
    return _weights(scores, logsumexp[..., None]) @ value, logsumexp


def _attention_backward(op: Op, operands: Operands, context: Context) -> Results:
    gradient, query, key, value = (wide(tensor(op, operands, index)) for index in range(4))
    logsumexp = tensor(op, operands, 6)[..., None]
    groups, per_group = key.shape[1], query.shape[1] // max(key.shape[1], 1)
    key, value = _repeated(op, key, query), _repeated(op, value, query)
    weights = _weights(_scores(op, query, key, optional(operands, 4)), logsumexp)
    dweights = gradient @ value.transpose(2, 3)
    dscores = weights * (dweights - (weights * dweights).sum(3, keepdim=True))
    scale = op.get("scale")
    dscores *= 1 / math.sqrt(query.shape[3]) if scale is None else float_of(op, "scale")
    dkey, dvalue = dscores.transpose(2, 3) @ query, weights.transpose(2, 3) @ gradient

    def per_key_head(x: torch.Tensor) -> torch.Tensor:
        batch, _, *rest = x.shape
        return x.reshape(batch, groups, per_group, *rest).sum(2)

    return dscores @ key, per_key_head(dkey), per_key_head(dvalue)


COMPOSITES: dict[str, Callable[[Op, Operands, Context], Results]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": _log_softmax_backward,
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "dropout": _dropout,
    "cross_entropy": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
    "attention": _attention,
    "attention_backward": _attention_backward,
}
