"""What newcomers do: each works as eager does, or is one clear error; nothing is silently wrong."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import module as all_modules
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from rudagraph.errors import ContractError, RudagraphError, UnsupportedError, UsageError
from rudagraph.runtime.step import Step
from rudagraph.static_graph import StaticGraph
from tests.runtime.support import gradients, plain_step


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(4, 6), nn.Linear(6, 3), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.drop(self.b(torch.tanh(self.a(x)))) * scale  # type: ignore[no-any-return]


class Optional(nn.Linear):
    """Gives a loss where there are labels."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: torch.Tensor, labels: Any = None) -> Any:  # type: ignore[override]
        logits = super().forward(x)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


@dataclasses.dataclass
class Setup:
    """A fresh model, a batch, and a step for them that is compiled when it is asked for."""

    model: Net
    x: torch.Tensor
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def step(self, **options: Any) -> Step:
        return plain_step(self.model, self.x, options=options)

    @property
    def graph(self) -> StaticGraph:
        return StaticGraph(self.model)


@pytest.fixture
def setup() -> Setup:
    torch.manual_seed(0)
    return Setup(Net(), torch.randn(5, 4))


# ---- before anything is compiled, and what is passed

Wrong = dict[str, tuple[Callable[[Setup], Any], type[Exception], tuple[str, ...]]]

CALLS: Wrong = {
    "a graph is called": (
        lambda s: s.graph(s.x),
        UsageError,
        ("not a step yet", "step = graph.compile(...)"),
    ),
    "a graph as a module": (lambda s: s.graph.parameters(), AttributeError, ("graph.model.param",)),
    "a step as a module": (
        lambda s: s.step().eval(),
        AttributeError,
        ("no module", "step.model.eval", "as_module"),
    ),
    "a layer of the model": (lambda s: s.step().drop, AttributeError, ("step.model.drop",)),
    "a misspelt method": (lambda s: s.step().explian(), AttributeError, ("no 'explian'",)),
    "the batch to StaticGraph": (
        lambda s: StaticGraph(s.model, s.x),
        UsageError,
        ("options by keyword", ".compile(...)"),
    ),
    "an option to compile": (
        lambda s: s.graph.compile(s.x, memory_budget="1GiB"),
        UsageError,
        ("memory_budget is an option of StaticGraph", "StaticGraph(model, memory_budget=...)"),
    ),
    "an unknown keyword": (
        lambda s: s.graph.compile(s.x, sclae=1.0),
        ContractError,
        ("unexpected keyword argument 'sclae'", "forward(x", "scale: "),
    ),
    "no batch": (lambda s: s.graph.compile(), ContractError, ("missing", "'x'")),
    "a batch in a dict": (
        lambda s: plain_step(s.model, {"x": s.x}),
        UsageError,
        ("must be Tensor, not dict",),
    ),
    "a NumPy batch": (
        lambda s: plain_step(s.model, s.x.numpy()),
        UnsupportedError,
        ("numpy.ndarray", "torch.from_numpy"),
    ),
    "a NumPy number": (
        lambda s: plain_step(s.model, s.x, scale=np.float32(2.0)),
        UnsupportedError,
        ("numpy.float32", ".item()"),
    ),
    "a list": (lambda s: plain_step(s.model, s.x.tolist()), UsageError, ("not list",)),
    "a generator": (
        lambda s: plain_step(s.model, (x for x in [s.x])),
        UnsupportedError,
        ("generator has no known structure",),
    ),
    "a module without forward": (
        lambda s: StaticGraph(nn.ModuleList([s.model])),
        UsageError,
        ("ModuleList has no forward",),
    ),
    "a lazy module": (
        lambda s: plain_step(nn.LazyLinear(3), s.x),
        UnsupportedError,
        ("no shape yet", "call the model once"),
    ),
    "a step in a graph": (
        lambda s: StaticGraph(s.step()),  # type: ignore[arg-type]
        UsageError,
        ("torch.nn.Module, not a Step",),
    ),
    "a typo in outputs": (
        lambda s: s.step(outputs="logits"),
        UsageError,
        ("'logits'", "one tensor: leave the option out"),
    ),
    "an output that is None": (
        lambda s: plain_step(Optional(), s.x, options={"outputs": "loss"}),
        UsageError,
        ("only 'loss' is kept, and that is None", "labels=..."),
    ),
    "a loss by name": (lambda s: StaticGraph(s.model, loss="mse"), UsageError, ("function",)),
    "a loss without targets": (
        lambda s: StaticGraph(s.model, loss=F.mse_loss).compile(s.x),
        UsageError,
        ("the output and 0 targets", "missing a required argument: 'target'", "targets=(y,)"),
    ),
    "targets too many": (
        lambda s: StaticGraph(s.model, loss=nn.MSELoss()).compile(s.x, targets=(s.x, s.x)),
        UsageError,
        ("2 targets", "MSELoss(input", "too many positional"),
    ),
    "a loss that learns": (
        lambda s: plain_step(s.model, s.x, targets=(), options={"loss": nn.Linear(3, 1)}),
        UnsupportedError,
        ("requires grad", "parameter"),
    ),
    "a budget in words": (
        lambda s: StaticGraph(s.model, memory_budget="lots"),
        UsageError,
        ("'lots' is not a size", "600MiB"),
    ),
    "no budget at all": (
        lambda s: StaticGraph(s.model, memory_budget=0),
        UsageError,
        ("0 is not",),
    ),
    "nothing in flight": (lambda s: StaticGraph(s.model, in_flight=0), UsageError, ("at least 1",)),
    "a number as text": (lambda s: StaticGraph(s.model, in_flight="2"), UsageError, ("got '2'",)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_says_what_to_write(setup: Setup, name: str) -> None:
    run, kind, words = CALLS[name]
    with pytest.raises(kind) as raised:
        run(setup)
    for word in words:
        assert word in str(raised.value)
    if kind is not AttributeError:
        assert isinstance(raised.value, RudagraphError)


def test_a_step_asks_for_its_attributes_as_any_object_does(setup: Setup) -> None:
    step = setup.step()
    assert not hasattr(step, "parameters") and not hasattr(step, "nothing")
    assert hasattr(step, "explain") and not hasattr(setup.graph, "state_dict")


# ---- around the call


def _inside_vmap(s: Setup) -> Any:
    return torch.vmap(s.step())(s.x[None])


def _inside_grad(s: Setup) -> Any:
    step = s.step()
    return torch.func.grad(lambda x: step(x).sum())(s.x)


def _forward_mode(s: Setup) -> Any:
    step = s.step()
    with forward_ad.dual_level():
        return step(forward_ad.make_dual(s.x, torch.ones_like(s.x)))


def _vectorized(s: Setup) -> Any:
    s.x.requires_grad_()
    return torch.autograd.functional.jacobian(s.step(), s.x, vectorize=True)


def _second_order(s: Setup) -> Any:
    loss = s.step()(s.x).sum()
    return torch.autograd.grad(loss, s.model.a.weight, create_graph=True)


def _checkpointed(s: Setup) -> Any:
    return checkpoint(s.step(), s.x, use_reentrant=False).sum().backward()


class Outer(nn.Module):
    def __init__(self, step: Step) -> None:
        super().__init__()
        self.out, self.step = nn.Linear(3, 2), step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.step(x))  # type: ignore[no-any-return]


class Around(nn.Module):
    """Calls a step of a model that it holds: a new parameter for the model is not the step's."""

    def __init__(self, s: Setup) -> None:
        super().__init__()
        self.model, self.step = s.model, s.step()

    def forward(self, x: torch.Tensor) -> Any:
        return self.step(x)


def _functional_call(s: Setup) -> Any:
    around = Around(s)
    other = {name: p.detach() * 2 for name, p in around.named_parameters()}
    return torch.func.functional_call(around, other, (s.x,))


def _compiled_without_gradients(s: Setup) -> Any:
    with torch.no_grad():
        step = s.step()
    return step(s.x)


SURROUNDINGS: Wrong = {
    "vmap": (_inside_vmap, UsageError, ("torch.func transforms", "step.model(...)")),
    "grad": (_inside_grad, UsageError, ("torch.func transforms",)),
    "forward mode": (_forward_mode, UsageError, ("forward-mode", "no tangents")),
    "vectorized jacobian": (_vectorized, UsageError, ("one upstream gradient at a time",)),
    "second order": (_second_order, UsageError, ("first-order", "create_graph")),
    "functional_call": (_functional_call, ContractError, ("requires_grad=False",)),
    "make_fx": (lambda s: make_fx(s.step())(s.x), UsageError, ("a trace", "make_fx")),
    "export": (
        lambda s: torch.export.export(Outer(s.step()), (s.x,)),
        UsageError,
        ("a trace", "torch.export"),
    ),
    "a step in a captured forward": (
        lambda s: plain_step(Outer(s.step()), s.x),
        UsageError,
        ("another StaticGraph", "step.model(...)"),
    ),
    "a checkpoint around": (_checkpointed, UsageError, ("in_flight=2",)),
    "compiled under no_grad": (_compiled_without_gradients, ContractError, ("no backward", "add")),
    "copied": (lambda s: copy.deepcopy(s.step()), UsageError, ("copy or pickle the model",)),
    "saved": (lambda s: torch.save(s.step(), io.BytesIO()), UsageError, ("bound to this model",)),
    "pickled": (lambda s: pickle.dumps(s.step()), UsageError, ("compile again",)),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_where_a_step_cannot_run_it_says_so(setup: Setup, name: str) -> None:
    run, kind, words = SURROUNDINGS[name]
    with pytest.raises(kind) as raised:
        run(setup)
    for word in words:
        assert word in str(raised.value)


# ---- what changes after compile


class Holder(nn.Module):
    """Reads in forward whatever a test has put into it."""

    def __init__(self, read: Callable[[Any], Any], **attributes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", None)
        self.read = read
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.weight * self.read(self)
        return x if self.mask is None else x * self.mask


@dataclasses.dataclass(slots=True)
class Slotted:
    scale: float = 1.0


@dataclasses.dataclass
class Settings:
    inner: Slotted = dataclasses.field(default_factory=Slotted)
    deep_config: Any = None


class Times:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, number: float) -> float:
        return number * self.factor


class Hidden(Times):
    """Holds more than plain values, so nobody looks into it."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor)
        self.stream = io.BytesIO()


def ones() -> torch.Tensor:
    return torch.ones(3)


def _deep() -> Settings:
    return Settings(deep_config=Settings(deep_config=Settings()))


# how forward reads the attribute `held`, what it is at first, how it changes, words of the error
CHANGES: dict[str, tuple[Callable[[Any], Any], Any, Callable[[Any], Any], str]] = {
    "a longer list of tensors": (
        lambda m: torch.stack(m.held).sum(0),
        lambda: [ones()],
        lambda m: m.held.append(ones()),
        "model.held holds other things",
    ),
    "a number beside a tensor": (
        lambda m: m.held[0][0] * m.held[0][1],
        lambda: [(ones(), 2.0)],
        lambda m: m.held.__setitem__(0, (m.held[0][0], 3.0)),
        "model.held holds other things",
    ),
    "a function in a dict": (
        lambda m: m.held["f"](m.weight),
        lambda: {"f": torch.tanh, "t": ones()},
        lambda m: m.held.__setitem__("f", torch.relu),
        "model.held holds other things",
    ),
    "a NumPy number": (
        lambda m: float(m.held),
        lambda: np.float32(2),
        lambda m: setattr(m, "held", np.float32(3)),
        "model.held holds other things",
    ),
    "a NumPy array": (
        lambda m: float(m.held[0]),
        lambda: np.ones(3, dtype=np.float32),
        lambda m: m.held.__setitem__(0, 5.0),
        "model.held holds other things",
    ),
    "a dataclass with slots": (
        lambda m: m.held.scale,
        Slotted,
        lambda m: setattr(m.held, "scale", 5.0),
        "model.held holds other things",
    ),
    "a field of a dataclass": (
        lambda m: m.held.inner.scale,
        Settings,
        lambda m: setattr(m.held.inner, "scale", 5.0),
        "held.inner holds other things",
    ),
    "a configuration in a configuration": (
        lambda m: m.held.deep_config.deep_config.inner.scale,
        _deep,
        lambda m: setattr(m.held.deep_config.deep_config, "inner", Slotted(3.0)),
        "held.deep_config.deep_config.inner is another object",
    ),
    "another dataclass": (
        lambda m: m.held.inner.scale,
        Settings,
        lambda m: setattr(m, "held", Settings(Slotted(7.0))),
        "model.held is another object",
    ),
    "a buffer that was None": (
        lambda m: 1.0,
        lambda: None,
        lambda m: setattr(m, "mask", torch.zeros(3)),
        "model.mask was None when the step was compiled",
    ),
    "a field of a plain object": (
        lambda m: m.held.factor,
        lambda: Times(2.0),
        lambda m: setattr(m.held, "factor", 3.0),
        "held.factor is 3.0, the step was compiled for 2.0",
    ),
    "another callable": (
        lambda m: m.held(2.0),
        lambda: Hidden(2.0),
        lambda m: setattr(m, "held", Hidden(3.0)),
        "model.held is another object",
    ),
    "another object": (
        lambda m: m.held(2.0),
        lambda: Times(2.0),
        lambda m: setattr(m, "held", Times(3.0)),
        "held.factor is 3.0, the step was compiled for 2.0",
    ),
    "a slice": (
        lambda m: torch.arange(5.0)[m.held],
        lambda: slice(0, 3),
        lambda m: setattr(m, "held", slice(1, 4)),
        "model.held is slice(1, 4, None), the step was compiled for slice(0, 3, None)",
    ),
    "a whole number for a fraction": (
        lambda m: m.held,
        lambda: 2,
        lambda m: setattr(m, "held", 2.0),
        "model.held is 2.0, the step was compiled for 2",
    ),
    "another sign of zero": (
        lambda m: torch.ones(3) / m.held,
        lambda: 0.0,
        lambda m: setattr(m, "held", -0.0),
        "model.held is -0.0, the step was compiled for 0.0",
    ),
    "a tensor for a number": (
        lambda m: m.held,
        lambda: 2.0,
        lambda m: setattr(m, "held", ones() * 3),
        "model.held is tensor([3., 3., 3.]), the step was compiled for 2.0",
    ),
    "a dtype": (
        lambda m: torch.ones(3, dtype=m.held),
        lambda: torch.float32,
        lambda m: setattr(m, "held", torch.float64),
        "model.held is torch.float64, the step was compiled for torch.float32",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_forward_read_at_compile_may_not_change(name: str) -> None:
    read, make, change, words = CHANGES[name]
    model, x = Holder(read, held=make()), torch.randn(2, 3)
    step = plain_step(model, x)
    torch.testing.assert_close(step(x), model(x))
    change(model)
    with pytest.raises(ContractError) as raised:
        step(x)
    assert words in str(raised.value)
    assert "compile the step again" in raised.value.hint or "step.add" in raised.value.hint


class Remembers(nn.Module):
    """Keeps what it saw last, and makes a table on its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.rows: int | None = None
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows = x.shape[0]
        if self.table is None:
            self.table = torch.arange(3.0)
        return x * self.weight * self.table


def test_what_forward_sets_for_itself_may_change() -> None:
    model, x = Remembers(), torch.randn(2, 3)
    with pytest.raises(UnsupportedError, match=r"attribute (rows|table)") as raised:
        plain_step(model, x)
    assert "call the model once before compile()" in raised.value.hint
    model(torch.randn(4, 3))
    step = plain_step(model, x)
    assert step.contract.modules[0].renewed == ("rows",) and model.rows == 4
    want = step(x).detach()
    model(torch.randn(5, 3))
    assert model.rows == 5
    torch.testing.assert_close(step(x), want)


def test_a_bias_that_comes_later_is_noticed() -> None:
    model, x = nn.Linear(4, 3, bias=False), torch.randn(2, 4)
    step = plain_step(model, x)
    model.bias = nn.Parameter(torch.ones(3))
    with pytest.raises(ContractError, match=r"model\.bias was None"):
        step(x)
    model.bias = None  # type: ignore[assignment]
    torch.testing.assert_close(step(x), model(x))


@pytest.mark.parametrize("what", ["removed", "pruned", "parametrized"])
def test_a_parameter_that_goes_away_is_named(setup: Setup, what: str) -> None:
    step, layer = setup.step(), setup.model.a
    if what == "removed":
        del layer.weight
    elif what == "pruned":
        prune.l1_unstructured(layer, "weight", 0.5)
    else:
        parametrizations.weight_norm(layer)
    with pytest.raises(ContractError, match=r"a\b") as raised:
        step(setup.x)
    assert "compile" in raised.value.hint


class Wrapper(torch.Tensor):
    """A tensor whose numbers are elsewhere, as those of distributed parameters are."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=True
        )

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_a_parameter_that_wraps_others_is_named(setup: Setup) -> None:
    step = setup.step()
    setup.model.a._parameters["weight"] = Wrapper(torch.ones(6, 4))  # type: ignore[assignment]
    with pytest.raises(ContractError, match=r"parameter a\.weight is a Wrapper, which wraps"):
        step(setup.x)


def test_hooks_of_all_modules_are_part_of_what_a_step_depends_on(setup: Setup) -> None:
    step = setup.step()
    handle = all_modules.register_module_forward_hook(lambda module, given, output: output * 2)
    try:
        with pytest.raises(ContractError, match="hooks of all modules"):
            step(setup.x)
        with_hook = plain_step(setup.model, setup.x)
        torch.testing.assert_close(with_hook(setup.x), setup.model(setup.x))
    finally:
        handle.remove()
    with pytest.raises(ContractError, match="hooks of all modules"):
        with_hook(setup.x)
    torch.testing.assert_close(step(setup.x), setup.model(setup.x))


def test_a_loss_module_is_watched_as_the_model_is() -> None:
    model, x, y = nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    step = plain_step(model, x, targets=(y,), options={"loss": loss})
    torch.testing.assert_close(step(x, targets=(y,)), loss(model(x), y))
    loss.label_smoothing = 0.5
    with pytest.raises(ContractError, match=r"the loss\.label_smoothing is 0\.5") as raised:
        step(x, targets=(y,))
    assert "new StaticGraph" in raised.value.hint
    loss.label_smoothing = 0.0
    before, loss.weight = loss.weight, torch.tensor([3.0, 2.0, 1.0])
    with pytest.raises(ContractError, match="the loss holds other tensors"):
        step(x, targets=(y,))
    loss.weight = before
    torch.testing.assert_close(step(x, targets=(y,)), loss(model(x), y))


@pytest.mark.parametrize("rows", [5, 2])
def test_a_label_without_a_class_is_named_with_the_number_of_classes(rows: int) -> None:
    model, x, y = nn.Linear(4, 3), torch.randn(rows, 4), torch.zeros(rows, dtype=torch.int64)
    step = StaticGraph(model, loss=nn.CrossEntropyLoss()).compile(x, targets=(y,))
    with pytest.raises(ContractError, match="7 is out of range for 3 classes"):
        step(x, targets=(y + 7,))
    torch.testing.assert_close(step(x, targets=(y,)), F.cross_entropy(model(x), y))


# ---- what works as it does in eager


def assert_as_eager(setup: Setup, run: Callable[[], torch.Tensor]) -> None:
    got = gradients(setup.model, run)
    want = gradients(setup.model, lambda: setup.model(setup.x).sum())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def _with_checkpoint(s: Setup) -> Callable[[], torch.Tensor]:
    step = s.step(in_flight=2)
    return lambda: checkpoint(step, s.x, use_reentrant=False).sum()


def _with_flops(s: Setup) -> Callable[[], torch.Tensor]:
    step = s.step()

    def run() -> torch.Tensor:
        with FlopCounterMode(display=False):
            return step(s.x).sum()  # type: ignore[no-any-return]

    return run


def _with_anomalies(s: Setup) -> Callable[[], torch.Tensor]:
    step = s.step()

    def run() -> torch.Tensor:
        with torch.autograd.set_detect_anomaly(True):
            return step(s.x).sum()  # type: ignore[no-any-return]

    return run


def _with_default_device(s: Setup) -> Callable[[], torch.Tensor]:
    step = s.step()

    def run() -> torch.Tensor:
        with torch.device("meta"):
            return step(s.x).sum()  # type: ignore[no-any-return]

    return run


def _under_torch_compile(s: Setup) -> Callable[[], torch.Tensor]:
    step = s.step()
    return torch.compile(lambda: step(s.x).sum(), backend="eager")


def _two_steps(s: Setup) -> Callable[[], torch.Tensor]:
    one, other = s.step(), s.step()
    return lambda: one(s.x).sum() * 0.25 + other(s.x).sum() * 0.75


def _from_a_thread(s: Setup) -> Callable[[], torch.Tensor]:
    step, got = s.step(), []

    def run() -> torch.Tensor:
        thread = threading.Thread(target=lambda: got.append(step(s.x).sum()))
        thread.start()
        thread.join()
        return got.pop()

    return run


def _in_shared_memory(s: Setup) -> Callable[[], torch.Tensor]:
    step = s.step()
    s.model.share_memory()
    return lambda: step(s.x).sum()


def _loaded(s: Setup) -> Callable[[], torch.Tensor]:
    step = s.step()
    state = {name: value + 1 for name, value in s.model.state_dict().items()}
    s.model.load_state_dict(state, assign=True)
    return lambda: step(s.x).sum()


WORKS: dict[str, Callable[[Setup], Callable[[], torch.Tensor]]] = {
    "a checkpoint, two in flight": _with_checkpoint,
    "a counter of operations": _with_flops,
    "anomaly detection": _with_anomalies,
    "another default device": _with_default_device,
    "torch.compile around": _under_torch_compile,
    "two steps of one model": _two_steps,
    "a call from a thread": _from_a_thread,
    "shared memory": _in_shared_memory,
    "a state dict assigned": _loaded,
}


_SLOW = "torch.compile around"  # it brings in all of Dynamo


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.full] * (n == _SLOW)) for n in WORKS]
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Dynamo does not know")
def test_as_in_eager(setup: Setup, name: str) -> None:
    assert_as_eager(setup, WORKS[name](setup))


def test_parameters_tied_after_compile_get_the_sum_of_their_gradients() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(3, 4)
    step = plain_step(model, x)
    model[1].weight = model[0].weight
    got = gradients(model, lambda: step(x).sum())
    for one, other in zip(got, gradients(model, lambda: model(x).sum()), strict=True):
        torch.testing.assert_close(one, other)


def test_an_optimizer_made_before_a_state_dict_was_assigned_stays_behind_as_in_eager(
    setup: Setup,
) -> None:
    optimizer, step = torch.optim.SGD(setup.model.parameters(), 0.1), setup.step()
    state = {name: value + 1 for name, value in setup.model.state_dict().items()}
    setup.model.load_state_dict(state, assign=True)
    step(setup.x).sum().backward()
    optimizer.step()
    torch.testing.assert_close(step(setup.x), setup.model(setup.x))
    torch.testing.assert_close(setup.model.a.bias.detach(), state["a.bias"])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "step"])
def test_tensors_of_inference_mode_cannot_be_saved(setup: Setup, compiled: bool) -> None:
    run: Any = setup.step() if compiled else setup.model
    with torch.inference_mode():
        x = setup.x * 1
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        run(x)
    with torch.no_grad():
        torch.testing.assert_close(run(x), setup.model(x))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "step"])
def test_backward_of_a_frozen_model(setup: Setup, compiled: bool) -> None:
    setup.model.requires_grad_(False)
    run: Any = setup.step() if compiled else setup.model
    with pytest.raises(RuntimeError, match="does not require grad"):
        run(setup.x).sum().backward()
