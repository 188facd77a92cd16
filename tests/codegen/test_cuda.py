"""CUDA kernels against the interpreter: on a GPU where there is one, else on the PTX emulator.

What holds for the CPU's generator holds here: the operands, bounds and sharing of compare.py are
the same. Beside that, facts of the PTX: wide accesses, no local memory, nothing contracted.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernel_cases import cross_entropy, gelu, layer_norm, rope, softmax
from benchmarks.kernels import plan
from rudagraph.build.cuda import assemble, registers, spilled
from rudagraph.build.ptx import facts
from rudagraph.codegen import cuda_fused, cuda_launch, cuda_long_ring, cuda_sum_shapes
from rudagraph.codegen.cuda import generate, generator
from rudagraph.ir.graph import Op
from rudagraph.schedule.kernel import KernelSource
from tests.codegen import compare, cuda_run, test_embedding, test_fused
from tests.codegen.compare import check, operands_for
from tests.codegen.cuda_run import Runner, lower, ptx_of
from tests.codegen.run import fused
from tests.codegen.test_fused import BODIES


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """compare.py and the tests taken from the CPU's run these kernels."""
    for module in (compare, test_fused, test_embedding):
        for name in ("run", "lower", "Runner"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(cuda_run, name))


def case(name: str, dtype: str, rows: int, length: int) -> Op:
    return fused(BODIES[name](dtype, rows, length))


# -- numbers


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layers(name: str, dtype: str) -> None:
    op = case(name, dtype, 6, 200)
    check(op, *operands_for(op))


# Rows of part of a warp, of one that is no power of two, of odd length, in a ring, in parts.
SHAPES = [(300, 64), (5, 24), (3, 257), (140, 4096), (2, 40000)]


@pytest.mark.parametrize("rows,length", SHAPES)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm_backward", "cross_entropy"])
def test_shapes(name: str, rows: int, length: int) -> None:
    op = case(name, "bf16", rows, length)
    check(op, *operands_for(op), looser=2)


@pytest.mark.full
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("rows,length", [*SHAPES, (150, 8192), (1, 1), (4, 65537)])
def test_layers_in_every_shape(name: str, dtype: str, rows: int, length: int) -> None:
    op = case(name, dtype, rows, length)
    check(op, *operands_for(op), looser=4 if length > 10000 else 2)


@pytest.mark.parametrize("name", test_fused.layouts())
def test_operands_lie_in_memory_in_any_way(name: str) -> None:
    test_fused.test_operands_lie_in_memory_in_any_way(name)


@pytest.mark.parametrize("name", ["permuted", "expanded_last", "slice_of_last"])
def test_reductions_over_strided_rows(name: str) -> None:
    test_fused.test_reductions_over_strided_rows(name)


def test_bodies_of_every_kind() -> None:
    test_fused.test_broadcasts_of_every_kind()
    test_fused.test_numbers_as_domain()
    test_fused.test_sums_of_integers_and_of_truth()
    test_fused.test_extremes_over_rows_and_nan()
    test_fused.test_results_that_are_used_again_and_constants()


@pytest.mark.parametrize("rows,length", [(0, 5), (4, 0), (0, 0)])
def test_nothing_to_do_leaves_sums_of_nothing(rows: int, length: int) -> None:
    test_fused.test_nothing_to_do_leaves_sums_of_nothing(rows, length)


@pytest.mark.parametrize("bits_a_word,probability", [(16, 0.25), (32, 1e-3)])
def test_random_masks(bits_a_word: int, probability: float) -> None:
    test_fused.test_random_masks(bits_a_word, probability)


def test_an_index_out_of_range_sets_the_flag() -> None:
    test_fused.test_an_index_out_of_range_sets_the_flag()


def test_a_row_of_minus_infinity_beside_numbers() -> None:
    """A thread of a long softmax that meets nothing but -infinity adds nothing."""
    op = case("softmax", "f32", 2, 40000)
    (x,) = operands_for(op)
    x[0, :39000] = -torch.inf
    check(op, x)


@pytest.mark.parametrize("near", [1e6, -1e9, 3e38])
def test_large_numbers_in_a_long_row(near: float) -> None:
    """Their differences count: half of each row is a little smaller, or all are equal."""
    op = case("softmax", "f32", 2, 40000)
    (x,) = operands_for(op)
    x[:] = near
    x[1, ::2] *= 1 - 1e-6 if near > 0 else 1 + 1e-6
    check(op, x)


@pytest.mark.parametrize("name", ["rms_norm", "residual_layer_norm"])
def test_short_rows_of_persistent_warps(name: str) -> None:
    """More rows than warps: each takes several, the last turn is not full."""
    op = case(name, "bf16", 9000, 256)
    (call,) = lower(op, *_layout(op)).calls
    assert call.source.blocks * 8 < 9000
    check(op, *operands_for(op))


@pytest.mark.parametrize(
    "name,dtype,length", [("softmax", "f32", 40000), ("cross_entropy", "bf16", 66008)]
)
def test_long_rows_that_arrive_one_ahead(
    name: str, dtype: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks take several rows each, the last turn is not full, nor is the last part of a row."""
    monkeypatch.setitem(cuda_launch.MULTIPROCESSORS, cuda_run.TARGET, 2)
    monkeypatch.setattr(cuda_long_ring, "L2_BYTES", 0)
    op = case(name, dtype, 9, length)
    source = lower(op, *_layout(op)).calls[0].source
    assert source.blocks == 2 and "ring.fetch" in source.text
    check(op, *operands_for(op), looser=4)


@pytest.mark.parametrize(
    "name,dtype,length,processors,in_bulk",
    [
        ("layer_norm_backward", "bf16", 4096, 2, False),  # two rows a block
        ("layer_norm_backward", "bf16", 4096, 2, True),
        ("layer_norm_backward", "bf16", 8184, 2, True),  # the last vectors of a row do not exist
        ("layer_norm_backward", "bf16", 16384, 2, None),  # holds nothing: by itself in bulk
        ("rms_norm_backward", "f32", 8192, 2, True),
        # Four blocks a row, which is no multiple of them.
        ("layer_norm_backward", "f32", 24580, 10, True),
    ],
)
def test_a_ring_of_rows(
    name: str,
    dtype: str,
    length: int,
    processors: int,
    in_bulk: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each slot is filled several times, and not all in the last turn."""
    monkeypatch.setitem(cuda_launch.MULTIPROCESSORS, cuda_run.TARGET, processors)
    if in_bulk is not None:
        ring = cuda_sum_shapes.ring_shape
        monkeypatch.setattr(
            cuda_fused, "ring_shape", lambda *given, is_held: ring(*given, is_held=not in_bulk)
        )
    op = case(name, dtype, 21, length)
    source = lower(op, *_layout(op)).calls[0].source
    assert source.blocks <= processors
    assert ("BulkRing" if in_bulk is not False else "= Ring") in source.text
    check(op, *operands_for(op), looser=4)


@pytest.mark.parametrize("attributes", [{}, {"padding_index": 3}, {"scale_by_frequency": True}])
def test_embedding_gradients(attributes: dict[str, object]) -> None:
    op = test_embedding.scatter(test_embedding.DType.BF16, (50,), **attributes)
    gradient, _ = operands_for(op)
    ids = test_embedding.ids_of(50)
    (table,) = cuda_run.run(op, gradient, ids)
    wanted = test_embedding.reference(op, gradient, ids)
    compare.assert_near(op.result, table, wanted)


def test_embedding_of_many_equal_ids() -> None:
    """More than a chunk of keys, and rows of more than a segment."""
    op = test_embedding.scatter(test_embedding.DType.F32, (5000,))
    gradient, _ = operands_for(op)
    ids = test_embedding.ids_of(5000)
    ids[::3] = 7
    (table,) = cuda_run.run(op, gradient, ids)
    compare.assert_near(op.result, table, test_embedding.reference(op, gradient, ids))


@pytest.mark.parametrize("wrong", [-1, test_embedding.ROWS, 1 << 40])
def test_an_id_outside_the_table_is_reported(wrong: int) -> None:
    test_embedding.test_an_id_outside_the_table_is_reported(wrong)


# -- facts of the PTX


@pytest.mark.parametrize("name", BODIES)
def test_nothing_contracts_and_nothing_leaves_registers(name: str) -> None:
    op = case(name, "bf16", 8192, 4096)
    for call in lower(op, *_layout(op)).calls:
        found = facts(ptx_of(call.source))
        assert found.local == 0 and found.calls == 0 and found.contractable == 0
        if name.startswith(("rms_norm", "layer_norm", "residual", "softmax")):
            assert found.fused == 0, call.source.name


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", ["rms_norm", "softmax", "silu_mul", "bias_gelu", "dropout"])
def test_rows_move_16_bytes_at_a_time(name: str, dtype: str) -> None:
    op = case(name, dtype, 8192, 4096)
    (call,) = lower(op, *_layout(op)).calls
    found = facts(ptx_of(call.source))
    assert found.widest_load == found.widest_store == 16
    numbers = sum(value.type.shape == () for value in op.inputs)
    assert found.scalar_loads == numbers
    assert found.scalar_stores == (1 if name == "rms_norm" else 0)


def test_norms_of_two_vectors_a_thread_fill_a_multiprocessor() -> None:
    op = case("rms_norm", "bf16", 8192, 4096)
    (call,) = lower(op, *_layout(op)).calls
    cubin, report = assemble(ptx_of(call.source), call.source)
    assert cubin[:4] == b"\x7fELF"
    assert registers(report) <= 32 and spilled(report) == 0


@pytest.mark.parametrize("length", [1024, 4096, 8192, 16384])
@pytest.mark.parametrize("name", ["rms_norm_backward", "layer_norm_backward"])
def test_norm_gradients_spill_nothing(name: str, length: int) -> None:
    op = case(name, "bf16", 8192, length)
    first = lower(op, *_layout(op)).calls[0]
    assert spilled(assemble(ptx_of(first.source), first.source)[1]) == 0


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", BODIES)
def test_cubins_for_every_target(name: str, target: str) -> None:
    op = case(name, "bf16", 64, 1024)
    strides = tuple(tuple(tensor.stride()) for tensor in _layout(op))
    results = tuple(tuple(torch.empty(v.type.shape).stride()) for v in op.results)
    lowered = generator(target)(op, strides, results, ())
    assert lowered is not None
    for call in lowered.calls:
        assert call.source.cuda is not None and call.source.cuda.target == target
        assert call.source.cuda.overlaps == (target != "sm_80")
        assert assemble(ptx_of(call.source), call.source)[0][:4] == b"\x7fELF"


def test_the_order_of_sums_follows_from_shapes_alone() -> None:
    """Equal shapes give equal text, hence equal bits, however memory is shared."""
    op = case("layer_norm_backward", "f32", 700, 256)
    layout = _layout(op)
    alone, shared = lower(op, *layout), lower(op, *layout, shared=((0, 0),))
    assert [c.source.text for c in alone.calls] == [c.source.text for c in shared.calls]


def test_ops_that_no_kernel_serves_are_left_to_pytorch() -> None:
    op = Op("matmul", (), ())
    assert generate(op, (), (), ()) is None


@pytest.mark.cuda
@pytest.mark.parametrize("name", BODIES)
def test_two_runs_give_the_same_bits(name: str) -> None:
    op = case(name, "bf16", 700, 1024)
    runner = Runner(op, operands_for(op))
    first = runner()
    assert all(
        torch.equal(compare.bits(a), compare.bits(b)) for a, b in zip(first, runner(), strict=True)
    )


def _layout(op: Op) -> list[torch.Tensor]:
    """Row-major operands that take no memory."""
    return [torch.empty(value.type.shape, device="meta") for value in op.inputs]


# -- long rows


def test_the_class_of_a_long_row_is_stored_apart() -> None:
    op = plan(cross_entropy(4, 70000, "bf16"), "sm_90").kernels[0][0]
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 70000, generator=generator).bfloat16()
    given = {
        "gradient": torch.tensor(0.5).bfloat16(),
        "logits": logits,
        "target": torch.tensor([[0], [69999], [-100], [40000]]),
    }
    names = [port.value.name for port in op.body.inputs] if op.body else []
    tensors = [given[next(key for key in given if key in name)] for name in names]
    (text,) = [call.source.text for call in lower(op, *tensors).calls[:1]]
    assert "store_row_bf16" in text and "at_position" not in text
    check(op, *tensors)


@pytest.mark.full
@pytest.mark.parametrize("name", ["softmax", "rms_norm"])
def test_blocks_share_rows_that_would_not_stay_in_l2(name: str) -> None:
    op = case(name, "bf16", 2, 262144)
    operands = operands_for(op)
    first = lower(op, *operands).calls[0].source
    assert first.cuda is not None and first.cuda.cluster == 8
    check(op, *operands, looser=2)


@pytest.mark.parametrize("length", [4096, 16384])
def test_weight_and_bias_are_loaded_when_they_are_used(length: int) -> None:
    """Held from the start they would leave too few registers for a full multiprocessor."""
    ((_, lowered),) = plan(layer_norm(8192, length, "bf16"), "sm_90").kernels
    source = lowered.calls[0].source
    assert source.text.index("tile.sum_2") < source.text.index("load_bf16(weight_pointer")
    assert spilled(assemble(ptx_of(source), source)[1]) == 0


@pytest.mark.parametrize(
    "dtype,length,threads,resident", [("bf16", 4096, 256, 6), ("f32", 16384, 512, 2)]
)
def test_softmax_leaves_room_for_more_blocks(
    dtype: str, length: int, threads: int, resident: int
) -> None:
    ((_, lowered),) = plan(softmax(8192, length, dtype), "sm_90").kernels
    source = lowered.calls[0].source
    assert source.cuda is not None
    assert (source.cuda.threads, source.cuda.resident) == (threads, resident)
    report = assemble(ptx_of(source), source)[1]
    assert spilled(report) == 0 and registers(report) * threads * resident <= 65536


# -- what is asked of L2


def _first(source: KernelSource) -> tuple[str, str]:
    """Text before and after the wait for the kernel before."""
    before, _, after = source.text.partition("wait_for_previous()")
    return before.partition('"""')[2].partition('"""')[2], after


def _source(name: str, dtype: str, rows: int, length: int) -> KernelSource:
    op = case(name, dtype, rows, length)
    return lower(op, *_layout(op)).calls[0].source


@pytest.mark.parametrize(
    "name,dtype,length,asks",
    [
        ("rms_norm", "bf16", 4096, True),
        ("softmax", "f32", 1024, True),
        ("softmax", "bf16", 1024, False),  # a warp a row
        ("softmax_backward", "bf16", 4096, False),  # two operands
        ("rms_norm_backward", "bf16", 1024, True),
        ("rms_norm_backward", "f32", 1024, False),
        ("rms_norm_backward", "bf16", 8192, False),  # a ring
    ],
)
def test_rows_asked_for_while_the_kernel_before_still_runs(
    name: str, dtype: str, length: int, asks: bool
) -> None:
    early, late = _first(_source(name, dtype, 8192, length))
    assert ("prefetch" in early) is asks
    assert "load_" in late and "load_" not in early and "store_" not in early


def test_rows_of_odd_length_come_to_l2_before_their_turn() -> None:
    early, late = _first(_source("rms_norm_backward", "bf16", 8192, 4097))
    assert "prefetch" in early and late.count("tile.prefetch_bf16") == 4
    assert "next_x_words" not in late
    op = case("rms_norm_backward", "bf16", 540, 257)  # two turns and part of a third
    check(op, *operands_for(op), looser=2)


def test_no_old_gpu_is_asked_what_it_does_not_know() -> None:
    for name, length in (("rms_norm", 4096), ("rms_norm_backward", 4097), ("silu_mul", 4096)):
        op = case(name, "bf16", 64, length)
        strides = tuple(tuple(tensor.stride()) for tensor in _layout(op))
        results = tuple(tuple(torch.empty(v.type.shape).stride()) for v in op.results)
        lowered = generator("sm_80")(op, strides, results, ())
        assert lowered is not None
        for call in lowered.calls:
            assert "prefetch" not in call.source.text and "Bulk" not in call.source.text
            assert "wait_for_previous" not in call.source.text


def test_l2_keeps_what_all_heads_read() -> None:
    ((_, lowered),) = plan(rope(64, 512, "f32"), "sm_90").kernels
    (call,) = lowered.calls
    text = ptx_of(call.source)
    assert text.count("ld.global.L2::cache_hint.v4") == 2 and "evict_last" in text
    assert text.count("st.global.cs.v4") == 1 and "prefetch" not in text
    assert text.count("ld.global.cs.v4") == 2
    ((_, lowered),) = plan(gelu(64, 512, "f32"), "sm_90").kernels
    text = ptx_of(lowered.calls[0].source)
    assert "cache_hint" not in text and ".cs." not in text and "prefetch.global.L2" in text


# Every kind of value: heads share %cos, each has a %row, and elements know where they are.
HEADS = """
%x: T[2,4,$N,64] = input operand
%cos: T[2,1,$N,64] = input operand
%row: T[2,4,1,1] = input operand
%key: i64[] = input operand
%keep: b8[2,4,$N,64] = bernoulli(%key) [bits=16, probability=0.1, shape=[2, 4, $N, 64], stream=7]
%at: i32[64] = iota() [dtype=i32, length=64, shape=[64], start=0, step=1]
%here: b8[64] = eq(%at, 3)
%turned: T[2,4,$N,64] = mul(%x, %cos)
%scaled: T[2,4,$N,64] = mul(%turned, %row)
%kept: T[2,4,$N,64] = where(%keep, %scaled, %cos)
%y: T[2,4,$N,64] = where(%here, %x, %kept)
%twice: T[2,4,1,1] = add(%row, %row)
output result = %y
output result = %twice
"""


@pytest.mark.parametrize(
    "dtype,length,threads",
    [
        ("bf16", 32, 128),  # two vectors a thread
        ("f16", 32, 128),
        ("bf16", 31, 256),  # which would leave half a block
        ("f32", 32, 256),
    ],
)
def test_vectors_a_thread_where_heads_share_operands(dtype: str, length: int, threads: int) -> None:
    op = fused(HEADS.replace("$N", str(length)).replace(" T[", f" {dtype}["))
    tensors = operands_for(op)
    (call,) = lower(op, *tensors).calls
    assert call.source.cuda is not None and call.source.cuda.threads == threads
    lines = call.source.text.split("wait_for_previous()")[1].splitlines()
    loads = [at for at, line in enumerate(lines) if "vector.load_" in line]
    stores = [at for at, line in enumerate(lines) if "vector.store_" in line]
    assert len(loads) == 2 * len(stores) == 512 // threads and loads[-1] < stores[0]
    assert "load_kept" in lines[loads[0]]  # what comes from L2 first
    check(op, *tensors)


def test_long_rows_ask_for_the_row_that_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rms_norm", "softmax"):
        _, late = _first(_source(name, "f32", 8192, 16384))
        assert "asked = row + 132" in late and late.count("prefetch") == 1
    for dtype, length in (("f32", 8192), ("bf16", 16384), ("f32", 16383)):
        assert "asked" not in _source("rms_norm", dtype, 8192, length).text
    assert "asked" not in _source("rms_norm", "f32", 132, 16384).text
    monkeypatch.setitem(cuda_launch.MULTIPROCESSORS, "sm_90", 3)
    op = case("rms_norm", "f32", 5, 16384)
    assert "if row < 2:" in lower(op, *_layout(op)).calls[0].source.text
    check(op, *operands_for(op), looser=2)


@pytest.mark.parametrize("length", [8192, 16384])
def test_parts_of_all_sums_are_loaded_before_any_is_added(length: int) -> None:
    op = case("layer_norm_backward", "bf16", 8192, length)
    text = lower(op, *_layout(op)).calls[1].source.text
    assert "vector = Vector(2)" in text  # rather than more blocks on each multiprocessor
    assert text.rindex("vector.load_f32") < text.index("accumulate_add")
    narrow = case("layer_norm_backward", "bf16", 8192, 4096)
    assert "Vector" not in lower(narrow, *_layout(narrow)).calls[1].source.text
