"""Who shares memory: products that add to what is there, and memory given to the caller."""

from rudagraph.ir.text import parse_graph
from rudagraph.schedule.lowered import KernelArgument, KernelCall, Lowered
from rudagraph.schedule.plan import BufferKind
from tests.schedule.planning import plan
from tests.schedule.test_planner import source

CHAIN = """
graph forward {
  %a: f32[8,4] = input argument "a"
  %b: f32[4,8] = input argument "b"
  %p: f32[8,8] = matmul(%a, %b)
  %q: f32[8,8] = addmm(%p, %a, %b)
  %r: f32[8,8] = addmm(%q, %a, %b)
  %s: f32[8,8] = matmul(%r, %r)
  output result "s" = %s
}
"""


def only_library(*_):
    return None


def unary_kernels(op, operand_strides, result_strides, shared, offsets):
    if op.opcode in ("matmul", "addmm"):
        return None
    pointers = (KernelArgument("operand", 0), KernelArgument("result", 0))
    return Lowered((KernelCall(source(op.opcode), pointers),), inplace=((0, 0),))


def buffers_of_results(text, generate=only_library):
    planned, _ = plan(parse_graph(text), None, generate)
    return planned, [launch.results[0].buffer for launch in planned.forward.launches]


def test_a_chain_of_products_needs_the_memory_of_one():
    planned, (p, q, r, s) = buffers_of_results(CHAIN)
    assert p == q == r != s
    assert planned.forward.launches[1].arguments[0] == planned.forward.launches[1].results[0]
    assert planned.buffers[p].kind is BufferKind.ARENA
    assert planned.buffers[s].kind is BufferKind.OUTPUT


def test_what_is_read_again_is_not_written_over():
    _, (p, q, *_) = buffers_of_results(CHAIN.replace("matmul(%r, %r)", "matmul(%r, %p)"))
    assert p != q


def test_a_bias_is_not_written_over():
    _, (c, y) = buffers_of_results("""
graph forward {
  %a: f32[1,4] = input argument "a"
  %b: f32[4,8] = input argument "b"
  %c: f32[1,8] = matmul(%a, %b)
  %bias: f32[8] = reshape(%c) [shape=[8]]
  %y: f32[1,8] = addmm(%bias, %a, %b)
  output result "y" = %y
}
""")
    assert c != y


def test_a_transposed_value_is_not_written_over():
    text = CHAIN.replace("addmm(%p", "addmm(%turned")
    text = text.replace("  %q:", "  %turned: f32[8,8] = permute(%p) [axes=[1, 0]]\n  %q:")
    _, (p, q, *_) = buffers_of_results(text)
    assert p != q


def test_a_result_made_in_place_is_returned_in_the_memory_it_grew_in():
    planned, (p, q, r) = buffers_of_results(
        CHAIN.replace("  %s: f32[8,8] = matmul(%r, %r)\n", "").replace("= %s", "= %r")
    )
    assert p == q == r
    assert planned.buffers[r].kind is BufferKind.OUTPUT
    assert planned.buffers[r].bytes == planned.peak_bytes == 256
    assert planned.arena_bytes == 0


def test_what_forward_saved_is_not_given_away_by_backward():
    forward = parse_graph("""
graph forward {
  %x: f32[8,8] = input argument "x"
  %h: f32[8,8] = tanh(%x)
  output residual "h" = %h
}
""")
    backward = parse_graph("""
graph backward {
  %h: f32[8,8] = input residual "h"
  %g: f32[8,8] = exp(%h)
  output gradient "x" = %g
}
""")
    planned, _ = plan(forward, backward, unary_kernels)
    kinds = {buffer.name: buffer.kind for buffer in planned.buffers}
    assert kinds["h"] is BufferKind.ARENA
    assert kinds["g"] is BufferKind.OUTPUT
