"""Twelve real architectures as tiny random models: what a compiled step must get right.

Input: a dtype and the dropout probability. Output: a module in train mode and one batch as
keyword arguments whose output has a `.loss`. Nothing is downloaded; the same seed gives the
same weights and batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

VOCABULARY = 96
BATCH = 2
LENGTH = 12
HIDDEN = 32
HEADS = 4


class Sample(NamedTuple):
    """A model in train mode and one batch, called as `model(**batch)`."""

    model: nn.Module
    batch: dict[str, torch.Tensor]


# Grouped heads where the family has them: two key/value heads serve four query heads.
_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 56,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 56,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 32,
}


def llama(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.LlamaConfig(
        **_DECODER, num_hidden_layers=layers, attention_dropout=dropout, tie_word_embeddings=True
    )
    return _build(transformers.LlamaForCausalLM, config)


def qwen3(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.Qwen3Config(
        **_DECODER, num_hidden_layers=layers, head_dim=8, attention_dropout=dropout
    )
    return _build(transformers.Qwen3ForCausalLM, config)


def gemma2(dropout: float, layers: int = 2) -> nn.Module:
    # One layer sees a window of 8 of the 12 positions, the other sees all of them.
    config = transformers.Gemma2Config(
        **_DECODER,
        num_hidden_layers=layers,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=8,
        attention_dropout=dropout,
    )
    return _build(transformers.Gemma2ForCausalLM, config)


def mistral(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.MistralConfig(
        **_DECODER, num_hidden_layers=layers, sliding_window=8, attention_dropout=dropout
    )
    return _build(transformers.MistralForCausalLM, config)


def gpt2(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=HIDDEN,
        n_layer=layers,
        n_head=HEADS,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _build(transformers.GPT2LMHeadModel, config)


def gpt_neox(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.GPTNeoXConfig(
        **_ENCODER,
        num_hidden_layers=layers,
        hidden_dropout=dropout,
        attention_dropout=dropout,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _build(transformers.GPTNeoXForCausalLM, config)


def opt(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        ffn_dim=56,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        max_position_embeddings=32,
        word_embed_proj_dim=HIDDEN,
        dropout=dropout,
        attention_dropout=dropout,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _build(transformers.OPTForCausalLM, config)


def bert(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.BertConfig(
        **_ENCODER,
        num_hidden_layers=layers,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return _build(transformers.BertForMaskedLM, config)


def roberta(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.RobertaConfig(
        **_ENCODER,
        num_hidden_layers=layers,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=3,
    )
    return _build(transformers.RobertaForMaskedLM, config)


def distilbert(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=HIDDEN,
        hidden_dim=56,
        n_layers=layers,
        n_heads=HEADS,
        max_position_embeddings=32,
        dropout=dropout,
        attention_dropout=dropout,
    )
    return _build(transformers.DistilBertForMaskedLM, config)


def vit(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=HIDDEN,
        intermediate_size=56,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        image_size=12,
        patch_size=4,
        num_labels=5,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return _build(transformers.ViTForImageClassification, config)


def t5(dropout: float, layers: int = 2) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=HIDDEN,
        d_kv=8,
        d_ff=56,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=HEADS,
        dropout_rate=dropout,
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
    )
    return _build(transformers.T5ForConditionalGeneration, config)


def causal_batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
    tokens = _tokens(generator)
    return {"input_ids": tokens, "labels": tokens}


def masked_batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Every third label counts, and the second row ends in two padded positions."""
    tokens = _tokens(generator)
    labels = torch.where(torch.arange(LENGTH) % 3 == 1, tokens, -100)
    attention_mask = torch.ones_like(tokens)
    attention_mask[1, -2:] = 0
    return {"input_ids": tokens, "attention_mask": attention_mask, "labels": labels}


def translation_batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_ids": _tokens(generator), "labels": _tokens(generator)[:, :9].contiguous()}


def image_batch(generator: torch.Generator) -> dict[str, torch.Tensor]:
    pixels = torch.randn(BATCH, 3, 12, 12, generator=generator)
    labels = torch.randint(0, 5, (BATCH,), generator=generator)
    return {"pixel_values": pixels, "labels": labels}


_Builder = Callable[[float, int], nn.Module]
_Batch = Callable[[torch.Generator], dict[str, torch.Tensor]]

MODELS: dict[str, tuple[_Builder, _Batch]] = {
    "llama": (llama, causal_batch),
    "qwen3": (qwen3, causal_batch),
    "gemma2": (gemma2, causal_batch),
    "mistral": (mistral, causal_batch),
    "gpt2": (gpt2, causal_batch),
    "gpt_neox": (gpt_neox, causal_batch),
    "opt": (opt, causal_batch),
    "bert": (bert, masked_batch),
    "roberta": (roberta, masked_batch),
    "distilbert": (distilbert, masked_batch),
    "vit": (vit, image_batch),
    "t5": (t5, translation_batch),
}


def build_model(
    name: str,
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    seed: int = 0,
    layers: int = 2,
) -> Sample:
    """The named model in train mode with its batch; floating inputs have the model's dtype."""
    builder, make_batch = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = builder(dropout, layers).to(dtype).train()
    batch = make_batch(torch.Generator().manual_seed(seed + 1))
    return Sample(
        model,
        {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()},
    )


def _build(model_class: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    config._attn_implementation = "sdpa"
    return model_class(config)


def _tokens(generator: torch.Generator) -> torch.Tensor:
    # From 4 up: below are the ids that some family reserves for padding, start and end.
    return torch.randint(4, VOCABULARY, (BATCH, LENGTH), generator=generator)
