"""Fused bodies as kernels against the interpreter: dtypes, shapes, strides, sharing, threads."""

from __future__ import annotations

import pytest
import torch

from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Op
from tests.codegen import bodies
from tests.codegen.compare import assert_near, bits, check, operands_for
from tests.codegen.run import Runner, fused, lower, run

BODIES = {
    name: getattr(bodies, name)
    for name in (
        "residual_layer_norm layer_norm_backward rms_norm rms_norm_backward softmax"
        " softmax_backward silu_mul silu_mul_backward bias_gelu bias_gelu_backward dropout"
        " cross_entropy cross_entropy_backward block_forward block_backward"
    ).split()
}
# The last lengths beside powers of two: tails of vectors, of pieces, of random words.
SHAPES = [(5, 17), (64, 127), (3, 4097), (1, 3), (300, 1), (2, 65537)]


def case(name: str, dtype: str, rows: int, length: int) -> Op:
    return fused(BODIES[name](dtype, rows, length))


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layers(name: str, dtype: str) -> None:
    op = case(name, dtype, 37, 100)
    check(op, *operands_for(op))


@pytest.mark.full
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("dtype", ["f16", "f64"])
@pytest.mark.parametrize("rows,length", SHAPES)
def test_layers_in_every_shape(name: str, dtype: str, rows: int, length: int) -> None:
    op = case(name, dtype, rows, length)
    check(op, *operands_for(op), looser=4 if length > 10000 else 1)


@pytest.mark.parametrize("rows,length", SHAPES)
@pytest.mark.parametrize("name", ["layer_norm_backward", "cross_entropy", "dropout"])
def test_odd_shapes(name: str, rows: int, length: int) -> None:
    op = case(name, "f32", rows, length)
    check(op, *operands_for(op), looser=4 if length > 10000 else 1)


@pytest.mark.parametrize(
    "name,rows,length",
    [
        ("layer_norm_backward", 700, 257),
        ("dropout", 513, 511),
        ("cross_entropy", 999, 300),
        ("bias_gelu_backward", 3, 90001),
    ],
)
def test_bits_do_not_depend_on_threads(name: str, rows: int, length: int) -> None:
    op = case(name, "f32", rows, length)
    tensors = operands_for(op)
    assert any(call.source.blocks > 1 for call in lower(op, *tensors).calls)
    alone = run(op, *tensors, threads=1)
    for threads in (2, 3):
        for first, second in zip(alone, run(op, *tensors, threads=threads), strict=True):
            assert torch.equal(bits(first), bits(second))
    check(op, *tensors)


def test_two_runs_of_loaded_kernels_agree() -> None:
    """Workspaces are what the last run left: nothing may count on zeros."""
    op = case("layer_norm_backward", "f32", 700, 257)
    runner = Runner(op, operands_for(op), threads=2)
    first = [result.clone() for result in runner()]
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(first, runner(), strict=True))


@pytest.mark.parametrize("length", [2, 3, 5, 9, 16, 17, 31, 63, 100, 1000, 4099])
def test_row_sums_do_not_depend_on_what_else_a_loop_does(length: int) -> None:
    alone = f"""
%x: f32[7,{length}] = input operand
%row: f32[7,1] = sum(%x) [axes=[1], keepdim=true]
output result = %row
"""
    together = f"""
%x: f32[7,{length}] = input operand
%y: bf16[7,{length}] = input operand
%row: f32[7,1] = sum(%x) [axes=[1], keepdim=true]
%erf: f32[7,{length}] = erf(%x)
%square: f32[7,{length}] = mul(%erf, %erf)
%second: f32[7,1] = sum(%square) [axes=[1], keepdim=true]
%largest: f32[7,1] = amax(%x) [axes=[1], keepdim=true]
%twice: bf16[7,{length}] = add(%y, %y)
%y.row: bf16[7,1] = sum(%y) [axes=[1], keepdim=true]
output result = %row
output result = %erf
output result = %second
output result = %largest
output result = %twice
output result = %y.row
"""
    x = torch.randn(7, length, generator=torch.Generator().manual_seed(length))
    first = run(fused(alone), x)[0]
    second = run(fused(together), x, torch.zeros(7, length, dtype=torch.bfloat16))[0]
    assert torch.equal(bits(first), bits(second))


# -- memory


ADD = """
%x: f32[4,6,10] = input operand
%y: f32[4,6,10] = input operand
%sum: f32[4,6,10] = add(%x, %y)
output result = %sum
"""


def layouts() -> dict[str, torch.Tensor]:
    """f32[4,6,10] in memory in many ways."""
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "dense": random(4, 6, 10),
        "transposed": random(4, 10, 6).transpose(1, 2),
        "permuted": random(10, 4, 6).permute(1, 2, 0),
        "slice_of_last": random(4, 6, 25)[:, :, 3:23:2],
        "slice_of_middle": random(4, 9, 10)[:, 2:8],
        "expanded_rows": random(1, 1, 10).expand(4, 6, 10),
        "expanded_last": random(4, 6, 1).expand(4, 6, 10),
        "one_number": random(1, 1, 1).expand(4, 6, 10),
    }


@pytest.mark.parametrize("name", layouts())
def test_operands_lie_in_memory_in_any_way(name: str) -> None:
    tensors = layouts()
    check(fused(ADD), tensors["dense"], tensors[name])


@pytest.mark.parametrize("shape", [(150, 130), (3, 200, 72), (2, 2, 64, 129)])
def test_transposed_operands_are_read_in_tiles(shape: tuple[int, ...]) -> None:
    extents = ",".join(map(str, shape))
    op = fused(f"""
%x: bf16[{extents}] = input operand
%y: bf16[{extents}] = input operand
%scale: bf16[{shape[-1]}] = input operand
%scaled: bf16[{extents}] = mul(%x, %scale)
%sum: bf16[{extents}] = add(%scaled, %y)
output result = %sum
""")
    y, scale = operands_for(op)[1:]
    turned = (*shape[:-2], shape[-1], shape[-2])
    x = torch.randn(turned, generator=torch.Generator().manual_seed(1)).bfloat16()
    x = x.transpose(-1, -2)
    check(op, x, y, scale)
    assert "for tile in" in lower(op, x, y, scale).calls[0].source.text


@pytest.mark.parametrize("rows", [1, 3, 200])
def test_columns_of_few_long_rows(rows: int) -> None:
    op = fused(f"""
%x: f32[{rows},10007] = input operand
%key: i64[] = input operand
%keep: b8[{rows},10007] = bernoulli(%key) [bits=16, probability=0.3, shape=[{rows},10007], stream=3]
%kept: f32[{rows},10007] = where(%keep, %x, 0)
%column: f32[10007] = sum(%kept) [axes=[0], keepdim=false]
%mean: f32[10007] = mean(%x) [axes=[0], keepdim=false]
%total: f32[] = sum(%kept) [axes=[0,1], keepdim=false]
output result = %kept
output result = %column
output result = %mean
output result = %total
""")
    tensors = operands_for(op)
    check(op, *tensors)
    text = lower(op, *tensors).calls[0].source.text
    assert "for piece in range(" in text and ("for group in range(" in text) == (rows == 200)


@pytest.mark.parametrize("rows", [3, 100, 300])
def test_sums_do_not_depend_on_what_else_a_kernel_does(rows: int) -> None:
    """The memory budget decides what is computed together; the bits of a sum stay."""
    alone = f"""
%x: f32[{rows},9001] = input operand
%column: f32[9001] = sum(%x) [axes=[0], keepdim=false]
output result = %column
"""
    together = f"""
%x: f32[{rows},9001] = input operand
%row: f32[{rows},1] = mean(%x) [axes=[1], keepdim=true]
%centred: f32[{rows},9001] = sub(%x, %row)
%erf: f32[{rows},9001] = erf(%centred)
%column: f32[9001] = sum(%x) [axes=[0], keepdim=false]
output result = %column
output result = %erf
"""
    x = torch.randn(rows, 9001, generator=torch.Generator().manual_seed(rows))
    first, second = run(fused(alone), x)[0], run(fused(together), x)[0]
    assert torch.equal(bits(first), bits(second))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_second_dear_function_after_another_begins_a_pass(dtype: str) -> None:
    op = fused(f"""
%x: {dtype}[70,260] = input operand
%first: {dtype}[70,260] = gelu(%x) [approximate="none"]
%shifted: {dtype}[70,260] = sub(%first, %x)
%second: {dtype}[70,260] = exp(%shifted)
%third: {dtype}[70,260] = tanh(%second)
%scaled: {dtype}[70,260] = mul(%third, %first)
%row: f32[70,1] = sum(%scaled) [axes=[1], dtype=f32, keepdim=true]
%column: {dtype}[260] = sum(%scaled) [axes=[0], keepdim=false]
output result = %second
output result = %row
output result = %column
""")
    check(op, *operands_for(op))
    assert lower(op, *operands_for(op)).calls[0].source.text.count("for j in range(260)") == 5


NAN_BITS = {
    torch.bfloat16: [0x7FFF, -1, 0x7F81, 0x7FC0],
    torch.float16: [0x7FFF, -1, 0x7C01],
    torch.float32: [0x7FFFFFFF, -1, 0x7FFF8000, 0x7F800001],
    torch.float64: [0x7FFFFFFFFFFFFFFF, -1, 0x7FF0000000000001],
}


@pytest.mark.parametrize("dtype", NAN_BITS)
def test_rounding_to_bf16_keeps_every_nan(dtype: torch.dtype) -> None:
    """Whatever bits it comes with, and through every function."""
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    nans = torch.tensor(NAN_BITS[dtype], dtype=words).view(dtype)
    name = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(dtype, f"f{8 * dtype.itemsize}")
    functions = ["neg", "exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sigmoid"]
    functions += ["silu", "gelu", "sqrt", "rsqrt", "reciprocal", "sin", "relu", "floor"]
    extents = f"3,{len(nans)}"
    lines = [f"%x: {name}[{extents}] = input operand"]
    lines += [f"%near: bf16[{extents}] = cast(%x) [dtype=bf16]"] if name != "bf16" else []
    start = "near" if name != "bf16" else "x"
    for function in functions:
        approximate = ' [approximate="none"]' if function == "gelu" else ""
        lines.append(f"%y.{function}: bf16[{extents}] = {function}(%{start}){approximate}")
    lines.append(f"%row: f32[3,1] = mean(%{start}) [axes=[1], dtype=f32, keepdim=true]")
    lines.append("%row.near: bf16[3,1] = cast(%row) [dtype=bf16]")
    lines += [f"output result = %y.{function}" for function in functions]
    lines.append("output result = %row.near")
    lines += ["output result = %near"] if name != "bf16" else []
    results = run(fused("\n" + "\n".join(lines) + "\n"), nans.expand(3, -1).contiguous())
    for function, result in zip([*functions, "row", "cast"], results, strict=False):
        assert result.isnan().all(), function


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_element_is_picked_without_comparing_all(dtype: str) -> None:
    """Of an operand, of what is computed, of another type; nothing where no element is meant."""
    op = fused(f"""
%x: {dtype}[60,130] = input operand
%target: i64[60,1] = input operand
%index: i64[130] = iota() [dtype=i64, length=130, start=0, step=1]
%hit: b8[60,130] = eq(%index, %target)
%max: {dtype}[60,1] = amax(%x) [axes=[1], keepdim=true]
%below: {dtype}[60,130] = sub(%x, %max)
%power: {dtype}[60,130] = exp(%below)
%at: {dtype}[60,130] = where(%hit, %x, 0)
%chosen: {dtype}[60,1] = sum(%at) [axes=[1], keepdim=true]
%at.power: {dtype}[60,130] = where(%hit, %power, 0)
%chosen.power: {dtype}[60,1] = sum(%at.power) [axes=[1], keepdim=true]
%total: {dtype}[60,1] = sum(%power) [axes=[1], keepdim=true]
%both: {dtype}[60,1] = add(%chosen, %chosen.power)
output result = %chosen
output result = %chosen.power
output result = %both
output result = %total
""")
    x, target = operands_for(op)
    target = torch.arange(-3, 57)[:, None] * 3
    check(op, x, target)
    text = lower(op, x, target).calls[0].source.text
    assert text.count("if target >= 0 and target < 130:") == 2 and "eq(" not in text.split('"""')[2]


@pytest.mark.parametrize("name", ["permuted", "expanded_last", "slice_of_last"])
def test_reductions_over_strided_rows(name: str) -> None:
    op = fused("""
%x: f32[4,6,10] = input operand
%row: f32[4,6,1] = sum(%x) [axes=[2], keepdim=true]
%centred: f32[4,6,10] = sub(%x, %row)
%column: f32[10] = sum(%centred) [axes=[0,1], keepdim=false]
%largest: f32[4,6,1] = amax(%x) [axes=[2], keepdim=true]
%total: f32[] = sum(%x) [axes=[0,1,2], keepdim=false]
output result = %row
output result = %centred
output result = %column
output result = %largest
output result = %total
""")
    check(op, layouts()[name])


def test_broadcasts_of_every_kind() -> None:
    op = fused("""
%full: f32[3,4,5,6] = input operand
%last: f32[6] = input operand
%row: f32[3,4,5,1] = input operand
%middle: f32[4,1,6] = input operand
%one: f32[1] = input operand
%number: f32[] = input operand
%a: f32[3,4,5,6] = add(%full, %last)
%b: f32[3,4,5,6] = mul(%a, %row)
%c: f32[3,4,5,6] = sub(%b, %middle)
%scale: f32[1] = mul(%one, %number)
%d: f32[3,4,5,6] = mul(%c, %scale)
output result = %d
""")
    check(op, *operands_for(op))


def test_rope_merges_axes_around_the_broadcast() -> None:
    op = fused("""
%x: bf16[2,3,7,8] = input operand
%cos: bf16[7,8] = input operand
%y: bf16[2,3,7,8] = mul(%x, %cos)
output result = %y
""")
    tensors = operands_for(op)
    check(op, *tensors)
    (call,) = lower(op, *tensors).calls
    assert "6 rows of 56." in call.source.text


class Backwards:
    """A tensor seen from its end along some axes: what PyTorch's strides cannot say."""

    def __init__(self, tensor: torch.Tensor, axes: tuple[int, ...]) -> None:
        self.tensor, self.axes = tensor, axes

    def stride(self) -> tuple[int, ...]:
        steps = enumerate(self.tensor.stride())
        return tuple(-step if axis in self.axes else step for axis, step in steps)

    def data_ptr(self) -> int:
        last = sum((self.tensor.shape[a] - 1) * self.tensor.stride(a) for a in self.axes)
        return self.tensor.data_ptr() + last * self.tensor.element_size()


@pytest.mark.parametrize("axes", [(0,), (1, 2), (2,), (0, 1, 2)])
def test_operands_are_read_backwards(axes: tuple[int, ...]) -> None:
    op = fused(ADD)
    x, y = operands_for(op)
    (sum,) = Runner(op, [Backwards(x, axes), y])()
    assert torch.equal(sum, x.flip(axes) + y)


# -- odd domains


def test_numbers_as_domain() -> None:
    op = fused("""
%x: f32[] = input operand
%y: f32[] = exp(%x)
%z: f32[] = add(%y, 1)
output result = %y
output result = %z
""")
    check(op, torch.tensor(0.5))


def test_long_vectors_are_cut_into_pieces() -> None:
    op = fused("""
%x: bf16[100003] = input operand
%y: bf16[100003] = silu(%x)
%total: f32[] = sum(%y) [axes=[0], dtype=f32, keepdim=false]
output result = %y
output result = %total
""")
    tensors = operands_for(op)
    check(op, *tensors)
    (call, _) = lower(op, *tensors).calls
    assert call.source.extent > 16 and "minimum(" in call.source.text


@pytest.mark.parametrize("rows,length", [(0, 5), (4, 0), (0, 0)])
def test_nothing_to_do_leaves_sums_of_nothing(rows: int, length: int) -> None:
    op = fused(f"""
%x: f32[{rows},{length}] = input operand
%y: f32[{rows},{length}] = exp(%x)
%row: f32[{rows},1] = sum(%y) [axes=[1], keepdim=true]
%column: f32[{length}] = sum(%y) [axes=[0], keepdim=false]
%total: f32[] = sum(%y) [axes=[0,1], keepdim=false]
%mean: f32[] = mean(%y) [axes=[0,1], keepdim=false]
output result = %y
output result = %row
output result = %column
output result = %total
output result = %mean
""")
    check(op, torch.empty(rows, length))


def test_sums_of_integers_and_of_truth() -> None:
    op = fused("""
%x: i32[30,40] = input operand
%hit: b8[30,40] = eq(%x, 1)
%count: i64[] = sum(%hit) [axes=[0,1], dtype=i64, keepdim=false]
%columns: i64[40] = sum(%x) [axes=[0], dtype=i64, keepdim=false]
%largest: i32[30,1] = amax(%x) [axes=[1], keepdim=true]
%any: b8[30,1] = amax(%hit) [axes=[1], keepdim=true]
%least: i32[30,1] = amin(%x) [axes=[1], keepdim=true]
output result = %count
output result = %columns
output result = %largest
output result = %any
output result = %least
""")
    check(op, *operands_for(op))


def test_extremes_over_rows_and_nan() -> None:
    op = fused("""
%x: f32[9,40] = input operand
%largest: f32[40] = amax(%x) [axes=[0], keepdim=false]
%row: f32[9,1] = amin(%x) [axes=[1], keepdim=true]
%total: f32[] = amin(%x) [axes=[0,1], keepdim=false]
output result = %largest
output result = %row
output result = %total
""")
    (x,) = operands_for(op)
    x[3, 4] = float("nan")
    x[2, 5] = float("inf")
    check(op, x)


def test_results_that_are_used_again_and_constants() -> None:
    op = fused("""
%x: f16[6,33] = input operand
%one: f16[6,33] = full() [dtype=f16, shape=[6,33], value=1.1]
%h: f16[6,33] = add(%x, %one)
%h.wide: f32[6,33] = cast(%h) [dtype=f32]
%mean: f32[6,1] = mean(%h.wide) [axes=[1], keepdim=true]
%class: f16[33] = iota() [dtype=f16, length=33, start=2, step=-3]
%y: f16[6,33] = mul(%h, %class)
%z: f32[6,33] = sub(%h.wide, %mean)
%spread: f16[6,1] = cast(%mean) [dtype=f16]
%w: f16[6,33] = mul(%one, %spread)
%place: i32[6,33] = iota() [dtype=i32, length=198, shape=[6,33], start=-4, step=2]
output result = %place
output result = %h
output result = %h.wide
output result = %one
output result = %y
output result = %z
output result = %w
output result = %h
""")
    check(op, *operands_for(op))


@pytest.mark.parametrize("bits_a_word,probability", [(16, 0.25), (32, 1e-3), (32, 1.0), (16, 0.0)])
def test_random_masks(bits_a_word: int, probability: float) -> None:
    """Whole domains, rows, and a mask per row, over a strided operand."""
    attributes = f"bits={bits_a_word}, probability={probability}"
    op = fused(f"""
%key: i64[] = input operand
%x: f32[3,5,70] = input operand
%each: b8[3,5,70] = bernoulli(%key) [{attributes}, shape=[3,5,70], stream=1]
%row: b8[3,5,1] = bernoulli(%key) [{attributes}, shape=[3,5,1], stream=2]
%last: b8[70] = bernoulli(%key) [{attributes}, shape=[70], stream=3]
%a: f32[3,5,70] = where(%each, %x, 0)
%b: f32[3,5,70] = where(%row, %a, 1)
%c: f32[3,5,70] = where(%last, %b, 2)
output result = %c
""")
    x = torch.randn(3, 70, 5, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    check(op, torch.tensor(-7), x)


def test_an_index_out_of_range_sets_the_flag() -> None:
    op = fused("""
%target: i64[50,1] = input operand
%checked: i64[50,1] = check_index(%target) [extent=10, ignore=-100]
%class: i64[10] = iota() [dtype=i64, length=10, start=0, step=1]
%hit: b8[50,10] = eq(%class, %checked)
output result = %hit
""")
    target = torch.randint(0, 10, (50, 1))
    target[3] = -100
    runner = Runner(op, [target], threads=2)
    assert runner.lowered.errors == 1
    (hit,) = runner()
    assert torch.equal(hit, target == torch.arange(10))
    assert runner.errors.tolist() == [[0, 0]]
    target[40] = 10
    runner()
    assert runner.errors.tolist() == [[1, 10]]


def test_other_reductions_are_refused() -> None:
    op = fused("""
%x: f32[3,4,5] = input operand
%y: f32[3,1,5] = sum(%x) [axes=[1], keepdim=true]
output result = %y
""")
    with pytest.raises(UnsupportedError, match="fits no kernel shape"):
        lower(op, torch.zeros(3, 4, 5))


def test_long_sums_are_as_exact_as_f32_allows() -> None:
    op = fused("""
%x: f32[3000001] = input operand
%total: f32[] = sum(%x) [axes=[0], keepdim=false]
output result = %total
""")
    x = torch.rand(3000001, generator=torch.Generator().manual_seed(0))
    (total,) = run(op, x, threads=2)
    assert abs(total.item() - x.double().sum().item()) < 2e-6 * x.double().sum().item()


def test_equal_layers_give_the_same_kernel() -> None:
    text = bodies.rms_norm("f32", 8, 32)
    first, second = fused(text), fused(text.replace("%x", "%x"))
    tensors = operands_for(first)
    names = [[call.source.name for call in lower(op, *tensors).calls] for op in (first, second)]
    assert names[0] == names[1]
    assert_near(first.results[0], *(run(op, *tensors)[0] for op in (first, second)))
