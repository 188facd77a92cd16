"""The joint graph of every listed architecture, interpreted, equals eager before any pass."""

from __future__ import annotations

import functools

import pytest
import torch

from rudagraph.capture import Capture, capture
from rudagraph.ir.graph import Role
from tests.capture.masks import our_masks
from tests.capture.support import KEY, assert_same, eager, run
from tests.models import MODELS, Sample, build_model

# These compute their loss in FP32 whatever the dtype of the model.
FP32_LOSS = {"llama", "qwen3", "gemma2", "mistral", "gpt2", "gpt_neox", "opt"}
CAUSAL = {"llama", "qwen3", "gpt2", "gpt_neox", "opt"}


# Dropout in every family runs with --full; these stand for decoders, encoders and learned masks.
DROPPED = [
    pytest.param(name, marks=[] if name in ("llama", "bert", "t5") else pytest.mark.full)
    for name in MODELS
]


@functools.cache
def captured_model(name: str, dropout: float = 0.0) -> tuple[Sample, Capture]:
    sample = build_model(name, torch.float64, dropout)
    return sample, capture(sample.model, (), sample.batch, outputs="loss")


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name: str) -> None:
    sample, captured = captured_model(name)
    got = run(captured, sample.model, (), sample.batch)
    want = eager(sample.model, (), sample.batch, keep=lambda output: {"loss": output.loss})
    rtol, atol = (2e-5, 1e-6) if name in FP32_LOSS else (1e-9, 1e-11)
    assert_same(got, want, rtol, atol)


@pytest.mark.parametrize("name", sorted(CAUSAL))
def test_causal_attention_is_recovered(name: str) -> None:
    graph = captured_model(name)[1].graph
    attention = [op for op in graph.ops if op.opcode == "attention"]
    assert len(attention) == 2
    assert all(op["causal"] is True and op.operands[3] is None for op in attention)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "mistral"])
def test_repeated_heads_become_grouped_heads(name: str) -> None:
    graph = captured_model(name)[1].graph
    for op in graph.ops:
        if op.opcode == "attention":
            assert [value.type.shape[1] for value in op.inputs[:3]] == [4, 2, 2]
        if op.opcode == "attention_backward":
            assert [value.type.shape[1] for value in op.results] == [4, 2, 2]


def test_a_cache_is_no_output() -> None:
    sample = build_model("llama")
    captured = capture(sample.model, (), sample.batch)
    kept = [leaf.path for leaf in captured.template.leaves]
    assert kept == ["loss", "logits"]
    assert [p.target for p in captured.graph.inputs if p.role is Role.TANGENT] == kept


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_is_eager_with_our_masks(name: str) -> None:
    sample, captured = captured_model(name, 0.25)
    got = run(captured, sample.model, (), sample.batch)
    assert sum(op.opcode == "dropout" for op in captured.graph.ops) >= 4
    with our_masks(KEY):
        want = eager(sample.model, (), sample.batch, keep=lambda output: {"loss": output.loss})
    rtol, atol = (2e-5, 1e-6) if name in FP32_LOSS else (1e-9, 1e-11)
    assert_same(got, want, rtol, atol)
