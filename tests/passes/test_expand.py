"""Expanded composites against PyTorch: gradients at most 1.1 times as far from float64 as eager's.

Distances are root mean squares over the same (rounded) inputs; a quarter of an ulp of the largest
element is allowed on top, about what one more rounding costs. A forward result may differ by the
order of its sums: by two ulps of the largest number summed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from rudagraph.errors import ContractError
from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Role, Value
from rudagraph.ir.interpret import interpret
from rudagraph.ir.ops import OPS, Tag
from rudagraph.ir.torch_types import from_torch_dtype
from rudagraph.ir.types import DType, TensorType
from rudagraph.ir.verify import verify
from rudagraph.passes.expand import EXPANSIONS, expand

Tensors = dict[str, torch.Tensor]
Emit = Callable[[GraphBuilder, dict[str, Value]], dict[str, Value]]


def test_every_composite_expands() -> None:
    assert set(EXPANSIONS) == {name for name, spec in OPS.items() if spec.tags & Tag.COMPOSITE}


def graph_of(inputs: Tensors, emit: Emit) -> Graph:
    builder = GraphBuilder("g")
    values = {
        name: builder.input(
            name, TensorType(from_torch_dtype(x.dtype), tuple(x.shape)), Role.ARGUMENT, name
        )
        for name, x in inputs.items()
    }
    for name, value in emit(builder, values).items():
        builder.output(value, Role.RESULT, name)
    graph = expand(builder.finish())
    return verify(graph, forbidden=Tag.COMPOSITE)


def results(inputs: Tensors, emit: Emit) -> Tensors:
    graph = graph_of(inputs, emit)
    values = interpret(graph, inputs)
    return {port.target: values[port.value.name] for port in graph.outputs}


def eager(inputs: Tensors, function: Callable[..., torch.Tensor], tangent: torch.Tensor) -> Tensors:
    leaves = {name: x.detach().requires_grad_(x.is_floating_point()) for name, x in inputs.items()}
    y = function(**leaves)
    y.backward(tangent.to(y.dtype))
    gradients = {f"d{name}": x.grad for name, x in leaves.items() if x.grad is not None}
    return {"y": y.detach(), **gradients}


def assert_as_good(
    inputs: Tensors, tangent: torch.Tensor, function: Callable[..., torch.Tensor], emit: Emit
) -> None:
    got = results({**inputs, "t": tangent}, emit)
    peer = eager(inputs, function, tangent)
    wide = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    exact = eager(wide, function, tangent.double())
    assert got.keys() == peer.keys() == exact.keys()
    largest = max(float(x.abs().max()) for x in inputs.values())
    assert_closer(got, peer, exact, largest)


def assert_closer(got: Tensors, peer: Tensors, exact: Tensors, largest: float) -> None:
    for name, wanted in exact.items():
        ulp = torch.finfo(peer[name].dtype).eps * wanted.abs().max()
        order = 2 * torch.finfo(torch.float32).eps * largest if name == "y" else 0
        allowed = 1.1 * distance(peer[name], wanted) + ulp / 4 + order
        assert distance(got[name], wanted) <= allowed, name


def distance(x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return (x.double() - exact).square().mean().sqrt()


def random(*shape: int, dtype: torch.dtype, seed: int, offset: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) + offset).to(dtype)


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


@DTYPES
@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_layer_norm(dtype: torch.dtype, axes: int, offset: float) -> None:
    x = random(5, 6, 40, dtype=dtype, seed=1, offset=offset)
    shape = tuple(x.shape[-axes:])
    inputs = {
        "x": x,
        "weight": random(*shape, dtype=dtype, seed=2),
        "bias": random(*shape, dtype=dtype, seed=3),
    }

    def emit(b: GraphBuilder, v: dict[str, Value]) -> dict[str, Value]:
        y, mean, rstd = b.emit(
            "layer_norm", v["x"], v["weight"], v["bias"], axes=axes, epsilon=1e-5
        )
        needs = (True, True, True)
        dx, dw, db = b.emit(
            "layer_norm_backward",
            *(v["t"], v["x"], mean, rstd, v["weight"]),
            axes=axes,
            needs=needs,
        )
        return {"y": y, "dx": dx, "dweight": dw, "dbias": db}

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, shape, weight, bias, 1e-5)

    assert_as_good(inputs, random(5, 6, 40, dtype=dtype, seed=4), function, emit)


def llama_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * normal.to(x.dtype)


def gemma_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normal * (1 + weight.to(wide.dtype))).to(x.dtype)


def torch_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


STYLES = {"torch": torch_norm, "llama": llama_norm, "gemma": gemma_norm}


@DTYPES
@pytest.mark.parametrize("style", STYLES)
def test_rms_norm(dtype: torch.dtype, style: str) -> None:
    inputs = {
        "x": random(6, 5, 64, dtype=dtype, seed=1),
        "weight": random(64, dtype=dtype, seed=2),
    }

    def emit(b: GraphBuilder, v: dict[str, Value]) -> dict[str, Value]:
        y, rstd = b.emit("rms_norm", v["x"], v["weight"], axes=1, epsilon=1e-6, style=style)
        dx, dw = b.emit(
            "rms_norm_backward",
            *(v["t"], v["x"], rstd, v["weight"]),
            axes=1,
            style=style,
            needs=(True, True),
        )
        return {"y": y, "dx": dx, "dweight": dw}

    assert_as_good(inputs, random(6, 5, 64, dtype=dtype, seed=3), STYLES[style], emit)


@DTYPES
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(dtype: torch.dtype, axis: int, name: str) -> None:
    function = getattr(F, name)

    def emit(b: GraphBuilder, v: dict[str, Value]) -> dict[str, Value]:
        y = b.one(name, v["x"], axis=axis)
        dx = b.one(f"{name}_backward", v["t"], y, axis=axis, dtype=v["x"].type.dtype)
        return {"y": y, "dx": dx}

    inputs = {"x": 4 * random(4, 9, 7, dtype=dtype, seed=1)}
    tangent = random(4, 9, 7, dtype=dtype, seed=2)
    assert_as_good(inputs, tangent, lambda x: function(x, axis), emit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(
    dtype: torch.dtype, reduction: str, smoothing: float, weighted: bool
) -> None:
    target = torch.tensor([3, -100, 0, 16, 5, 5, -100, 1])
    inputs = {"logits": 3 * random(8, 17, dtype=dtype, seed=1)}
    class_weight = random(17, dtype=dtype, seed=2).abs() if weighted else None
    settings = {"ignore_index": -100, "label_smoothing": smoothing, "reduction": reduction}

    def function(logits: torch.Tensor) -> torch.Tensor:
        weight = None if class_weight is None else class_weight.to(logits.dtype)
        return F.cross_entropy(logits, target, weight, **settings)

    def emit(b: GraphBuilder, v: dict[str, Value]) -> dict[str, Value]:
        ids = b.input("target", TensorType(DType.I64, (8,)), Role.ARGUMENT, "target")
        weight = None
        if class_weight is not None:
            type = TensorType(from_torch_dtype(dtype), (17,))
            weight = b.input("class_weight", type, Role.ARGUMENT, "class_weight")
        loss, lse, divisor = b.emit("cross_entropy", v["logits"], ids, weight, **settings)
        d = b.one(
            "cross_entropy_backward", v["t"], v["logits"], ids, weight, lse, divisor, **settings
        )
        return {"y": loss, "dlogits": d}

    tangent = random(8, dtype=dtype, seed=3) if reduction == "none" else torch.ones((), dtype=dtype)
    given = {**inputs, "t": tangent}
    graph = graph_of(given, emit)
    extra = {"target": target} | ({} if class_weight is None else {"class_weight": class_weight})
    values = interpret(graph, {**given, **extra})
    got = {port.target: values[port.value.name] for port in graph.outputs}
    peer = eager(inputs, function, tangent)
    exact = eager({"logits": inputs["logits"].double()}, function, tangent.double())
    assert_closer(got, peer, exact, float(inputs["logits"].abs().max()))


@pytest.mark.parametrize("target", [17, -1, 2**40])
def test_a_class_out_of_range_is_an_error(target: int) -> None:
    def emit(b: GraphBuilder, v: dict[str, Value]) -> dict[str, Value]:
        loss, _, _ = b.emit(
            "cross_entropy",
            *(v["logits"], v["target"], None),
            ignore_index=-100,
            label_smoothing=0.0,
            reduction="mean",
        )
        return {"loss": loss}

    inputs = {
        "logits": random(2, 17, dtype=torch.float32, seed=1),
        "target": torch.tensor([target, 0]),
    }
    with pytest.raises(ContractError, match=f"{target} is out of range for 17"):
        results(inputs, emit)
