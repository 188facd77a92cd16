"""The contract: what is written down, what passes, and what each violation says."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from rudagraph.errors import ContractError
from rudagraph.runtime.step import Step
from tests.runtime.support import plain_step


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


@dataclasses.dataclass
class Settings:
    power: int = 1


class Config:
    def __init__(self) -> None:
        self.scale = 2.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.linear(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.block = Block()
        self.head = nn.Linear(4, 4, bias=False)
        self.twin = nn.Linear(4, 4, bias=False)
        self.twin.weight = self.head.weight
        self.shift = torch.ones(4)
        self.tables = [torch.ones(4), torch.zeros(4)]
        self.scales = [1.0, 2.0]
        self.by_name = {"a": [1.0], "b": (2.0, 3.0)}
        self.kinds = {"x", "y"}
        self.activation = torch.relu
        self.reduce = Mode.SUM
        self.settings = Settings()

    def forward(
        self, x: torch.Tensor, batch: Any = None, *, scale: float = 1.0, mode: str = "a"
    ) -> torch.Tensor:
        y = self.twin(self.head(self.block(x))) * scale * self.config.scale
        y = self.activation(y + self.shift + self.tables[0]) * sum(self.scales) ** self.helper()
        return y if batch is None else y + batch["mask"]

    def helper(self) -> int:
        return self.settings.power


@dataclass
class Setup:
    model: Net
    step: Step
    x: torch.Tensor
    mask: torch.Tensor

    def call(self, **changes: Any) -> torch.Tensor:
        keywords: dict[str, Any] = {"batch": {"mask": self.mask}, "scale": 3.0, **changes}
        result: torch.Tensor = self.step(keywords.pop("x", self.x), **keywords)
        return result


@pytest.fixture(scope="module")
def compiled() -> Setup:
    torch.manual_seed(0)
    model = Net()
    x, mask = torch.randn(3, 4), torch.randn(3, 4)
    return Setup(model, plain_step(model, x, batch={"mask": mask}, scale=3.0), x, mask)


def test_the_contract_prints_everything_it_holds(compiled: Setup) -> None:
    text = str(compiled.step.contract)
    for line in (
        "modes: grad enabled, autocast off, default float32",
        "  batch.mask: f32[3,4] cpu",
        "  parameter head.weight = twin.weight: f32[4,4] cpu requires grad",
        "  buffer block.norm.running_mean: f32[4] cpu",
        "  buffer shift: f32[4] cpu",
        "  buffer tables[0]: f32[4] cpu",
        "  block.drop: Dropout train p=0.0 inplace=False",
        "  config: Config scale=2.0",
    ):
        assert line in text


def test_calls_that_differ_only_in_layout_or_spelling_fit(compiled: Setup) -> None:
    want = compiled.call().detach()
    for x in (compiled.x.t().contiguous().t(), compiled.x.repeat(1, 2)[:, :4].clone()):
        torch.testing.assert_close(compiled.call(x=x), want)
    wide = torch.zeros(3, 8)
    wide[:, ::2] = compiled.x
    torch.testing.assert_close(compiled.call(x=wide[:, ::2]), want)
    spelled = compiled.step(scale=3.0, batch={"mask": compiled.mask}, x=compiled.x, mode="a")
    torch.testing.assert_close(spelled, want)


ARGUMENTS: dict[str, tuple[Callable[[Setup], Any], list[str]]] = {
    "larger": (
        lambda s: s.call(x=torch.ones(6, 4)),
        ["argument x has shape (6, 4), the step was compiled for (3, 4)", "step.add", "drop_last"],
    ),
    "rank": (lambda s: s.call(x=torch.ones(3, 1, 4)), ["x has shape (3, 1, 4)", "(3, 4)"]),
    "nested": (
        lambda s: s.call(batch={"mask": torch.ones(1, 4)}),
        ["argument batch.mask has shape (1, 4)", "where: argument batch.mask"],
    ),
    "dtype": (
        lambda s: s.call(x=s.x.double()),
        ["argument x has dtype float64, the step was compiled for float32"],
    ),
    "float": (lambda s: s.call(scale=4.0), ["scale is the float 4.0", "the float 3.0"]),
    "kind of number": (lambda s: s.call(scale=3), ["scale is the int 3", "the float 3.0"]),
    "default": (
        lambda s: s.step(s.x, batch={"mask": s.mask}),
        ["argument scale is left out; the step was compiled for the float 3.0"],
    ),
    "string": (lambda s: s.call(mode="b"), ["argument mode is the str 'b'", "without it"]),
    "tensor left out": (lambda s: s.call(batch=None), ["batch is left out"]),
    "keys": (
        lambda s: s.call(batch={"mask": s.mask, "more": s.mask}),
        ["batch is a dict of 2 (mask, more)", "a dict of 1 (mask)"],
    ),
    "no tensor": (lambda s: s.call(x=2.0), ["argument x is the float 2.0", "a tensor"]),
    "requires grad": (
        lambda s: s.call(x=s.x.clone().requires_grad_()),
        ["argument x requires grad", "compiled for requires_grad=False"],
    ),
    "missing": (lambda s: s.step(), ["missing a required argument: 'x'"]),
    "too many": (lambda s: s.step(s.x, {}, s.x), ["too many positional arguments"]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_another_argument_is_named_with_both_sides(compiled: Setup, name: str) -> None:
    run, words = ARGUMENTS[name]
    with pytest.raises(ContractError) as raised:
        run(compiled)
    for word in words:
        assert word in str(raised.value)
    assert compiled.call().requires_grad  # and the next good call works


def test_only_another_shape_speaks_of_the_last_batch(compiled: Setup) -> None:
    with pytest.raises(ContractError) as raised:
        compiled.call(scale=4.0)
    assert "step.add" in raised.value.hint and "drop_last" not in raised.value.hint


def _set(path: str, value: Any) -> Callable[[Net], Callable[[], None]]:
    """Sets an attribute; gives the way back."""
    owner_path, _, name = path.rpartition(".")

    def change(model: Net) -> Callable[[], None]:
        owner: Any = model
        for part in owner_path.split(".") if owner_path else ():
            owner = getattr(owner, part)
        before = getattr(owner, name)
        setattr(owner, name, value)
        return lambda: setattr(owner, name, before)

    return change


def _nothing(_: object) -> None:
    return None


def _eval(model: Net) -> Callable[[], None]:
    model.block.norm.eval()
    return lambda: _nothing(model.train())


def _freeze(model: Net) -> Callable[[], None]:
    model.head.weight.requires_grad_(False)
    return lambda: _nothing(model.head.weight.requires_grad_(True))


def _untie(model: Net) -> Callable[[], None]:
    model.twin.weight = nn.Parameter(model.head.weight.detach().clone())
    return lambda: setattr(model.twin, "weight", model.head.weight)


def _hook(kind: str) -> Callable[[Net], Callable[[], None]]:
    def change(model: Net) -> Callable[[], None]:
        register = getattr(model.block, f"register_{kind}_hook")
        handle = register(lambda *_: None)
        return lambda: handle.remove()

    return change


def _module(model: Net) -> Callable[[], None]:
    before = model.block.drop
    model.block.drop = nn.Identity()  # type: ignore[assignment]
    return lambda: setattr(model.block, "drop", before)


def _alike(model: Net) -> Callable[[], None]:
    before = model.block.drop
    model.block.drop = nn.Dropout(before.p)
    return lambda: setattr(model.block, "drop", before)


def _reshape(model: Net) -> Callable[[], None]:
    before = model.head.weight.data
    model.head.weight.data = torch.ones(2, 4)
    return lambda: setattr(model.head.weight, "data", before)


def _double(model: Net) -> Callable[[], None]:
    model.block.linear.double()
    return lambda: _nothing(model.block.linear.float())


def _no_tensor(model: Net) -> Callable[[], None]:
    before = model.tables[0]
    model.tables[0] = "gone"  # type: ignore[call-overload]
    return lambda: model.tables.__setitem__(0, before)


def _changed_in_place(name: str, change: Callable[[Any], Any]) -> Any:
    def run(model: Net) -> Callable[[], None]:
        before = copy.deepcopy(getattr(model, name))
        change(getattr(model, name))
        return lambda: setattr(model, name, before)

    return run


def _on_instance(path: str, name: str) -> Callable[[Net], Callable[[], None]]:
    def change(model: Net) -> Callable[[], None]:
        owner = model.get_submodule(path)
        setattr(owner, name, lambda *_: torch.zeros(3, 4))
        return lambda: delattr(owner, name)

    return change


def _on_class(kind: Any, name: str) -> Callable[[Net], Callable[[], None]]:
    def change(model: Net) -> Callable[[], None]:
        own = name in vars(kind)
        before = getattr(kind, name)
        setattr(kind, name, lambda self, *_: before(self, *_))
        return lambda: setattr(kind, name, before) if own else delattr(kind, name)

    return change


def _added(model: Net) -> Callable[[], None]:
    model.block.extra = nn.Linear(1, 1)
    return lambda: delattr(model.block, "extra")


CHANGES: dict[str, tuple[Callable[[Net], Callable[[], None]], list[str]]] = {
    "mode": (_eval, ["block.norm is in eval mode, the step was compiled for train", "step.add"]),
    "attribute": (
        _set("block.drop.p", 0.5),
        ["block.drop.p is 0.5, the step was compiled for 0.0"],
    ),
    "eps": (_set("block.norm.eps", 1e-3), ["block.norm.eps is 0.001"]),
    "configuration": (_set("config.scale", 5.0), ["config.scale is 5.0", "compiled for 2.0"]),
    "frozen": (_freeze, ["parameter head.weight has requires_grad=False"]),
    "untied": (_untie, ["head.weight and twin.weight were one tied tensor", "tie_weights"]),
    "forward hook": (_hook("forward"), ["block has 1 hooks, the step was compiled with 0"]),
    "forward pre hook": (_hook("forward_pre"), ["block has 1 hooks"]),
    "backward hook": (_hook("full_backward"), ["block has 1 hooks"]),
    "module": (_module, ["block.drop is a Identity, the step was compiled for a Dropout"]),
    "module alike": (_alike, ["block.drop is another module than when the step was compiled"]),
    "another module": (_added, ["module block.extra is new"]),
    "shape": (_reshape, ["parameter head.weight is f32[2,4] (2, 4)", "(4, 4)"]),
    "dtype": (_double, ["parameter block.linear.weight is f64[4,4]", "f32[4,4]"]),
    "list": (
        _changed_in_place("scales", lambda scales: scales.__setitem__(1, 3.0)),
        ["model.scales is [1.0, 3.0], the step was compiled for [1.0, 2.0]", "a record"],
    ),
    "longer list": (_changed_in_place("scales", lambda s: s.append(3.0)), ["[1.0, 2.0, 3.0]"]),
    "other list": (_set("scales", [2.0, 1.0]), ["model.scales is [2.0, 1.0]"]),
    "list in dict": (
        _changed_in_place("by_name", lambda names: names["a"].append(2.0)),
        ["model.by_name is {'a': [1.0, 2.0], 'b': (2.0, 3.0)}"],
    ),
    "set": (_changed_in_place("kinds", lambda kinds: kinds.discard("x")), ["model.kinds is {'y'}"]),
    "dataclass": (_set("settings.power", 2), ["settings.power is 2, the step was compiled for 1"]),
    "function": (
        _set("activation", torch.tanh),
        ["model.activation is tanh, the step was compiled for relu", "compile the step again"],
    ),
    "enum": (_set("reduce", Mode.MEAN), ["model.reduce is <Mode.MEAN: 2>"]),
    "forward of a module": (
        _on_instance("block.linear", "forward"),
        ["block.linear.forward was set on the instance", "where: block.linear.forward"],
    ),
    "forward of the model": (_on_instance("", "forward"), ["model.forward was set on the"]),
    "method of the model": (_on_instance("", "helper"), ["model.helper was set on the instance"]),
    "forward of a class": (_on_class(Block, "forward"), ["Block.forward was changed on the class"]),
    "forward of PyTorch's class": (_on_class(nn.Linear, "forward"), ["Linear.forward was changed"]),
    "inherited forward": (
        _on_class(nn.BatchNorm1d, "forward"),
        ["BatchNorm1d.forward was changed"],
    ),
    "method of a class": (_on_class(Net, "helper"), ["Net.helper was changed on the class"]),
    "no tensor": (_no_tensor, ["buffer tables[0] is 'gone', no tensor"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_is_named(compiled: Setup, name: str) -> None:
    change, words = CHANGES[name]
    undo = change(compiled.model)
    try:
        with pytest.raises(ContractError) as raised:
            compiled.call()
        for word in words:
            assert word in str(raised.value)
    finally:
        undo()
    assert compiled.call().requires_grad


def test_attributes_that_forward_cannot_have_read_may_come_and_go(compiled: Setup) -> None:
    compiled.model.block.note = "run 3"  # type: ignore[assignment]
    assert compiled.call().requires_grad
    del compiled.model.block.note
    assert compiled.call().requires_grad
    with pytest.raises(ContractError, match=r"block\.linear\.forward"):
        undo = _on_instance("block.linear", "forward")(compiled.model)
        try:
            compiled.call()
        finally:
            undo()
    assert compiled.call().requires_grad


def test_a_function_kept_at_compile_and_replaced_is_named() -> None:
    model = nn.Linear(4, 4)
    model.forward = lambda x: x * 2  # type: ignore[assignment, method-assign]
    step = plain_step(model, torch.ones(3, 4))
    assert step(torch.ones(3, 4)).sum() == 24
    model.forward = lambda x: x * 3  # type: ignore[assignment, method-assign]
    with pytest.raises(ContractError, match=r"model\.forward is .*lambda"):
        step(torch.ones(3, 4))


def test_modes_around_the_call_are_part_of_the_contract(compiled: Setup) -> None:
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ContractError, match="autocast is bfloat16, the step was compiled for off"),
    ):
        compiled.call()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ContractError, match="default dtype is float64"):
            compiled.call()
    finally:
        torch.set_default_dtype(torch.float32)


def test_swapped_parameters_are_used_not_refused(compiled: Setup) -> None:
    model = copy.deepcopy(compiled.model)
    step = plain_step(model, compiled.x)
    state = {name: value + 1 for name, value in model.state_dict().items()}
    state["twin.weight"] = state["head.weight"]
    model.load_state_dict(state, assign=True)
    model.twin.weight = model.head.weight
    model.shift = torch.full((4,), 7.0)
    got = step(compiled.x)
    torch.testing.assert_close(got, copy.deepcopy(model)(compiled.x))
    got.sum().backward()
    assert model.head.weight.grad is not None


def test_hooks_present_at_compile_belong_to_the_contract() -> None:
    model = Block()
    handle = model.linear.register_forward_hook(lambda module, given, output: output * 2)
    x = torch.randn(3, 4)
    step = plain_step(model, x)
    assert "linear: Linear train" in str(step.contract)
    assert "hooks: forward_hook" in str(step.contract)
    step(x).sum().backward()
    handle.remove()
    with pytest.raises(ContractError, match="linear has 0 hooks, the step was compiled with 1"):
        step(x)


def test_differences_of_one_kind_are_one_line(compiled: Setup) -> None:
    compiled.model.eval()
    try:
        with pytest.raises(ContractError) as raised:
            compiled.call()
    finally:
        compiled.model.train()
    assert raised.value.what == (
        "model is in eval mode, the step was compiled for train mode; "
        "6 more likewise: block, block.linear, block.norm, block.drop, …"
    )


def test_several_differences_are_listed(compiled: Setup) -> None:
    with pytest.raises(ContractError, match=r"also: argument batch\.mask has shape"):
        compiled.call(x=torch.ones(6, 4), batch={"mask": torch.ones(6, 4)})
