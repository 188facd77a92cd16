"""Values taken apart and rebuilt: paths, types, what is kept of an output and what is dropped."""

from __future__ import annotations

import enum
from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch

from rudagraph.errors import ContractError, UnsupportedError, UsageError
from rudagraph.ir.tree import tensor_leaves
from rudagraph.runtime.arguments import Arguments, call_builder, key_of
from rudagraph.runtime.structure import builder, take_apart, take_output_apart


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Batch:
    tokens: Any
    mask: Any = None
    size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", 7)


class Colour(enum.Enum):
    RED = 1


class Lookup(UserDict[str, Any]):
    pass


class Names(list[Any]):
    pass


def t(value: float) -> torch.Tensor:
    return torch.tensor(value)


VALUES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: t(1),
    "dict": lambda: {"b": t(1), "a": {"c": t(2), 3: None}},
    "ordered": lambda: OrderedDict(z=t(1), a="text"),
    "tuple": lambda: (t(1), [t(2), 1.5], ()),
    "namedtuple": lambda: Pair(t(1), Pair(t(2), True)),
    "dataclass": lambda: Batch(t(1), mask=[t(2)]),
    "userdict": lambda: Lookup(x=t(1), y=2),
    "list subclass": lambda: Names([t(1), t(2)]),
    "values": lambda: (torch.float16, torch.device("cpu"), Colour.RED, torch.relu, 2j, b"x"),
}


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left is right
    if isinstance(left, dict | UserDict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Batch):
        return all(same(v, getattr(right, k)) for k, v in left.__dict__.items())
    return bool(left == right)


@pytest.mark.parametrize("name", VALUES)
def test_rebuilt_value_equals_the_one_taken_apart(name: str) -> None:
    value = VALUES[name]()
    leaves: list[torch.Tensor] = []
    tree = take_apart(value, "value", leaves)
    assert same(builder(tree)(leaves), value)
    assert [leaf.index for leaf in tensor_leaves(tree)] == list(range(len(leaves)))


def test_paths_are_spelled_as_the_user_would() -> None:
    value = {"a": [t(1), Pair(t(2), t(3))], "129x65": {"x.y": t(4)}, 5: Batch(t(6))}
    tree = take_apart(value, "", [])
    assert [leaf.path for leaf in tensor_leaves(tree)] == [
        "a[0]",
        "a[1].left",
        "a[1].right",
        "['129x65']['x.y']",
        "[5].tokens",
    ]


def test_a_local_dataclass_is_found_again() -> None:
    @dataclass
    class Local:
        x: Any

    leaves: list[torch.Tensor] = []
    tree = take_apart(Local(t(1)), "", leaves)
    assert type(builder(tree)(leaves)) is Local


def test_unknown_structure_is_refused_with_its_path() -> None:
    with pytest.raises(UnsupportedError, match=r"object has no known structure\n.*batch\[1\]"):
        take_apart([t(1), object()], "batch", [])
    with pytest.raises(UnsupportedError, match="has the key"):
        take_apart({(1, 2): t(1)}, "batch", [])


def test_outputs_keeps_a_path_and_what_lies_below_it() -> None:
    output = {"loss": t(1), "hidden": [t(2), t(3)], "n": 4}
    template, leaves = take_output_apart(output, ("hidden", "loss"))
    assert [leaf.path for leaf in template.leaves] == ["loss", "hidden[0]", "hidden[1]"]
    template, leaves = take_output_apart(output, "hidden[1]")
    assert leaves == [output["hidden"][1]]
    rebuilt = builder(template.tree)(leaves)
    assert rebuilt["n"] == 4
    with pytest.raises(UsageError, match=r"outputs=\('hidden\[1\]', 'loss'\)"):
        rebuilt["loss"].backward()


def test_outputs_function_decides_what_is_returned() -> None:
    template, leaves = take_output_apart({"x": t(3)}, lambda output: output["x"])
    assert template.leaves[0].path == ""
    assert builder(template.tree)(leaves) is leaves[0]


def test_outputs_path_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'logits'\? valid are logits, loss"):
        take_output_apart({"loss": t(1), "logits": t(2)}, "logit")


USES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda d: d.shape,
    "method": lambda d: d.sum(),
    "add": lambda d: d + 1,
    "reversed add": lambda d: torch.ones(2) + d,
    "function": lambda d: torch.stack([torch.ones(()), d]),
    "index": lambda d: d[0],
    "length": lambda d: len(d),
    "loop": lambda d: list(d),
    "truth": lambda d: bool(d),
    "number": lambda d: float(d),
    "compare": lambda d: d == 1,
    "hash": lambda d: {d},
    "assign": lambda d: setattr(d, "grad", None),
}


@pytest.mark.parametrize("use", USES)
def test_a_dropped_output_raises_at_any_use(use: str) -> None:
    template, leaves = take_output_apart({"loss": t(1), "logits": t(2)}, "loss")
    dropped = builder(template.tree)(leaves)["logits"]
    assert "logits was not kept" in repr(dropped)
    with pytest.raises(UsageError, match="logits was not kept"):
        USES[use](dropped)


def test_model_output_and_cache() -> None:
    pytest.importorskip("transformers")
    from transformers.cache_utils import DynamicCache
    from transformers.modeling_outputs import CausalLMOutputWithPast

    output = CausalLMOutputWithPast(loss=t(1), logits=t(2), past_key_values=DynamicCache())
    template, leaves = take_output_apart(output)
    rebuilt = builder(template.tree)(leaves)
    assert type(rebuilt) is CausalLMOutputWithPast
    assert rebuilt.loss is leaves[0] and rebuilt["logits"] is leaves[1] and rebuilt[1] is leaves[1]
    assert rebuilt.attentions is None and list(rebuilt)[:2] == ["loss", "logits"]
    with pytest.raises(UsageError, match="cache is no output of a training step"):
        rebuilt.past_key_values.get_seq_length()
    with pytest.raises(UnsupportedError, match="DynamicCache has no known structure"):
        take_apart(DynamicCache(), "past_key_values", [])


class Model:
    def forward(
        self, tokens: Any, batch: Any = None, *xs: Any, scale: float = 1.0, **more: Any
    ) -> None: ...


def test_arguments_have_one_key_however_they_are_written() -> None:
    arguments = Arguments(Model().forward)
    a, b = t(1), t(2)
    positional = arguments.flatten((a, b), {})
    keywords = arguments.flatten((), {"batch": b, "tokens": a})
    assert positional == keywords == ([a, b], ("tokens", "batch"))
    assert arguments.flatten((a,), {}) == arguments.flatten((a, None), {"scale": 1.0})
    assert arguments.flatten((a,), {"scale": 2.0}) != arguments.flatten((a,), {})
    assert arguments.flatten((a,), {"scale": 2}) != arguments.flatten((a,), {"scale": 2.0})
    nan = float("nan")
    assert arguments.flatten((a,), {"scale": nan}) == arguments.flatten((a,), {"scale": -nan + 0})


def test_a_described_call_agrees_with_the_fast_way_and_can_be_rebuilt() -> None:
    arguments = Arguments(Model().forward)
    args = (t(1), {"mask": t(2), "n": 3}, t(4), [t(5)])
    kwargs = {"scale": 0.5, "z": t(6), "a": (t(7),)}
    targets = (t(8), {"y": t(9)})
    described = arguments.describe(args, kwargs, targets)
    assert described.paths == (
        "tokens",
        "batch.mask",
        "xs[0]",
        "xs[1][0]",
        "a[0]",
        "z",
        "loss targets[0]",
        "loss targets[1].y",
    )
    leaves, key = arguments.flatten(args, kwargs, targets)
    assert key == described.key and all(map(same, leaves, described.leaves))
    rebuilt = call_builder(described.tree)(described.leaves)
    assert same(rebuilt[0], args) and same(rebuilt[1], kwargs) and same(rebuilt[2], targets)


@pytest.mark.parametrize("name", VALUES)
def test_a_described_call_has_the_key_of_the_fast_way(name: str) -> None:
    arguments = Arguments(Model().forward)
    value = VALUES[name]()
    for args, targets in (((value,), ()), ((t(1), value, t(2)), (t(3), value))):
        described = arguments.describe(args, {"scale": 2.0}, targets)
        assert key_of(described.arguments) == arguments.flatten(args, {"scale": 2.0}, targets)[1]


def test_attributes_beside_the_fields_are_part_of_the_key() -> None:
    arguments = Arguments(Model().forward)
    one, other = Batch(t(1)), Batch(t(1))
    assert arguments.flatten((one,), {})[1] == arguments.flatten((other,), {})[1]
    object.__setattr__(other, "rank", 8)
    assert arguments.flatten((one,), {})[1] != arguments.flatten((other,), {})[1]


def test_a_tensor_that_wraps_others_is_refused() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2)
    with pytest.raises(ContractError, match=r"argument tokens is a FakeTensor"):
        Arguments(Model().forward).flatten((fake,), {})


def test_containers_are_part_of_the_key() -> None:
    arguments = Arguments(Model().forward)
    a, b = t(1), t(2)
    keys = [
        arguments.flatten((a, value), {})[1]
        for value in ([a, b], (a, b), Pair(a, b), {"a": a, "b": b}, {"b": b, "a": a}, [a], a)
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [((), {}, "missing a required argument: 'tokens'"), ((1,), {"tokens": 2}, "multiple values")],
)
def test_arguments_that_do_not_fit_are_a_contract_error(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ContractError, match=words):
        Arguments(Model().forward).flatten(args, kwargs)
