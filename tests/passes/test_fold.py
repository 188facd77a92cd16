"""Equal layers are compiled once: what comes of it is what compiling each of them gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from rudagraph import StaticGraph, compiler
from rudagraph.capture import capture
from rudagraph.ir.graph import Graph
from rudagraph.ir.text import print_graph
from rudagraph.options import CompileOptions
from rudagraph.passes.fold import Folding, fold, folded_by_capture, ports, unfold
from rudagraph.progress import SILENT
from rudagraph.schedule.print_plan import print_plan
from rudagraph.schedule.program import gradient_sources
from rudagraph.target import CPU, Target, cuda_target
from tests.models import MODELS, build_model

TARGETS = {"cpu": CPU, "cuda": cuda_target(9, 0)}
LAYERS = 10


@dataclass
class Compiled:
    """What comes of a captured graph, as text; `runs` says of each attempt whether it folded."""

    entries: list[str]
    plan: str
    kernels: dict[str, str]
    runs: list[bool] = field(compare=False)


def compiled(
    joint: Graph,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    *,
    folding: bool,
    foldings: tuple[Folding, ...] = (),
) -> Compiled:
    """`foldings` bring back layers that `joint` leaves out already."""
    entries: list[str] = []
    runs: list[bool] = []
    run_once, order = compiler._Compiler._run, compiler.order

    def run(self: compiler._Compiler, graph: Graph, foldings: tuple[Folding, ...]):
        entries.clear()
        runs.append(bool(foldings))
        return run_once(self, graph, foldings)

    def ordered(graph: Graph) -> Graph:
        result = order(graph)
        entries.append(print_graph(result))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(compiler._Compiler, "_run", run)
        patch.setattr(compiler, "order", ordered)
        if not folding:
            patch.setattr(compiler, "fold", lambda graph: (graph, ()))
        ends = ports(joint, foldings)
        made = compiler._Compiler(
            joint, foldings, ends, target, None, lambda kernels: None, SILENT
        ).run()
    kernels = {source.name: source.text for source in made.sources}
    return Compiled(list(entries), print_plan(made.plan), kernels, runs)


def same_every_way(
    model: nn.Module,
    args: tuple[torch.Tensor, ...],
    kwargs: dict[str, torch.Tensor],
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    *,
    folds: bool | None = None,
) -> None:
    """Layers left out by the capture, out of its graph, and not at all.

    `folds`: whether there are layers to leave out; not so is a fault as well.
    """
    outputs = "loss" if kwargs else None
    joint = capture(model, args, kwargs, outputs=outputs).graph
    short = compiler._capture(model, args, kwargs, CompileOptions(outputs=outputs), ())
    foldings = folded_by_capture(short.graph, short.left_out)
    assert print_graph(unfold(short.graph, foldings)) == print_graph(joint)
    assert {(port.role, port.target) for port in ports(short.graph, foldings)[0]} == {
        (port.role, port.target) for port in joint.inputs
    }
    assert compiler._gradient_sources(short, ports(short.graph, foldings)) == gradient_sources(
        joint
    )
    once = compiled(joint, target, monkeypatch, folding=True)
    if folds is not None:
        assert once.runs[0] == folds
        assert bool(foldings) == folds
    each = compiled(joint, target, monkeypatch, folding=False)
    assert once == each
    if foldings:
        assert each == compiled(short.graph, target, monkeypatch, folding=True, foldings=foldings)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("llama", "bert", "gpt2") else pytest.mark.full)
        for name in MODELS
    ],
)
def test_models(name: str, dropout: float, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5 adds each layer's part to the gradient of one position bias: its layers stay."""
    layers = 20 if name == "gemma2" else LAYERS
    model, batch = build_model(name, dropout=dropout, layers=layers)
    same_every_way(model, (), dict(batch), TARGETS[target], monkeypatch, folds=name != "t5")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_layers_are_put_back(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above could pass by compiling every layer after all."""
    model, batch = build_model(name, dropout=0.1, layers=LAYERS)
    joint = capture(model, (), dict(batch), outputs="loss").graph
    assert compiled(joint, TARGETS[target], monkeypatch, folding=True).runs == [True]


# ---- rows of all kinds


class Layer(nn.Module):
    """Some of what layers are made of."""

    def __init__(self, width: int, has: frozenset[str], kind: int, inner: int) -> None:
        super().__init__()
        self.has, self.kind = has, kind
        self.first = nn.Linear(width, width, bias="bias" in has)
        if "growing" in has:
            self.wide, self.back = nn.Linear(width, inner), nn.Linear(inner, width)
        if "norm" in has:
            self.norm = nn.LayerNorm(width)
        if "batch_norm" in has:
            self.batch_norm = nn.BatchNorm1d(width)
        if "two" in has:
            self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        if "frozen" in has:
            self.first.weight.requires_grad_(False)
        self.dropout = nn.Dropout(0.25 if "dropout" in has else 0.0)

    def forward(self, x: torch.Tensor, shared: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm(x) if "norm" in self.has else x
        y = self.first(y)
        if "shared" in self.has:
            y = y * shared
        if "mask" in self.has:
            y = torch.where(mask, y, 0.0)
        y = torch.tanh(y) if self.kind else F.gelu(y)
        if "growing" in self.has:
            y = self.back(torch.relu(self.wide(y)))
        if "two" in self.has:
            y = self.parts[1](torch.sin(self.parts[0](y)))
        if "batch_norm" in self.has:
            y = self.batch_norm(y)
        y = self.dropout(y)
        return x + y if "residual" in self.has else y


FEATURES = (
    "bias norm batch_norm two frozen dropout mask residual embed_dropout head_dropout head last"
).split()
# Most of these keep a row from being folded.
ODDITIES = (
    "shared own_shared skip far_skip every collect tied odd_one detached early_head growing "
    "one_hidden all_hidden"
).split()


class Row(nn.Module):
    """A row of layers that are equal, or nearly so."""

    def __init__(self, has: frozenset[str], count: int, kinds: int, width: int = 8) -> None:
        super().__init__()
        self.has = has
        self.layers = nn.ModuleList(Layer(width, has, i % kinds, 4 + i) for i in range(count))
        self.scale = nn.Parameter(torch.ones(width))
        self.before = nn.Dropout(0.5 if "embed_dropout" in has else 0.0)
        self.after = nn.Dropout(0.5 if "head_dropout" in has else 0.0)
        self.head = nn.Linear(width, 3)
        if "tied" in has:
            self.layers[-1].first.weight = self.layers[0].first.weight
        if "odd_one" in has and "norm" in has:
            self.layers[count // 2].norm.eps = 1e-3

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        has, count = self.has, len(self.layers)
        x = self.before(x)
        mask = x.sum(-1, keepdim=True) > 0
        shared = torch.sin(self.scale)
        if "own_shared" in has:
            shared = torch.cos(self.layers[0].first.weight[0] + x.mean(0))
        seen, start = [], x
        for index, layer in enumerate(self.layers):
            x = layer(x, shared, mask)
            if "every" in has:
                x = x + start
            if "skip" in has and index:
                x = x + seen[-1]
            if "far_skip" in has and index == count - 2:
                x = x + seen[1]
            if "detached" in has and index == count // 2:
                x = x.detach() * 2 + x
            seen.append(x)
        total = self.head(self.after(x)).square().mean()
        if "collect" in has:
            total = total + torch.stack(seen).mean()
        if "head" in has:
            total = total + seen[-2].abs().mean()
        if "early_head" in has:
            total = total + seen[1].abs().mean()
        handed_out = [seen[-1]] if "last" in has else []
        handed_out += [seen[3]] if "one_hidden" in has else []
        handed_out += seen if "all_hidden" in has else []
        return total, *handed_out


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 30 else pytest.mark.full) for seed in range(300)]
)
def test_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    has = frozenset(name for name in FEATURES if random.random() < 0.35)
    has |= frozenset(name for name in ODDITIES if random.random() < 0.04)
    kinds = random.choice((1, 1, 2))
    count = random.randint(7, 11) * kinds
    row = Row(has, count, kinds)
    print(sorted(has), count, kinds)
    same_every_way(row, (torch.randn(6, 8),), {}, CPU, monkeypatch)


class TwoRows(nn.Module):
    """Side by side, so that one kernel may make parts of both."""

    def __init__(self) -> None:
        super().__init__()
        has = frozenset(["dropout", "residual"])
        self.one = nn.ModuleList(Layer(8, has, 1, 4) for _ in range(10))
        self.other = nn.ModuleList(Layer(8, has, 1, 4) for _ in range(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x > 0
        one = other = x
        for layer in self.one:
            one = layer(one, x, mask)
        for layer in self.other:
            other = layer(other, x, mask)
        return one.sum() + other.sum()


@pytest.mark.parametrize("target", TARGETS)
def test_rows_draw_their_own_masks(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the kernel that adds both, each row's dropout keeps its random stream."""
    model, x = TwoRows(), torch.randn(6, 8)
    assert len(capture(model, (x,), all_layers=False).left_out) == 2
    assert len(fold(capture(model, (x,)).graph)[1]) == 2
    same_every_way(model, (x,), {}, TARGETS[target], monkeypatch, folds=True)


@pytest.mark.parametrize(
    "has",
    [
        "",
        "residual norm",
        "dropout residual embed_dropout head_dropout",
        "two",
        "mask batch_norm",
        "last",
    ],
)
def test_plain_rows_fold(has: str) -> None:
    """Else the tests above could pass by folding nothing."""
    joint = capture(Row(frozenset(has.split()), 12, 1), (torch.randn(6, 8),)).graph
    folded, foldings = fold(joint)
    assert len(folded.ops) < 0.75 * len(joint.ops)
    assert print_graph(unfold(folded, foldings)) == print_graph(joint)


@pytest.mark.parametrize(
    "has",
    [
        "far_skip",
        "collect",
        "odd_one norm",
        "tied",
        "every",
        "shared",
        "growing",
        "one_hidden",
        "all_hidden",
    ],
)
def test_what_is_not_the_same_for_all_layers_stays(has: str) -> None:
    joint = capture(Row(frozenset(has.split()), 12, 1), (torch.randn(6, 8),)).graph
    assert fold(joint) == (joint, ())


def test_stages_and_reasons_are_of_all_layers() -> None:
    row = Row(frozenset(["residual", "norm"]), 12, 1)
    step = StaticGraph(row).compile(torch.randn(6, 8))
    assert fold(capture(row, (torch.randn(6, 8),)).graph)[1]
    for entry, stage in (("joint", "simplify"), ("forward", "partition"), ("backward", "order")):
        text = step.ir(entry, stage=stage)
        assert all(f"layers.{index}." in text for index in range(12)), (entry, stage)
    named = {decision.name for decision in step.program.decisions}
    assert {name.split(".")[1] for name in named if name.startswith("layers.")} >= set("123456789")


def test_the_order_is_chosen_with_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few layers large logits make the peak, with all of them another order is the lowest."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=12,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=4000,
        attn_implementation="sdpa",
    )
    model = transformers.Qwen2ForCausalLM(config).train()
    ids = torch.randint(0, 4000, (2, 8))
    batch = {"input_ids": ids, "labels": ids}
    for target in TARGETS.values():
        same_every_way(model, (), batch, target, monkeypatch, folds=True)
