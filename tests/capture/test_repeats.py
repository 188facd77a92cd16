"""Layers whose forward is the same are left out only if their derivatives are the same as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F

from rudagraph import StaticGraph, compiler
from rudagraph.capture import Capture, capture
from rudagraph.ir.text import print_graph
from rudagraph.options import CompileOptions
from rudagraph.passes.fold import fold, folded_by_capture, unfold

LAYERS, WIDTH, ODD = 12, 8, 6
Change = Callable[["Layer", torch.Tensor], torch.Tensor]


class Layer(nn.Module):
    """A product and something besides; one of the layers is odd."""

    def __init__(self, index: int, change: Change | None) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.index, self.change = index, change
        self.odd = index == ODD

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x if self.change is None else self.change(self, x)
        return torch.tanh(self.linear(y))


class Model(nn.Module):
    def __init__(self, change: Change | None = None) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(index, change) for index in range(LAYERS))

    def row(self) -> list[Layer]:
        """The layers in the order in which they run."""
        return sorted(self.layers.children(), key=lambda layer: layer.index)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.row():
            x = layer(x)
        return x.square().mean()


def example() -> torch.Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))


def short_of(model: nn.Module) -> Capture:
    """The capture that is compiled; with its layers back it is the text of one with all layers.

    So is that one, with layers left out of it and put back.
    """
    short = compiler._capture(model, (example(),), {}, CompileOptions(), ())
    whole = capture(model, (example(),)).graph
    back = unfold(short.graph, folded_by_capture(short.graph, short.left_out))
    assert print_graph(back) == print_graph(whole)
    assert print_graph(unfold(*fold(whole))) == print_graph(whole)
    return short


# ---- derivatives that the ops of forward do not tell


class Normal(Function):
    """A Function whose result one of our operators makes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return F.layer_norm(x, (WIDTH,))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.factor, None


class Dropped(Normal):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return F.dropout(x, 0.25)


class Unchanged(Normal):
    """A Function that is no op at all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return torch.ops.aten.detach(x)


def _of(function: type[Function]) -> Change:
    return lambda layer, x: function.apply(x, 0.5 if layer.odd else 1.0)


def _detached(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * (x.detach() if layer.odd else x)


def _detached_by_the_operator(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * (torch.ops.aten.detach(x) if layer.odd else x)


def _data(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * (x.data if layer.odd else x)


def _without_gradient(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    with torch.set_grad_enabled(not layer.odd):
        y = torch.sin(x)
    return x + y


def _hook(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    if layer.odd:
        y.register_hook(lambda gradient: gradient * 2)
    return y


def _unseen_hook(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """As where a library function that takes overrides sets it."""
    y = torch.sin(x)
    if layer.odd:
        with torch._C.DisableTorchFunction():
            y.register_hook(lambda gradient: gradient * 2)
    return y


def _node_hook(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    if layer.odd:
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 2,))
    return y


def _weight_hook(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    if layer.odd:
        layer.linear.bias.register_hook(lambda gradient: gradient * 2)
    return x


def _saved_otherwise(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    if not layer.odd:
        return torch.sin(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 2):
        return torch.sin(x)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_of(Normal), id="function_of_a_norm"),
        pytest.param(_of(Dropped), id="function_of_a_dropout"),
        pytest.param(_of(Unchanged), id="function_of_nothing"),
        _detached,
        _detached_by_the_operator,
        _data,
        _without_gradient,
        _hook,
        _unseen_hook,
        _node_hook,
        _weight_hook,
        _saved_otherwise,
    ],
)
def test_one_layer_has_another_derivative(change: Change) -> None:
    assert not short_of(Model(change)).left_out


def test_a_model_between_its_layers() -> None:
    """Names do not tell for which layer that is: it is known before backward is traced."""

    class Between(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x)
            for layer in self.row():
                x = x + layer(x)
            return x.square().mean()

    captured = capture(Between(), (example(),), all_layers=False)
    assert not captured.left_out
    short_of(Between())


# ---- what layers hold


def _frozen_or_buffer(layer: Layer) -> None:
    if layer.odd:
        layer.register_buffer("scale", torch.ones(WIDTH))
    else:
        layer.scale = nn.Parameter(torch.ones(WIDTH), requires_grad=False)


def _attribute_or_buffer(layer: Layer) -> None:
    if layer.index >= ODD:
        layer.register_buffer("scale", torch.ones(WIDTH))
    else:
        layer.scale = torch.ones(WIDTH)


def _buffers_at_first(layer: Layer) -> None:
    if layer.index < 2:
        layer.register_buffer("scale", torch.ones(WIDTH))


def _trained_at_first(layer: Layer) -> None:
    layer.requires_grad_(False)
    layer.scale = nn.Parameter(torch.ones(WIDTH), requires_grad=layer.index < 2)


def _registered_otherwise(layer: Layer) -> None:
    linear = layer.linear
    if layer.odd:
        del layer.linear
    layer.other = nn.Linear(WIDTH, WIDTH)
    layer.linear = linear


def _scaled(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    if hasattr(layer, "other"):
        x = layer.other(x)
    return x * layer.scale if hasattr(layer, "scale") else x


HOLDINGS = [
    _frozen_or_buffer,
    _attribute_or_buffer,
    _buffers_at_first,
    _trained_at_first,
    _registered_otherwise,
]


def holding(hold: Callable[[Layer], None]) -> Model:
    model = Model(_scaled)
    for layer in model.row():
        hold(layer)
    return model


def in_other_order(order: list[int]) -> Model:
    model = Model()
    model.layers = nn.ModuleDict({str(index): model.layers[index] for index in order})
    return model


@pytest.mark.parametrize("hold", HOLDINGS)
def test_layers_that_hold_the_same_otherwise(hold: Callable[[Layer], None]) -> None:
    short_of(holding(hold))


@pytest.mark.parametrize("order", [range(LAYERS)[::-1], [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11]])
def test_layers_registered_in_another_order_than_they_run(order: list[int]) -> None:
    short_of(in_other_order(order))


# ---- layers that are left out


def _same_norm(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (WIDTH,))


def _constant(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, -2.0, 3.0, 0.5, 1.5, -1.0, 0.25, 2.0])


def _shared_constant(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(WIDTH) * 0.125


def _kept_aside(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    x.detach()
    return torch.sin(x)


def _attribute(layer: Layer) -> None:
    layer.scale = torch.ones(WIDTH)


class Probe(Model):
    """Nothing below its head has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.row():
            x = layer(x)
        return self.head(x).square().mean()


LEFT_OUT = [
    Model(_same_norm),
    Model(_constant),
    Model(_shared_constant),
    Model(_kept_aside),
    holding(_attribute),
    Probe(),
]


@pytest.mark.parametrize("model", LEFT_OUT)
def test_equal_layers_are_left_out(model: Model) -> None:
    """Else the tests above could pass by leaving out nothing."""
    assert short_of(model).left_out


# ---- steps


@pytest.mark.parametrize(
    "model",
    [
        Model(_of(Normal)),
        Model(_of(Unchanged)),
        Model(_detached_by_the_operator),
        Model(_node_hook),
        Model(_constant),
        holding(_attribute_or_buffer),
        holding(_buffers_at_first),
        Probe(),
        in_other_order(list(range(LAYERS))[::-1]),
    ],
)
def test_steps_give_what_eager_does(model: Model) -> None:
    step = StaticGraph(model).compile(example().requires_grad_())
    for ours, eager in zip(results(step, model), results(model, model), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-7)


def results(call: nn.Module, model: Model) -> list[torch.Tensor]:
    model.zero_grad()
    x = example().requires_grad_()
    loss = call(x)
    loss.backward()
    given = [] if x.grad is None else [x.grad]
    return [loss.detach(), *given, *(p.grad for p in model.parameters() if p.grad is not None)]
