"""Which values segments save: those that cross where least does, and what nothing gives again."""

from __future__ import annotations

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.types import DType, TensorType
from rudagraph.passes.checkpoint import checkpoints
from rudagraph.passes.evict import work_again
from rudagraph.passes.partition import partition
from rudagraph.passes.recompute import JointView, choose_saved

BLOCKS, NARROW, WIDE = 8, 16, 64


def tower(*, with_library: bool = False) -> Graph:
    """Blocks of two products, wide inside; each also hands on its input."""
    builder = GraphBuilder("joint")
    square = TensorType(DType.F32, (NARROW, WIDE))
    x = builder.input("x", TensorType(DType.F32, (32, NARROW)), Role.ARGUMENT, "x")
    up = builder.input("up", square, Role.PARAMETER, "up")
    tangent = builder.input("tangent", x.type, Role.TANGENT, "y")
    down = builder.one("permute", up, name="down", axes=(1, 0))
    inside: list[tuple[Value, Value, Value]] = []
    value = x
    for block in range(BLOCKS):
        wide = builder.one("matmul", value, up, name=f"{block}.wide")
        bent = builder.one("gelu", wide, name=f"{block}.bent", approximate="none")
        if with_library and block == 3:
            (bent,) = builder.emit(
                "library",
                bent,
                types=(bent.type,),
                name=f"{block}.drawn",
                target="aten.bernoulli.default",
                arguments=(),
            )
        narrow = builder.one("matmul", bent, down, name=f"{block}.narrow")
        inside.append((value, wide, bent))
        value = builder.one("add", value, narrow, name=f"{block}.out")
    builder.output(value, Role.RESULT, "y")
    gradient = tangent
    for block in reversed(range(BLOCKS)):
        value, wide, bent = inside[block]
        turned = builder.one("permute", gradient, name=f"{block}.turned", axes=(1, 0))
        weight = builder.one("matmul", turned, bent, name=f"grad.{block}.down")
        builder.output(weight, Role.GRADIENT, f"{block}.down")
        back = builder.one("matmul", gradient, up, name=f"grad.{block}.bent")
        bend = builder.one("gelu_backward", back, wide, name=f"grad.{block}", approximate="none")
        gradient = builder.one("matmul", bend, down, name=f"grad.{block}.in")
    return builder.finish()


def names(values: frozenset[Value]) -> set[str]:
    return {value.name for value in values}


def test_blocks_are_cut_where_least_crosses() -> None:
    joint = tower()
    view, saved = JointView(joint), choose_saved(joint)
    assert names(saved) >= {f"{block}.bent" for block in range(BLOCKS)}
    choices = [names(choice) for choice in checkpoints(view, saved)]
    assert choices[:3] == [
        {"3.out", "6.out"},
        {"2.out", "4.out", "6.out"},
        {f"{block}.out" for block in range(1, 7)},
    ]
    assert len(choices[-1]) > BLOCKS, "segments of a single value save what is inside too"


def test_what_cannot_be_repeated_stays() -> None:
    joint = tower(with_library=True)
    choices = checkpoints(JointView(joint), choose_saved(joint))
    assert all("3.drawn" in names(choice) for choice in choices)


def test_more_is_computed_again_and_less_is_saved() -> None:
    joint = tower()
    view, saved = JointView(joint), choose_saved(joint)
    few = checkpoints(view, saved)[0]
    assert work_again(view, few) > work_again(view, saved)
    _, backward = partition(joint, few)
    assert backward is not None
    kept = [port.value.name for port in backward.inputs if port.role is Role.RESIDUAL]
    assert kept == ["3.out", "6.out"]
