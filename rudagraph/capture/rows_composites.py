"""Rows of the lowering table: our own operators become the IR ops of the same names."""

from __future__ import annotations

from typing import Any

import torch

from rudagraph.capture import operators
from rudagraph.capture.attention import mask_of
from rudagraph.capture.lowering import Lowering, Result
from rudagraph.capture.nodes import Node
from rudagraph.capture.table import arguments, row
from rudagraph.ir.graph import Value
from rudagraph.ir.random import bits_for

assert operators  # registers torch.ops.rudagraph
ours = torch.ops.rudagraph


def _optional(low: Lowering, node: Node | None) -> Value | None:
    return None if node is None else low.value(node)


@row(ours.layer_norm.default)
def _layer_norm(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    operands = [_optional(low, given[name]) for name in ("x", "weight", "bias")]
    return low.builder.emit(
        "layer_norm", *operands, name=low.names, axes=given["axes"], epsilon=given["epsilon"]
    )


@row(ours.layer_norm_backward.default)
def _layer_norm_backward(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    names = ("gradient", "x", "mean", "rstd", "weight")
    operands = [_optional(low, given[name]) for name in names]
    needs = tuple(map(bool, given["needs"]))
    return low.builder.emit(
        "layer_norm_backward", *operands, name=low.names, axes=given["axes"], needs=needs
    )


@row(ours.rms_norm.default)
def _rms_norm(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    operands = [_optional(low, given[name]) for name in ("x", "weight")]
    return low.builder.emit(
        "rms_norm",
        *operands,
        name=low.names,
        axes=given["axes"],
        epsilon=given["epsilon"],
        style="torch",
    )


@row(ours.rms_norm_backward.default)
def _rms_norm_backward(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    operands = [_optional(low, given[name]) for name in ("gradient", "x", "rstd", "weight")]
    needs = tuple(map(bool, given["needs"]))
    return low.builder.emit(
        "rms_norm_backward",
        *operands,
        name=low.names,
        axes=given["axes"],
        needs=needs,
        style="torch",
    )


@row(ours.dropout.default)
def _dropout(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    return low.one(
        "dropout",
        low.value(given["x"]),
        low.key,
        probability=given["probability"],
        stream=given["stream"],
    )


@row(ours.kept.default)
def _kept(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    probability = given["probability"]
    return low.one(
        "bernoulli",
        low.key,
        bits=bits_for(probability),
        probability=probability,
        shape=tuple(given["shape"]),
        stream=given["stream"],
    )


@row(ours.cross_entropy.default)
def _cross_entropy(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    operands = [_optional(low, given[name]) for name in ("logits", "target", "weight")]
    return low.builder.emit("cross_entropy", *operands, name=low.names, **_loss_settings(given))


@row(ours.cross_entropy_backward.default)
def _cross_entropy_backward(low: Lowering, node: Node) -> Value:
    given = arguments(node)
    names = ("gradient", "logits", "target", "weight", "logsumexp", "divisor")
    operands = [_optional(low, given[name]) for name in names]
    return low.one("cross_entropy_backward", *operands, **_loss_settings(given))


def _loss_settings(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("ignore_index", "label_smoothing", "reduction")}


@row(ours.attention.default)
def _attention(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    query, key, value = (low.value(given[name]) for name in ("query", "key", "value"))
    mask, causal = mask_of(low, given["mask"], given["causal"])
    return low.builder.emit(
        "attention",
        query,
        key,
        value,
        mask,
        name=low.names,
        causal=causal,
        scale=given["scale"],
    )


@row(ours.attention_backward.default)
def _attention_backward(low: Lowering, node: Node) -> Result:
    given = arguments(node)
    names = ("gradient", "query", "key", "value", "out", "logsumexp")
    gradient, query, key, value, out, logsumexp = (low.value(given[name]) for name in names)
    mask, causal = mask_of(low, given["mask"], given["causal"])
    return low.builder.emit(
        "attention_backward",
        gradient,
        query,
        key,
        value,
        mask,
        out,
        logsumexp,
        name=low.names,
        causal=causal,
        scale=given["scale"],
    )
