"""Operators of our own that stay whole through differentiation: one per composite of the IR.

Each has a fake implementation (shapes and dtypes) and a derivative that is an operator again, so
the joint graph holds both whole and the same on every device. They are never executed: lowering
turns them into IR ops of the same names. First order only: derivatives have no derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rudagraph.errors import RudagraphError

NAMESPACE = "rudagraph"


def _never(*arguments: Any, **keywords: Any) -> Any:
    raise RudagraphError(
        "an operator that exists only while a step is captured was called",
        hint="call the function of torch.nn.functional instead",
    )


def _define(name: str, schema: str, fake: Callable[..., Any]) -> Any:
    """Register an operator; tracing needs a fake implementation only."""
    definition = torch.library.custom_op(
        f"{NAMESPACE}::{name}", _never, mutates_args=(), schema=schema
    )
    definition.register_fake(fake)
    return definition


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which arithmetic on this one is done."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _statistic(x: Tensor, axes: int) -> Tensor:
    shape = (*x.shape[: x.dim() - axes], *(1,) * axes)
    return x.new_empty(shape, dtype=compute_dtype(x.dtype))


def _dense(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


# -- layer_norm

layer_norm = _define(
    "layer_norm",
    "(Tensor x, Tensor? weight, Tensor? bias, int axes, float epsilon) -> (Tensor, Tensor, Tensor)",
    lambda x, weight, bias, axes, epsilon: (_dense(x), _statistic(x, axes), _statistic(x, axes)),
)


def _layer_norm_backward_fake(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    axes: int,
    needs: list[bool],
) -> list[Tensor]:
    shape = x.shape[x.dim() - axes :]
    affine = x.new_empty(shape, dtype=x.dtype if weight is None else weight.dtype)
    results = [_dense(x), affine, affine.clone()]
    return [result for result, needed in zip(results, needs, strict=True) if needed]


layer_norm_backward = _define(
    "layer_norm_backward",
    "(Tensor gradient, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, int axes, bool[] needs)"
    " -> Tensor[]",
    _layer_norm_backward_fake,
)


def _layer_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, ctx.axes, _ = inputs
    ctx.save_for_backward(x, output[1], output[2], weight)
    ctx.set_materialize_grads(False)


def _spread(results: list[Tensor], needs: list[bool]) -> list[Tensor | None]:
    """Results in the places that need them, None elsewhere."""
    given = iter(results)
    return [next(given) if needed else None for needed in needs]


def _layer_norm_derivative(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Any, ...]:
    needs = list(ctx.needs_input_grad[:3])
    if gradient is None or not any(needs):
        return (None,) * 5
    x, mean, rstd, weight = ctx.saved_tensors
    results = layer_norm_backward(gradient, x, mean, rstd, weight, ctx.axes, needs)
    return (*_spread(results, needs), None, None)


layer_norm.register_autograd(_layer_norm_derivative, setup_context=_layer_norm_setup)


# -- rms_norm

rms_norm = _define(
    "rms_norm",
    "(Tensor x, Tensor? weight, int axes, float epsilon) -> (Tensor, Tensor)",
    lambda x, weight, axes, epsilon: (_dense(x), _statistic(x, axes)),
)


def _rms_norm_backward_fake(
    gradient: Tensor,
    x: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    axes: int,
    needs: list[bool],
) -> list[Tensor]:
    shape = x.shape[x.dim() - axes :]
    affine = x.new_empty(shape, dtype=x.dtype if weight is None else weight.dtype)
    return [result for result, needed in zip([_dense(x), affine], needs, strict=True) if needed]


rms_norm_backward = _define(
    "rms_norm_backward",
    "(Tensor gradient, Tensor x, Tensor rstd, Tensor? weight, int axes, bool[] needs) -> Tensor[]",
    _rms_norm_backward_fake,
)


def _rms_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, ctx.axes, _ = inputs
    ctx.save_for_backward(x, output[1], weight)
    ctx.set_materialize_grads(False)


def _rms_norm_derivative(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Any, ...]:
    needs = list(ctx.needs_input_grad[:2])
    if gradient is None or not any(needs):
        return (None,) * 4
    x, rstd, weight = ctx.saved_tensors
    results = rms_norm_backward(gradient, x, rstd, weight, ctx.axes, needs)
    return (*_spread(results, needs), None, None)


rms_norm.register_autograd(_rms_norm_derivative, setup_context=_rms_norm_setup)


# -- dropout

dropout = _define(
    "dropout",
    "(Tensor x, float probability, int stream) -> Tensor",
    lambda x, probability, stream: _dense(x),
)


def _dropout_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.probability, ctx.stream = inputs
    ctx.set_materialize_grads(False)


def _dropout_derivative(ctx: Any, gradient: Tensor | None) -> tuple[Any, ...]:
    if gradient is None:
        return None, None, None
    return dropout(gradient, ctx.probability, ctx.stream), None, None


dropout.register_autograd(_dropout_derivative, setup_context=_dropout_setup)

# True where an element is kept; `like` only says on which device.
kept = _define(
    "kept",
    "(Tensor like, int[] shape, float probability, int stream) -> Tensor",
    lambda like, shape, probability, stream: like.new_empty(shape, dtype=torch.bool),
)


# -- cross_entropy

cross_entropy = _define(
    "cross_entropy",
    "(Tensor logits, Tensor target, Tensor? weight, int ignore_index, float label_smoothing,"
    " str reduction) -> (Tensor, Tensor, Tensor)",
    lambda logits, target, weight, ignore_index, label_smoothing, reduction: (
        logits.new_empty(target.shape if reduction == "none" else ()),
        logits.new_empty(target.shape, dtype=compute_dtype(logits.dtype)),
        logits.new_empty((), dtype=compute_dtype(logits.dtype)),
    ),
)

cross_entropy_backward = _define(
    "cross_entropy_backward",
    "(Tensor gradient, Tensor logits, Tensor target, Tensor? weight, Tensor logsumexp,"
    " Tensor divisor, int ignore_index, float label_smoothing, str reduction) -> Tensor",
    lambda gradient, logits, *_: _dense(logits),
)


def _cross_entropy_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, target, weight, *ctx.settings = inputs
    ctx.save_for_backward(logits, target, weight, output[1], output[2])
    ctx.set_materialize_grads(False)


def _cross_entropy_derivative(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if gradient is None or not ctx.needs_input_grad[0]:
        return (None,) * 6
    result = cross_entropy_backward(gradient, *ctx.saved_tensors, *ctx.settings)
    return (result, *(None,) * 5)


cross_entropy.register_autograd(_cross_entropy_derivative, setup_context=_cross_entropy_setup)


# -- attention

attention = _define(
    "attention",
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float scale)"
    " -> (Tensor, Tensor)",
    lambda query, key, value, mask, causal, scale: (
        query.new_empty((*query.shape[:3], value.shape[3])),
        query.new_empty(query.shape[:3], dtype=compute_dtype(query.dtype)),
    ),
)

attention_backward = _define(
    "attention_backward",
    "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor out,"
    " Tensor logsumexp, bool causal, float scale) -> (Tensor, Tensor, Tensor)",
    lambda gradient, query, key, value, *_: (_dense(query), _dense(key), _dense(value)),
)


def _attention_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.set_materialize_grads(False)


def _attention_derivative(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Any, ...]:
    if gradient is None or not any(ctx.needs_input_grad[:3]):
        return (None,) * 6
    results = attention_backward(gradient, *ctx.saved_tensors, ctx.causal, ctx.scale)
    return (*results, None, None, None)


attention.register_autograd(_attention_derivative, setup_context=_attention_setup)
