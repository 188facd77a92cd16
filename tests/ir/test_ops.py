"""The op table: each row gives the right types and refuses what does not fit, with a sentence."""

from __future__ import annotations

import re

import pytest

from rudagraph.ir.graph import Attribute, Operand, Value
from rudagraph.ir.infer import infer
from rudagraph.ir.ops import OPS, Tag
from rudagraph.ir.text import parse_graph
from rudagraph.ir.type_rules import TypeRuleError
from rudagraph.ir.types import DType, TensorType


def operand_of(text: str) -> Operand:
    """A value of the type that the text names; else the number or None it spells."""
    if "[" not in text:
        return {"none": None, "true": True}.get(text, float(text) if "." in text else text)
    dtype, _, shape = text.rstrip("]").partition("[")
    extents = tuple(int(n) for n in shape.split(",")) if shape else ()
    return Value("v", TensorType(DType(dtype), extents))


def given(text: str) -> tuple[str, tuple[Operand, ...], dict[str, Attribute]]:
    """`opcode(types) [attributes]` taken apart; operands are written as their types."""
    match = re.fullmatch(r"(\w+)\((.*?)\)(?: (\[.*\]))?", text)
    assert match, text
    opcode, listed, attributes = match.groups()
    operands: list[Operand] = []
    for item in re.findall(r"\w+\[[\d,]*\]|[^,\s]+", listed):
        if re.fullmatch(r"-?\d+", item):
            operands.append(int(item))
        else:
            operands.append(operand_of(item))
    op = parse_graph(f"graph g {{ %r: f32[] = {opcode}() {attributes or ''} }}").ops[0]
    return opcode, tuple(operands), dict(op.attributes)


RIGHT = [
    ("copy(b8[2])", "b8[2]"),
    ("neg(i32[2])", "i32[2]"),
    ("abs(bf16[])", "bf16[]"),
    ("sqrt(f64[3])", "f64[3]"),
    ("round(f16[1])", "f16[1]"),
    ("relu(u8[4])", "u8[4]"),
    ("exp(bf16[2,3])", "bf16[2,3]"),
    ("silu(f32[2])", "f32[2]"),
    ('gelu(f32[2]) [approximate="tanh"]', "f32[2]"),
    ("isnan(f32[2])", "b8[2]"),
    ("logical_not(i64[2])", "b8[2]"),
    ("bitwise_not(b8[2])", "b8[2]"),
    ("cast(f32[2]) [dtype=i8]", "i8[2]"),
    ("add(f32[2,1], f32[3])", "f32[2,3]"),
    ("add(f32[2], 0.5)", "f32[2]"),
    ("add(f32[2], 3)", "f32[2]"),
    ("mul(3, i64[2])", "i64[2]"),
    ("maximum(b8[2], true)", "b8[2]"),
    ("sub(f32[0,2], f32[1,2])", "f32[0,2]"),
    ("div(f16[2], f16[2])", "f16[2]"),
    ("floor_divide(i32[2], 2)", "i32[2]"),
    ("pow(2.0, f32[4])", "f32[4]"),
    ("eq(i64[2], i64[])", "b8[2]"),
    ("ge(bf16[2], 0.1)", "b8[2]"),
    ("logical_and(f32[2], f32[2])", "b8[2]"),
    ("bitwise_and(b8[2], b8[2])", "b8[2]"),
    ("shift_left(i32[2], 3)", "i32[2]"),
    ("silu_backward(f32[2], f32[2])", "f32[2]"),
    ("gelu_backward(f32[2], f32[2])", "f32[2]"),
    ("tanh_backward(f32[2], f32[2])", "f32[2]"),
    ("multiply_add(f32[2,3], f32[2,1], f32[3])", "f32[2,3]"),
    ("where(b8[2,1], f32[3], 0.0)", "f32[2,3]"),
    ("where(b8[2], 1.0, 0.0) [dtype=bf16]", "bf16[2]"),
    ("sum(bf16[2,3]) [axes=[1], dtype=f32, keepdim=true]", "f32[2,1]"),
    ("sum(b8[2,3]) [axes=[0, 1], dtype=i64]", "i64[]"),
    ("sum(f32[2,3]) [axes=[]]", "f32[2,3]"),
    ("mean(f32[2,3]) [axes=[0]]", "f32[3]"),
    ("amax(i32[2,3]) [axes=[0, 1], keepdim=true]", "i32[1,1]"),
    ("reshape(f32[2,3]) [shape=[6]]", "f32[6]"),
    ("permute(f32[2,3,4]) [axes=[2, 0, 1]]", "f32[4,2,3]"),
    ("expand(f32[3,1]) [shape=[2, 3, 4]]", "f32[2,3,4]"),
    ("slice(f32[7,2]) [axis=0, start=1, stop=6, step=2]", "f32[3,2]"),
    ("slice(f32[7]) [axis=0, start=3, stop=3, step=1]", "f32[0]"),
    ("flip(f32[7,2]) [axis=1]", "f32[7,2]"),
    ("iota() [dtype=i32, length=6, shape=[2, 3], start=0, step=1]", "i32[2,3]"),
    ("full() [dtype=b8, shape=[2], value=true]", "b8[2]"),
    ("iota() [dtype=i64, length=5, start=1, step=2]", "i64[5]"),
    ("bernoulli(i64[]) [bits=16, probability=0.1, shape=[2, 3], stream=4]", "b8[2,3]"),
    ("concatenate(f32[2,3], f32[2,5]) [axis=1]", "f32[2,8]"),
    ("pad(f32[2,3]) [low=[0, -1], high=[1, 2], value=0.0]", "f32[3,4]"),
    ("matmul(bf16[5,2,3], bf16[5,3,4])", "bf16[5,2,4]"),
    ("addmm(f32[4], f32[2,3], f32[3,4])", "f32[2,4]"),
    ("addmm(f32[2,4], f32[2,3], f32[3,4])", "f32[2,4]"),
    ("embedding(bf16[10,4], i32[2,3])", "bf16[2,3,4]"),
    ("embedding_backward(f32[2,3,4], i64[2,3]) [rows=10]", "f32[10,4]"),
    ("softmax(bf16[2,3]) [axis=1, dtype=f32]", "f32[2,3]"),
    ("log_softmax(f32[]) [axis=0]", "f32[]"),
    ("softmax_backward(f32[2,3], f32[2,3]) [axis=1, dtype=bf16]", "bf16[2,3]"),
    ("log_softmax_backward(f32[2,3], f32[2,3]) [axis=1]", "f32[2,3]"),
    ("layer_norm(bf16[2,3,4], bf16[3,4], none) [axes=2, epsilon=1e-05]",
     "bf16[2,3,4], f32[2,1,1], f32[2,1,1]"),
    ("layer_norm(f64[2,4], none, none) [axes=1, epsilon=0.0]", "f64[2,4], f64[2,1], f64[2,1]"),
    ("layer_norm_backward(f32[2,4], f32[2,4], f32[2,1], f32[2,1], f32[4])"
     " [axes=1, needs=[true, false, true]]", "f32[2,4], f32[4]"),
    ('rms_norm(bf16[2,4], f32[4]) [axes=1, epsilon=1e-06, style="llama"]',
     "bf16[2,4], f32[2,1]"),
    ('rms_norm_backward(bf16[2,4], bf16[2,4], f32[2,1], f32[4])'
     ' [axes=1, needs=[true, true], style="gemma"]', "bf16[2,4], f32[4]"),
    ("dropout(f32[2], i64[]) [probability=0.5, stream=1]", "f32[2]"),
    ('cross_entropy(bf16[5,7], i64[5], none)'
     ' [ignore_index=-100, label_smoothing=0.0, reduction="mean"]', "bf16[], f32[5], f32[]"),
    ('cross_entropy(f32[5,7], i64[5], f32[7])'
     ' [ignore_index=0, label_smoothing=0.1, reduction="none"]', "f32[5], f32[5], f32[]"),
    ('cross_entropy_backward(f32[], f32[5,7], i64[5], none, f32[5], f32[])'
     ' [ignore_index=-100, label_smoothing=0.0, reduction="sum"]', "f32[5,7]"),
    ("attention(bf16[1,4,5,8], bf16[1,2,6,8], bf16[1,2,6,3], none) [causal=true]",
     "bf16[1,4,5,3], f32[1,4,5]"),
    ("attention(f32[1,4,5,8], f32[1,2,6,8], f32[1,2,6,3], b8[5,6]) [scale=0.5]",
     "f32[1,4,5,3], f32[1,4,5]"),
    ("attention_backward(f32[1,4,5,3], f32[1,4,5,8], f32[1,2,6,8], f32[1,2,6,3], none,"
     " f32[1,4,5,3], f32[1,4,5])", "f32[1,4,5,8], f32[1,2,6,8], f32[1,2,6,3]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "types"), RIGHT)
def test_types_are_inferred(text: str, types: str) -> None:
    opcode, operands, attributes = given(text)
    assert ", ".join(map(str, infer(opcode, operands, attributes))) == types


WRONG = [
    ("frobnicate(f32[2])", "there is no op named frobnicate"),
    ("neg()", "neg takes 1 operands, not 0"),
    ("concatenate() [axis=0]", "concatenate takes 1 to any operands, not 0"),
    ("exp(f32[2]) [axis=0]", "exp has no attribute axis; it has: none"),
    ("exp(0.5)", "expected a tensor operand, not 0.5"),
    ("neg(b8[2])", "needs numbers, not b8[2]"),
    ("exp(i64[2])", "needs a floating operand, not i64[2]"),
    ("bitwise_not(f32[2])", "needs an integer or b8 operand, not f32[2]"),
    ("cast(f32[2])", "attribute dtype must be a dtype, not None"),
    ("cast(f32[2]) [dtype=3]", "attribute dtype must be a dtype, not 3"),
    ("add(f32[2], bf16[2])", "operands must have one dtype, not f32, bf16"),
    ("add(f32[2], f32[3])", "shapes [2] and [3] do not broadcast"),
    ("add(1.0, 2.0)", "at least one operand must be a tensor"),
    ("add(f32[2], none)", "no operand may be left out"),
    ("mul(i64[2], 0.5)", "the number 0.5 is no i64: cast first"),
    ("eq(b8[2], 2)", "the number 2 is no b8: cast first"),
    ("div(i64[2], i64[2])", "needs floating operands, not i64"),
    ("bitwise_or(f32[2], f32[2])", "needs integer or b8 operands, not f32"),
    ("where(f32[2], f32[2], 0.0)", "the condition must be b8, not f32[2]"),
    ("where(b8[2], 1.0, 0.0)", "attribute dtype must be a dtype, not None"),
    ("where(b8[2], f32[2], 0.0) [dtype=f64]", "the branches are f32, the attribute says f64"),
    ("where(b8[2], 1.0, 0) [dtype=i32]", "the number 1.0 is no i32: cast first"),
    ("sum(f32[2,3])", "attribute axes must be a list of integers, not None"),
    ("sum(f32[2,3]) [axes=[1, 0]]", "axes [1, 0] are not increasing axes of f32[2,3]"),
    ("amax(f32[2,3]) [axes=[2]]", "axes [2] are not increasing axes of f32[2,3]"),
    ("mean(i64[2]) [axes=[0]]", "needs a floating operand"),
    ("reshape(f32[2,3]) [shape=[5]]", "cannot reshape f32[2,3] to f32[5]"),
    ("permute(f32[2,3]) [axes=[0, 0]]",
     "axes [0, 0] are not a permutation of the axes of f32[2,3]"),
    ("expand(f32[2,3]) [shape=[2, 4]]", "cannot expand f32[2,3] to [2, 4]"),
    ("expand(f32[2,3]) [shape=[3]]", "cannot expand f32[2,3] to [3]"),
    ("slice(f32[4]) [axis=1, start=0, stop=1, step=1]", "axis 1 is not an axis of f32[4]"),
    ("flip(f32[4]) [axis=1]", "axis 1 is not an axis of f32[4]"),
    ("iota() [dtype=i32, length=6, shape=[4], start=0, step=1]",
     "shape [4] does not hold 6 elements"),
    ("slice(f32[4]) [axis=0, start=0, stop=5, step=1]",
     "0:5:1 is not a normalised slice of an axis of 4"),
    ("slice(f32[4]) [axis=0, start=0, stop=4]", "attribute step must be an integer, not None"),
    ("full() [dtype=i64, shape=[], value=0.5]", "the number 0.5 is no i64"),
    ("full() [dtype=f32, shape=[]]", "attribute value must be a number, not None"),
    ("iota() [dtype=i64, length=5, start=0, step=0.5]", "step 0.5 is no i64"),
    ("bernoulli(i32[]) [bits=16, probability=0.1, shape=[], stream=0]",
     "the key must be i64[], not i32[]"),
    ("bernoulli(i64[]) [bits=8, probability=0.1, shape=[], stream=0]",
     "bits must be 16 or 32, not 8"),
    ("dropout(f32[2], i64[]) [probability=1.5, stream=0]",
     "probability must lie in [0,1], not 1.5"),
    ("concatenate(f32[2,3], f32[3,3]) [axis=1]", "cannot join [2, 3] and [3, 3] along axis 1"),
    ("concatenate(f32[2]) [axis=1]", "axis 1 is not an axis of [2]"),
    ("pad(f32[2]) [low=[0, 0], high=[0], value=0]", "low and high need 1 numbers each"),
    ("pad(f32[2]) [low=[-3], high=[0], value=0]", "padding f32[2] gives a negative size"),
    ("matmul(f32[2,3], f32[2,3])", "cannot multiply f32[2,3] by f32[2,3]"),
    ("matmul(f32[3], f32[3])", "cannot multiply f32[3] by f32[3]"),
    ("addmm(f32[3], f32[2,3], f32[3,4])", "cannot add f32[3] to a product of type f32[2,4]"),
    ("embedding(f32[3,2], f32[4])", "ids must be i32 or i64, not f32[4]"),
    ("embedding(f32[3], i64[4])", "the table must have two axes, not f32[3]"),
    ("embedding_backward(f32[3,2], i64[4]) [rows=5]",
     "gradient f32[3,2] does not match ids i64[4]"),
    ("softmax(f32[2]) [axis=1]", "axis 1 is not an axis of f32[2]"),
    ("softmax_backward(f32[2], f32[3]) [axis=0]", "gradient f32[2] does not match f32[3]"),
    ("layer_norm(f32[2,3], f32[2], none) [axes=1, epsilon=0.1]",
     "weight f32[2] does not match the normalised [3]"),
    ("layer_norm(f32[2,3], none, none) [axes=3, epsilon=0.1]",
     "cannot normalise 3 axes of f32[2,3]"),
    ("layer_norm(f32[2,3], none, none) [axes=1]", "attribute epsilon must be a number, not None"),
    ("layer_norm_backward(f32[2,4], f32[2,4], f32[2], f32[2,1], f32[4])"
     " [axes=1, needs=[true, true, true]]", "mean is f32[2], it must be f32[2,1]"),
    ("layer_norm_backward(f32[2,4], f32[2,4], f32[2,1], f32[2,1], none)"
     " [axes=1, needs=[false, false, false]]", "needs must be 3 booleans, at least one true"),
    ('rms_norm(f32[2,4], none) [axes=1, epsilon=0.1, style="qwen"]',
     "style is torch, llama or gemma, not 'qwen'"),
    ('cross_entropy(f32[5,7], i64[4], none)'
     ' [ignore_index=0, label_smoothing=0.0, reduction="sum"]',
     "logits f32[5,7] and target i64[4] must be [rows,classes] and [rows]"),
    ('cross_entropy(f32[5,7], i64[5], none)'
     ' [ignore_index=0, label_smoothing=0.0, reduction="max"]',
     "reduction is none, sum or mean, not 'max'"),
    ('cross_entropy_backward(f32[5], f32[5,7], i64[5], none, f32[5], f32[])'
     ' [ignore_index=0, label_smoothing=0.0, reduction="sum"]',
     "gradient is f32[5], it must be f32[]"),
    ("attention(f32[1,3,5,8], f32[1,2,6,8], f32[1,2,6,8], none)",
     "attention cannot take q f32[1,3,5,8], k f32[1,2,6,8], v f32[1,2,6,8]"),
    ("attention(f32[1,2,5,8], f32[1,2,6,8], f32[1,2,6,8], i64[5,6])",
     "a mask is b8 (true keeps) or floating (added), not i64[5,6]"),
    ("attention(f32[1,2,5,8], f32[1,2,6,8], f32[1,2,6,8], b8[6,5])",
     "mask b8[6,5] does not broadcast to the scores [1, 2, 5, 6]"),
    ("attention_backward(f32[1,2,5,8], f32[1,2,5,8], f32[1,2,6,8], f32[1,2,6,8], none,"
     " f32[1,2,5,8], f64[1,2,5])", "logsumexp is f64[1,2,5], it must be f32[1,2,5]"),
    ("library(f32[2])", "a library op's result types are declared, not inferred"),
    ("fused(f32[2])", "a fused op needs a body"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_does_not_fit_is_refused(text: str, message: str) -> None:
    opcode, operands, attributes = given(text)
    with pytest.raises(TypeRuleError) as caught:
        infer(opcode, operands, attributes)
    assert str(caught.value) == message


def test_every_row_is_tried() -> None:
    """A new op needs a line above; ops of one row share their rule."""
    tried = {OPS[text.partition("(")[0]].infer for text, _ in RIGHT}
    untried = [spec.opcode for spec in OPS.values() if spec.infer not in tried]
    assert untried == ["library", "fused"]


def test_tags_describe_the_rows() -> None:
    for spec in OPS.values():
        one_of = Tag.POINTWISE | Tag.REDUCTION | Tag.VIEW | Tag.CREATION | Tag.RANDOM | Tag.MATMUL
        one_of |= Tag.LIBRARY | Tag.COMPOSITE | Tag.GATHER | Tag.SCATTER | Tag.FUSED
        assert spec.tags & one_of, f"{spec.opcode} has no tag that says what it is"
        if Tag.COMMUTATIVE in spec.tags:
            assert spec.operands == (2, 2), spec.opcode
        if Tag.CREATION in spec.tags:
            assert spec.operands == (0, 0), spec.opcode


def test_sizes_and_compute_types() -> None:
    assert [dtype.size for dtype in DType] == [2, 2, 4, 8, 1, 2, 4, 8, 1, 1]
    assert DType.BF16.compute is DType.F16.compute is DType.F32
    assert DType.F64.compute is DType.F64
    assert DType.B8.compute is DType.B8
    assert not DType.B8.is_integer and not DType.B8.is_floating
    assert TensorType(DType.BF16, (3, 0, 2)).bytes == 0
    assert TensorType(DType.BF16, (3, 2)).bytes == 12
