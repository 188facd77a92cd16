"""Buffers, lifetimes and launches of small hand-written graphs."""

from rudagraph.ir.text import parse_graph
from rudagraph.runtime.library import WRITERS
from rudagraph.schedule.kernel import KernelSource
from rudagraph.schedule.lowered import KernelArgument, KernelCall, Lowered
from rudagraph.schedule.order import order
from rudagraph.schedule.plan import BufferKind, ErrorFlag
from rudagraph.schedule.planner import WRITES_IN_PLACE
from tests.schedule.planning import plan

FORWARD = """
graph forward {
  %x: f32[8,16] = input argument "x"
  %w: f32[16,16] = input parameter "w"
  %wt: f32[16,16] = permute(%w) [axes=[1, 0]]
  %h: f32[8,16] = matmul(%x, %wt)
  %a: f32[8,16] = tanh(%h)
  %y: f32[8,16] = exp(%a)
  %flat: f32[128] = reshape(%y) [shape=[128]]
  output result "y" = %flat
  output residual "a" = %a
}
"""
BACKWARD = """
graph backward {
  %t: f32[128] = input tangent "y"
  %a: f32[8,16] = input residual "a"
  %x: f32[8,16] = input argument "x"
  %t2: f32[8,16] = reshape(%t) [shape=[8, 16]]
  %g: f32[8,16] = tanh_backward(%t2, %a)
  %xt: f32[16,8] = permute(%x) [axes=[1, 0]]
  %dw: f32[16,16] = matmul(%xt, %g)
  output gradient "w" = %dw
}
"""


def source(name):
    return KernelSource(name, f"# {name}", ("x", "y"), 8, 1)


def pointwise(op, operand_strides, result_strides, shared, offsets):
    """A stand-in generator: kernels for everything but products, in place where it may."""
    if op.opcode == "matmul":
        return None
    arguments = [KernelArgument("operand", i) for i, _ in enumerate(op.operands)]
    if not shared:
        arguments.append(KernelArgument("result", 0))
    return Lowered((KernelCall(source(op.opcode), tuple(arguments)),), inplace=((0, 0),))


def make(generate=pointwise):
    return plan(parse_graph(FORWARD), parse_graph(BACKWARD), generate)


def named(result):
    return {buffer.name: buffer for buffer in result.buffers}


def test_kinds_of_buffers():
    result, kernels = make()
    buffers = named(result)
    assert buffers["argument:x"].kind is BufferKind.BOUND
    assert buffers["parameter:w"].kind is BufferKind.BOUND
    assert buffers["a"].kind is BufferKind.ARENA
    assert buffers["y"].kind is BufferKind.OUTPUT
    assert buffers["dw"].kind is BufferKind.OUTPUT
    assert [kernel.name for kernel in kernels] == ["tanh", "exp", "tanh_backward"]


def test_a_view_is_no_launch_and_reads_its_root():
    result, _ = make()
    assert [launch.opcode for launch in result.forward.launches] == ["matmul", "tanh", "exp"]
    weight = result.forward.launches[0].arguments[1]
    assert result.buffers[weight.buffer].name == "parameter:w"
    assert weight.strides == (1, 16)
    returned = result.forward.results[0].view
    assert result.buffers[returned.buffer].name == "y"
    assert returned.type.shape == (128,)


def test_residuals_live_until_their_last_reader_in_backward():
    result, _ = make()
    shared = named(result)["a"]  # tanh runs in place: what is saved lies in the buffer of h
    assert (shared.first, shared.last) == (0, 4)
    assert result.backward.launches[0].arguments[1].buffer == result.buffers.index(shared)


def test_in_place_only_where_the_operand_dies_in_the_arena():
    result, _ = make()
    tanh, exp = result.forward.launches[1:]
    assert len(tanh.arguments) == 1, "h dies in tanh"
    assert len(exp.arguments) == 2, "a is kept for backward"
    assert len(result.backward.launches[0].arguments) == 3, "a tangent belongs to the caller"


def test_buffers_bound_outside_are_one_for_both_entries():
    result, _ = make()
    x = result.forward.launches[0].arguments[0].buffer
    assert result.backward.launches[1].arguments[0].buffer == x


def test_peak_counts_arena_results_and_gradients():
    result, _ = make()
    # arena: h/a and g (512 bytes each); outside it y, its gradient (512 each), dw (1024)
    assert result.arena_bytes == 1024
    assert result.peak_bytes == 1024 + 512 + 512 + 1024
    assert [moment.entry for moment in result.timeline] == ["forward"] * 3 + ["backward"] * 2


def test_workspaces_live_for_one_launch_and_errors_are_numbered():
    def generate(op, operand_strides, result_strides, shared, offsets):
        if op.opcode == "matmul":
            return None
        arguments = (
            KernelArgument("operand", 0),
            KernelArgument("workspace", 0),
            KernelArgument("error", 0),
            KernelArgument("result", 0),
        )
        return Lowered((KernelCall(source(op.opcode), arguments),), workspaces=(100,), errors=1)

    result, _ = make(generate)
    workspaces = [b for b in result.buffers if "workspace" in b.name]
    assert [(b.first == b.last, b.bytes) for b in workspaces] == [(True, 128)] * 3
    flags = [
        a
        for e in (result.forward, result.backward)
        for launch in e.launches
        for a in launch.arguments
        if isinstance(a, ErrorFlag)
    ]
    assert flags == [ErrorFlag(0), ErrorFlag(1), ErrorFlag(2)]
    assert len(result.errors) == 3


def test_updates_are_written_after_every_reader():
    text = """
graph forward {
  %m: f32[4] = input buffer "mean"
  %n: f32[4] = exp(%m)
  %y: f32[4] = tanh(%m)
  output update "buffer:mean" = %n
  output result "y" = %y
}
"""
    result, _ = plan(parse_graph(text), None, pointwise)
    last = result.forward.launches[-1]
    assert last.opcode == "copy"
    assert result.buffers[last.results[0].buffer].name == "buffer:mean"
    assert result.buffers[last.arguments[0].buffer].last == 2


def test_order_frees_large_values_early():
    text = """
graph backward {
  %x: f32[1024] = input argument "x"
  %a: f32[1024] = exp(%x)
  %b: f32[1024] = tanh(%x)
  %c: f32[1024] = sin(%x)
  %sa: f32[] = sum(%a) [axes=[0], keepdim=false]
  %sb: f32[] = sum(%b) [axes=[0], keepdim=false]
  %sc: f32[] = sum(%c) [axes=[0], keepdim=false]
  %s: f32[] = add(%sa, %sb)
  %t: f32[] = add(%s, %sc)
  output result "" = %t
}
"""
    graph = parse_graph(text)
    names = [op.results[0].name for op in order(graph).ops]
    assert names == ["a", "sa", "b", "sb", "s", "c", "sc", "t"]
    assert order(order(graph)) is not graph
    assert order(order(graph)) == order(graph)


def test_views_stand_in_front_of_their_first_reader() -> None:
    text = """
graph forward {
  %x: f32[4,8] = input argument "x"
  %w: f32[8,4] = input parameter "w"
  %flat: f32[32] = reshape(%x) [shape=[32]]
  %again: f32[8,4] = reshape(%flat) [shape=[8, 4]]
  %seen: f32[8,4] = permute(%x) [axes=[1, 0]]
  %p: f32[4,4] = matmul(%x, %w)
  %q: f32[8,4] = matmul(%again, %p)
  output result "q" = %q
  output result "seen" = %seen
}
"""
    graph = parse_graph(text)
    ordered = order(graph)
    assert [op.results[0].name for op in ordered.ops] == ["p", "flat", "again", "q", "seen"]
    assert order(ordered) is ordered


def test_the_planner_places_what_the_runtime_writes_into() -> None:
    assert set(WRITERS) == WRITES_IN_PLACE
