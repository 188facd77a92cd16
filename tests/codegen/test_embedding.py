"""Embedding kernels: rows gathered, gradients added in order, ids checked."""

from __future__ import annotations

import pytest
import torch

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Attribute, Op, Role
from rudagraph.ir.interpret import interpret
from rudagraph.ir.types import DType, TensorType
from tests.codegen.compare import bits, operands_for
from tests.codegen.run import Runner, lower, run

ROWS, WIDTH = 40, 33


def gather(dtype: DType, ids: tuple[int, ...] = (6, 50), id_dtype: DType = DType.I64) -> Op:
    builder = GraphBuilder("graph")
    weight = builder.input("weight", TensorType(dtype, (ROWS, WIDTH)), Role.PARAMETER)
    numbers = builder.input("ids", TensorType(id_dtype, ids), Role.ARGUMENT)
    builder.one("embedding", weight, numbers)
    return builder.ops[0]


def scatter(dtype: DType, ids: tuple[int, ...] = (6, 50), **attributes: Attribute) -> Op:
    builder = GraphBuilder("graph")
    gradient = builder.input("gradient", TensorType(dtype, (*ids, WIDTH)), Role.TANGENT)
    numbers = builder.input("ids", TensorType(DType.I64, ids), Role.ARGUMENT)
    builder.one("embedding_backward", gradient, numbers, rows=ROWS, **attributes)
    return builder.ops[0]


def reference(op: Op, *tensors: torch.Tensor) -> torch.Tensor:
    builder = GraphBuilder("graph")
    for value in op.inputs:
        builder.input(value.name, value.type, Role.ARGUMENT)
    builder.add(op)
    builder.output(op.result, Role.RESULT)
    named = {value.name: tensor for value, tensor in zip(op.inputs, tensors, strict=True)}
    return interpret(builder.finish(), named)[op.result.name]


def ids_of(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, ROWS, shape, generator=torch.Generator().manual_seed(2)).to(dtype)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64, DType.B8], ids=str)
def test_rows_are_gathered_to_the_bit(dtype: DType) -> None:
    op = gather(dtype, id_dtype=DType.I32)
    weight, _ = operands_for(op)
    if dtype is DType.F32:
        weight.view(torch.int32)[3, 4] = 0x7F800001  # a signalling NaN
    ids = ids_of(6, 50, dtype=torch.int32)
    (y,) = run(op, weight, ids, threads=2)
    assert torch.equal(bits(y), bits(weight[ids.long()]))


def test_tables_and_ids_lie_in_memory_in_any_way() -> None:
    op = gather(DType.F32)
    weight = operands_for(op)[0].t().contiguous().t()
    ids = ids_of(50, 6).t()
    (y,) = run(op, weight, ids)
    assert torch.equal(y, weight[ids])


@pytest.mark.parametrize("wrong", [-1, ROWS, 1 << 40])
def test_an_id_outside_the_table_is_reported(wrong: int) -> None:
    op = gather(DType.F32)
    weight, ids = operands_for(op)[0], ids_of(6, 50)
    ids[4, 7] = wrong
    runner = Runner(op, [weight, ids], threads=2)
    (y,) = runner()
    assert runner.errors.tolist() == [[1, wrong]]
    assert not y[4, 7].any()
    back = scatter(DType.F32)
    runner = Runner(back, [torch.ones(6, 50, WIDTH), ids], threads=2)
    (table,) = runner()
    assert runner.errors.tolist() == [[1, wrong]]
    assert table.sum() == 299 * WIDTH


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64], ids=str)
@pytest.mark.parametrize("attributes", [{}, {"padding_index": 5}, {"scale_by_frequency": True}])
def test_gradients_are_added_in_order(dtype: DType, attributes: dict[str, Attribute]) -> None:
    """To the bit: the interpreter adds in order of index as well."""
    op = scatter(dtype, **attributes)
    gradient, ids = operands_for(op)[0], ids_of(6, 50)
    ids[0, :20] = 5
    wanted = reference(op, gradient, ids)
    for threads in (1, 2):
        (table,) = run(op, gradient, ids, threads=threads)
        assert torch.equal(bits(table), bits(wanted))


def test_strided_gradients() -> None:
    op = scatter(DType.F32)
    gradient = torch.randn(50, WIDTH, 6, generator=torch.Generator().manual_seed(0)).permute(
        2, 0, 1
    )
    ids = ids_of(50, 6).t()
    (table,) = run(op, gradient, ids)
    assert torch.equal(table, reference(op, gradient, ids))


def test_no_ids_at_all() -> None:
    op = gather(DType.F32, (0, 3))
    assert lower(op, torch.zeros(ROWS, WIDTH), ids_of(0, 3)).calls == ()
    back = scatter(DType.BF16, (0, 3))
    (table,) = run(back, torch.zeros(0, 3, WIDTH, dtype=torch.bfloat16), ids_of(0, 3))
    assert torch.equal(table, torch.zeros_like(table))
