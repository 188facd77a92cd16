"""Cutting the joint graph: what forward gives, what backward finds, and what is never lost."""

from __future__ import annotations

import pytest
import torch

from rudagraph.ir.graph import Graph, Role
from rudagraph.ir.text import parse_graph, print_graph
from rudagraph.ir.verify import verify
from rudagraph.passes.partition import partition
from rudagraph.passes.recompute import POLICIES, RecomputePolicy, choose_saved
from tests.passes.oracle import assert_same, run, run_step
from tests.passes.random_graphs import RandomGraph, random_inputs

BLOCK = """graph joint {
  %x: f32[8,16] = input argument "x"
  %w: f32[16,16] = input parameter "w"
  %key: i64[] = input key
  %t: f32[8,16] = input tangent "y"
  %h: f32[8,16] = matmul(%x, %w)
  %a: f32[8,16] = tanh(%h)
  %kept: b8[8,16] = bernoulli(%key) [bits=16, probability=0.25, shape=[8, 16], stream=0]
  %scaled: f32[8,16] = mul(%a, 1.5)
  %y: f32[8,16] = where(%kept, %scaled, 0)
  %masked: f32[8,16] = where(%kept, %t, 0)
  %da: f32[8,16] = mul(%masked, 1.5)
  %dh: f32[8,16] = tanh_backward(%da, %a)
  %xt: f32[16,8] = permute(%x) [axes=[1, 0]]
  %dw: f32[16,16] = matmul(%xt, %dh)
  output result "y" = %y
  output gradient "w" = %dw
}
"""


def names(graph: Graph, role: Role) -> list[str]:
    return [port.value.name for port in (*graph.inputs, *graph.outputs) if port.role is role]


def cut(text: str, policy: RecomputePolicy = POLICIES["cpu"]) -> tuple[Graph, Graph]:
    joint = verify(parse_graph(text))
    forward, backward = partition(joint, choose_saved(joint, policy))
    assert backward is not None
    inputs = random_inputs(joint, 1)
    assert_same(run_step(verify(forward), verify(backward), inputs), run(joint, inputs))
    return forward, backward


def test_text() -> None:
    forward, backward = cut(BLOCK)
    assert print_graph(forward).splitlines()[-6:] == [
        "  %scaled: f32[8,16] = mul(%a, 1.5)",
        "  %y: f32[8,16] = where(%kept, %scaled, 0)",
        '  output result "y" = %y',
        '  output residual "a" = %a',
        '  output residual "kept" = %kept',
        "}",
    ]
    assert print_graph(backward).splitlines() == [
        "graph backward {",
        '  %t: f32[8,16] = input tangent "y"',
        '  %a: f32[8,16] = input residual "a"',
        '  %kept: b8[8,16] = input residual "kept"',
        '  %x: f32[8,16] = input argument "x"',
        "  %masked: f32[8,16] = where(%kept, %t, 0)",
        "  %da: f32[8,16] = mul(%masked, 1.5)",
        "  %dh: f32[8,16] = tanh_backward(%da, %a)",
        "  %xt: f32[16,8] = permute(%x) [axes=[1, 0]]",
        "  %dw: f32[16,16] = matmul(%xt, %dh)",
        '  output gradient "w" = %dw',
        "}",
    ]


def test_a_gpu_draws_the_mask_again_and_reads_the_key() -> None:
    _, backward = cut(BLOCK, POLICIES["cuda"])
    assert names(backward, Role.RESIDUAL) == ["h"]
    assert names(backward, Role.KEY) == ["key"]


def test_a_dearer_byte_saves_less() -> None:
    sizes = []
    for residency in (0.0, 1.0, 4.0, 64.0, 4096.0):
        forward, _ = cut(BLOCK, RecomputePolicy(residency=residency))
        residuals = [p.value.type.bytes for p in forward.outputs if p.role is Role.RESIDUAL]
        sizes.append(sum(residuals))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("residency", [0.0, 8.0, 4096.0])
def test_the_choice_changes_no_bit(seed: int, residency: float) -> None:
    from rudagraph.passes.expand import expand

    joint = expand(RandomGraph(seed).build())
    inputs = random_inputs(joint, seed)
    saved = choose_saved(joint, RecomputePolicy(residency=residency))
    forward, backward = partition(joint, saved)
    assert backward is not None
    assert_same(run_step(verify(forward), verify(backward), inputs), run(joint, inputs))


def test_no_gradients_no_backward() -> None:
    text = BLOCK.replace('  output gradient "w" = %dw\n', "")
    forward, backward = partition(parse_graph(text))
    assert backward is None
    assert not names(forward, Role.RESIDUAL)
    assert [op.opcode for op in verify(forward).ops] == [
        "matmul",
        "tanh",
        "bernoulli",
        "mul",
        "where",
    ]


def test_the_old_value_of_an_overwritten_buffer_is_copied() -> None:
    forward, backward = cut("""graph joint {
  %x: f32[4] = input argument "x"
  %state: f32[4] = input buffer "state"
  %t: f32[4] = input tangent "y"
  %y: f32[4] = mul(%x, %state)
  %new: f32[4] = add(%state, 1.0)
  %dx: f32[4] = mul(%t, %state)
  output result "y" = %y
  output update "buffer:state" = %new
  output gradient "argument:x" = %dx
}
""")
    assert forward.ops[0].opcode == "copy"
    assert names(backward, Role.RESIDUAL) == ["state.saved"]
    assert not names(backward, Role.BUFFER)


def test_what_is_cheap_to_make_from_a_copied_buffer_is_made_from_it() -> None:
    """One residual, not two: the copy of the buffer serves both readers."""
    _, backward = cut("""graph joint {
  %state: f32[4] = input buffer "state"
  %t: f32[4] = input tangent "y"
  %half: f32[4] = mul(%state, 0.5)
  %y: f32[4] = add(%half, 1.0)
  %new: f32[4] = add(%state, 1.0)
  %dx: f32[4] = mul(%t, %state)
  %dz: f32[4] = mul(%t, %half)
  output result "y" = %y
  output update "buffer:state" = %new
  output gradient "argument:x" = %dx
  output gradient "argument:z" = %dz
}
""")
    assert names(backward, Role.RESIDUAL) == ["state.saved"]


def test_what_only_backward_needs_is_computed_there() -> None:
    forward, backward = cut("""graph joint {
  %x: f32[4,4] = input argument "x"
  %w: f32[4,4] = input parameter "w"
  %t: f32[4,4] = input tangent "y"
  %y: f32[4,4] = matmul(%x, %w)
  %e: f32[4,4] = exp(%y)
  %d: f32[4,4] = mul(%t, %e)
  output result "y" = %y
  output gradient "w" = %d
}
""")
    assert [op.opcode for op in forward.ops] == ["matmul"]
    assert [op.opcode for op in backward.ops] == ["exp", "mul"]


def test_all_results_of_one_op_come_from_one_run_of_it() -> None:
    """The logsumexp is read by backward alone, but attention is not run again for it."""
    _, backward = cut("""graph joint {
  %q: f32[1,2,3,4] = input argument "q"
  %t: f32[1,2,3,4] = input tangent "y"
  %o: f32[1,2,3,4], %lse: f32[1,2,3] = attention(%q, %q, %q, none) [causal=true]
  %dq: f32[1,2,3,4], %dk: f32[1,2,3,4], %dv: f32[1,2,3,4] =
    attention_backward(%t, %q, %q, %q, none, %o, %lse) [causal=true]
  output result "y" = %o
  output gradient "argument:q" = %dq
}
""")
    assert names(backward, Role.RESIDUAL) == ["o", "lse"]


def test_views_are_made_again_not_saved() -> None:
    _, backward = cut("""graph joint {
  %x: f32[4,4] = input argument "x"
  %w: f32[4,4] = input parameter "w"
  %t: f32[4,4] = input tangent "y"
  %h: f32[4,4] = matmul(%x, %w)
  %y: f32[4,4] = permute(%h) [axes=[1, 0]]
  %d: f32[4,4] = mul(%t, %y)
  output result "y" = %y
  output gradient "w" = %d
}
""")
    assert names(backward, Role.RESIDUAL) == ["h"]


def test_a_gradient_that_is_the_tangent() -> None:
    _, backward = cut("""graph joint {
  %x: f32[4] = input argument "x"
  %t: f32[4] = input tangent "y"
  %y: f32[4] = add(%x, 1.0)
  output result "y" = %y
  output gradient "argument:x" = %t
}
""")
    assert not backward.ops


def test_a_residual_stream_is_saved_not_summed_up_again() -> None:
    """Each sum outlives its kernel: saving it is no dearer than saving the product added to it."""
    text = """graph joint {
  %x0: f32[8,8] = input argument "x"
  %w: f32[8,8] = input parameter "w"
  %t: f32[8,8] = input tangent "y"
"""
    for layer in range(3):
        text += f"""  %s{layer}: f32[8,1] = mean(%x{layer}) [axes=[1], keepdim=true]
  %n{layer}: f32[8,8] = sub(%x{layer}, %s{layer})
  %p{layer}: f32[8,8] = matmul(%n{layer}, %w)
  %x{layer + 1}: f32[8,8] = add(%x{layer}, %p{layer})
"""
    text += "  %d3: f32[8,8] = mul(%t, %x3)\n"
    for layer in (2, 1, 0):
        text += f"  %d{layer}: f32[8,8] = mul(%d{layer + 1}, %x{layer})\n"
    text += '  output result "y" = %x3\n  output gradient "argument:x" = %d0\n}\n'
    _, backward = cut(text)
    assert names(backward, Role.RESIDUAL) == ["x1", "x2", "x3"]
    assert torch.is_tensor(
        run(parse_graph(text), random_inputs(parse_graph(text)))[Role.RESULT, "y"]
    )
