"""The whole pipeline on captured models: meaning in float64, bits in float32, and what is fused."""

from __future__ import annotations

import pytest
import torch

from rudagraph.capture import Capture, capture
from rudagraph.ir.graph import Graph, Op, Role
from rudagraph.ir.ops import Tag
from rudagraph.ir.verify import verify
from rudagraph.passes.kernel_shapes import domain_of
from rudagraph.passes.partition import partition
from rudagraph.passes.pipeline import JOINT_PASSES, entry_passes, run_passes
from rudagraph.schedule.layout import layouts, residual_layouts
from tests.models import MODELS, Sample, build_model
from tests.passes.body_rules import check_body
from tests.passes.oracle import assert_same, run, run_step

USUAL = (("llama", 0.1), ("bert", 0.0))
MODEL = [
    pytest.param(name, dropout, marks=() if (name, dropout) in USUAL else pytest.mark.full)
    for name in sorted(MODELS)
    for dropout in (0.0, 0.1)
]


def inputs_of(captured: Capture, sample: Sample) -> dict[str, torch.Tensor]:
    weights = dict(sample.model.named_parameters(remove_duplicate=False))
    buffers = dict(sample.model.named_buffers(remove_duplicate=False))
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for port in captured.graph.inputs:
        match port.role:
            case Role.PARAMETER | Role.BUFFER:
                tensor = (weights | buffers)[port.target].detach()
            case Role.CONSTANT:
                tensor = captured.constants[port.target]
            case Role.KEY:
                tensor = torch.tensor(12345)
            case Role.ARGUMENT:
                tensor = sample.batch[port.target]
            case _:
                tensor = 0.1 * torch.randn(port.value.type.shape, generator=generator)
        tensors[port.value.name] = tensor
    return tensors


def compile_graphs(joint: Graph) -> tuple[Graph, Graph, Graph]:
    """The joint graph after its passes, forward, backward."""
    simplified = run_passes(JOINT_PASSES, joint)
    forward, backward = partition(simplified)
    assert backward is not None
    forward = run_passes(entry_passes({}), forward)
    backward = run_passes(entry_passes(residual_layouts(forward)), backward)
    return simplified, forward, backward


def kernels(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.body is not None]


@pytest.mark.parametrize(("name", "dropout"), MODEL)
def test_meaning_and_bits(name: str, dropout: float) -> None:
    sample = build_model(name, torch.float32, dropout)
    captured = capture(sample.model, (), sample.batch)
    inputs = inputs_of(captured, sample)
    joint, forward, backward = compile_graphs(captured.graph)
    wanted = run(captured.graph, inputs, torch.float64)
    exact = run_step(forward, backward, inputs, torch.float64)
    assert_same(exact, wanted, rtol=1e-7, atol=1e-9)
    assert_same(run_step(forward, backward, inputs), run(joint, inputs))
    for graph in (forward, backward):
        verify(graph, forbidden=Tag.COMPOSITE)
        layouts(graph, layouts_of_residuals(forward) if graph is backward else None)
        assert not [op for op in graph.ops if domain_of(op) is not None], "an op outside kernels"
        for op in kernels(graph):
            check_body(op)


def layouts_of_residuals(forward: Graph):  # type: ignore[no-untyped-def]
    table = layouts(forward)
    return {
        port.value: table[port.value].view for port in forward.outputs if port.role is Role.RESIDUAL
    }


def bert_of(layers: int) -> Capture:
    import transformers

    config = transformers.BertConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForMaskedLM(config).train()
    ids = torch.randint(4, 96, (2, 12))
    return capture(model, (), {"input_ids": ids, "labels": ids})


def test_equal_layers_share_kernels_and_need_few() -> None:
    """A BERT layer: two norms and GELU; backward the same and the biases of query, key, value."""
    counts: list[tuple[int, int, int]] = []
    for layers in (2, 4):
        _, forward, backward = compile_graphs(bert_of(layers).graph)
        bodies = {op.body for graph in (forward, backward) for op in kernels(graph)}
        counts.append((len(kernels(forward)), len(kernels(backward)), len(bodies)))
    few, many = counts
    assert many[0] - few[0] == 2 * 3
    assert many[1] - few[1] == 2 * 6
    assert many[2] == few[2], "a layer more needs kernels of its own"
