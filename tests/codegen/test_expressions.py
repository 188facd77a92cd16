"""The scalar table: complete, named after the language, equal to the interpreter's semantics."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace

import pytest
import torch

from rudagraph.build import cpu_language
from rudagraph.codegen import expressions
from rudagraph.codegen.expressions import EXPRESSIONS, RESERVED, literal, round_number
from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Op, Role
from rudagraph.ir.interpret import interpret
from rudagraph.ir.ops import OPS, Tag
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.type_rules import TypeRuleError
from rudagraph.ir.types import DType, TensorType
from tests.codegen.run import fused_op, run

FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
INTEGERS = (DType.I8, DType.I16, DType.I32, DType.I64, DType.U8)
# PyTorch has no such operation on booleans.
NOT_ON_B8 = {"neg", "abs", "sub", "sign", "relu", "floor", "ceil", "trunc", "round", "pow"}
NOT_ON_B8 |= {"floor_divide", "truncate_divide", "remainder", "fmod", "shift_left", "shift_right"}
NOT_ON_INTEGERS = {"atan2"}


def pointwise(tag: Tag = Tag.POINTWISE) -> list[str]:
    return [name for name, spec in OPS.items() if spec.tags & tag]


def test_every_pointwise_op_has_a_row() -> None:
    assert set(EXPRESSIONS) == set(pointwise())


def test_rows_name_functions_of_the_language_only() -> None:
    known = set(cpu_language.__all__)
    for name, row in EXPRESSIONS.items():
        templates = [row.text] if isinstance(row.text, str) else []
        for template in templates:
            for function in re.findall(r"(\w+)\(", template):
                assert function in known, f"{name} calls {function}"
    for power in expressions._POWERS.values():
        assert set(re.findall(r"(\w+)\(", power)) <= known


def test_names_of_the_language_are_no_names_of_values() -> None:
    assert set(cpu_language.__all__) <= RESERVED


# LLVM's time grows faster than a kernel's length, so each holds a few ops.
OPS_A_KERNEL = 10


def bodies_of_everything(dtype: DType) -> list[Graph]:
    """Every op that takes this dtype, each result a result of its body."""
    skipped = (NOT_ON_B8 if dtype is DType.B8 else set()) | (
        set() if dtype.is_floating else NOT_ON_INTEGERS
    )
    calls = [(name, {}) for name in pointwise() if name not in skipped | {"cast"}]
    calls += [(name, {"approximate": "tanh"}) for name in ("gelu", "gelu_backward")]
    calls += [("cast", {"dtype": target}) for target in DType]
    bodies = []
    builder = None
    for name, attributes in calls:
        if builder is None or len(builder.outputs) == OPS_A_KERNEL:
            builder = GraphBuilder("body")
            bodies.append(builder)
            type = TensorType(dtype, (6, 50))
            x, y = (builder.input(operand, type, Role.OPERAND) for operand in ("x", "y"))
            condition = builder.one("lt", x, y, name="condition")
        operands = (condition, x, y) if name == "where" else (x, y)[: OPS[name].operands[0]]
        if name == "check_index":
            attributes = {"extent": 5}
        with contextlib.suppress(TypeRuleError):
            builder.output(builder.one(name, *operands, **attributes), Role.RESULT)
    return [builder.finish() for builder in bodies]


def operands_of(dtype: DType) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    torch_dtype = to_torch_dtype(dtype)
    if dtype is DType.B8:
        x, y = (torch.rand(6, 50, generator=generator) < 0.5 for _ in range(2))
    elif dtype.is_floating:
        x, y = (torch.randn(6, 50, generator=generator).to(torch_dtype) for _ in range(2))
        x[0, :7] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 0.5, -1.5])
        y[0, 3:9] = torch.tensor([0.0, float("nan"), 1.0, 0.5, float("inf"), -1.0])
    else:
        low = 0 if dtype is DType.U8 else -9
        x, y = (
            torch.randint(low, 10, (6, 50), generator=generator, dtype=torch_dtype)
            for _ in range(2)
        )
        y[y == 0] = 3  # an integer divided by zero is an error in PyTorch
        limits = torch.iinfo(torch_dtype)
        x[0, :2] = torch.tensor([limits.min, limits.max], dtype=torch_dtype)
    return x, y


# Casts of what the target cannot hold are undefined in C++, and so in PyTorch.
def is_comparable(op: Op, x: torch.Tensor) -> torch.Tensor:
    if op.opcode == "gelu":
        return torch.isfinite(x)  # of infinity PyTorch's own kernels say inf or nan, by the CPU
    if op.opcode != "cast" or not x.dtype.is_floating_point or op.result.type.dtype is DType.B8:
        return torch.ones_like(x, dtype=torch.bool)
    target = to_torch_dtype(op.result.type.dtype)
    if target.is_floating_point:
        return torch.ones_like(x, dtype=torch.bool)
    low = 0 if target is torch.uint8 else -100
    return torch.isfinite(x) & (x > low - 1) & (x < 100)


USUAL = (DType.F32, DType.BF16, DType.I64, DType.B8)


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(t, marks=() if t in USUAL else pytest.mark.full, id=str(t)) for t in DType],
)
def test_every_op_is_as_the_interpreter_has_it(dtype: DType) -> None:
    x, y = operands_of(dtype)
    for body in bodies_of_everything(dtype):
        given = run(fused_op(body), x, y)
        ops = [op for op in body.ops if op.opcode != "check_index"]
        wanted = interpret(
            replace(body, ops=tuple(ops), outputs=()), {"x": x, "y": y}, intermediates=True
        )
        producers = body.producers()
        for port, result in zip(body.outputs, given, strict=True):
            op = producers[port.value]
            reference = x if op.opcode == "check_index" else wanted[port.value.name]
            assert_same(op, result, reference, x, y)


def assert_same(
    op: Op, result: torch.Tensor, wanted: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> None:
    valid = is_comparable(op, x)
    if op.opcode == "gelu_backward":
        valid &= torch.isfinite(y)  # of infinity PyTorch's formula makes nan, its limit is 0 or 1
    if op.opcode in ("shift_left", "shift_right"):
        valid = (y >= 0) & (y < 8)  # other counts are undefined in C++
    if op.opcode == "pow" and not x.dtype.is_floating_point:
        valid = y >= 0  # PyTorch refuses negative integer powers
    bounds = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-12}
    bound = bounds.get(str(result.dtype).removeprefix("torch."), 0.0)
    torch.testing.assert_close(
        result[valid],
        wanted[valid],
        rtol=bound,
        atol=bound / 4,
        equal_nan=True,
        msg=lambda text: f"{op.opcode} of {op.inputs[0].type.dtype}: {text}",
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_are_what_pytorch_makes_of_scalars(dtype: DType) -> None:
    builder = GraphBuilder("body")
    x = builder.input("x", TensorType(dtype, (40,)), Role.OPERAND)
    condition = builder.one("gt", x, 0.1)
    for value in (
        builder.one("add", x, 0.1),
        builder.one("mul", 3, x),
        builder.one("maximum", x, 0.1),
        builder.one("where", condition, x, 0.1),
        builder.one("where", condition, 1, -0.3, dtype=dtype),
        builder.one("div", 1, x),
        condition,
        *(builder.one("pow", x, exponent) for exponent in (2, 3, 0.5, -1, -0.5, -2, 1, 1.7)),
    ):
        builder.output(value, Role.RESULT)
    body = builder.finish()
    tensor = torch.randn(40, generator=torch.Generator().manual_seed(1)).to(to_torch_dtype(dtype))
    tensor[:3] = torch.tensor([0.1, 0.0, 2.0])
    given, wanted = run(fused_op(body), tensor), interpret(body, {"x": tensor})
    for port, result in zip(body.outputs, given, strict=True):
        # PyTorch's own square root by pow is an ulp off, as is any other power.
        bound = {} if port.value.name in ("pow_3", "pow_8") else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(result, wanted[port.value.name], equal_nan=True, **bound)


def test_literals() -> None:
    assert literal(0.1, DType.BF16) == "float32(0.1)"
    assert literal(float("-inf"), DType.F64) == "float64(-infinity)"
    assert literal(float("nan"), DType.F16) == "float32(nan)"
    assert literal(300, DType.U8) == "uint8(44)"
    assert literal(-(1 << 63), DType.I64) == "int64(-9223372036854775808)"
    assert literal(2, DType.B8) == "True"


@pytest.mark.parametrize("dtype", (DType.F16, DType.BF16), ids=str)
def test_rounded_numbers_are_pytorchs(dtype: DType) -> None:
    numbers = (0.1, 1 / 3, 65504, 65520.0, 1e-8, 6e-8, -0.0, 3.4e38, 1e39, float("inf"))
    for number in numbers:
        wanted = torch.tensor(number, dtype=torch.float32).to(to_torch_dtype(dtype)).item()
        assert round_number(number, dtype) == wanted
