"""Every pass, alone and in a row, against the interpreter on random graphs."""

from __future__ import annotations

import pytest
import torch

from rudagraph.ir.graph import Graph
from rudagraph.ir.ops import Tag
from rudagraph.ir.types import DType
from rudagraph.ir.verify import verify
from rudagraph.passes.expand import expand
from rudagraph.passes.fuse import fuse
from rudagraph.passes.hoist_permutes import hoist_permutes
from rudagraph.passes.kernel_shapes import domain_of
from rudagraph.passes.materialise import materialise
from rudagraph.passes.move_views import move_views
from rudagraph.passes.own_outputs import own_outputs
from rudagraph.passes.partition import partition
from rudagraph.passes.rotate_halves import rotate_halves
from rudagraph.passes.shape_reductions import shape_reductions
from rudagraph.schedule.layout import layouts
from tests.passes.body_rules import check_body
from tests.passes.oracle import assert_same, run, run_step
from tests.passes.random_graphs import RandomGraph, random_inputs

SEEDS = range(30)
PASSES = (
    expand,
    shape_reductions,
    rotate_halves,
    move_views,
    hoist_permutes,
    materialise,
    own_outputs,
)


def graph_of(seed: int) -> Graph:
    return verify(RandomGraph(seed, DType.F32).build())


@pytest.mark.parametrize("seed", SEEDS)
def test_each_pass_keeps_the_meaning(seed: int) -> None:
    before = graph_of(seed)
    inputs = random_inputs(before, seed)
    wanted = run(before, inputs, torch.float64)
    graph = before
    for step in PASSES:
        graph = verify(step(graph), stage=step.__name__)
        assert_same(run(graph, inputs, torch.float64), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_cutting_and_fusing_change_no_bit(seed: int) -> None:
    graph = graph_of(seed)
    for step in PASSES[:-1]:
        graph = step(graph)
    inputs = random_inputs(graph, seed)
    wanted = run(graph, inputs)
    forward, backward = partition(graph)
    assert backward is not None
    verify(forward)
    verify(backward)
    assert_same(run_step(forward, backward, inputs), wanted)
    forward, backward = fuse(own_outputs(forward)), fuse(own_outputs(backward))
    for part in (forward, backward):
        verify(part, forbidden=Tag.COMPOSITE)
        layouts(part)  # no reshape is left that strides cannot express
        loose = [op for op in part.ops if domain_of(op) is not None and op.body is None]
        assert not loose
        for op in part.ops:
            if op.body is not None:
                check_body(op)
    assert_same(run_step(forward, backward, inputs), wanted)
