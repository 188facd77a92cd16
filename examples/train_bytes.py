"""Train a byte-level language model on Python's own standard library, compiled and eager.

Both models start from the same weights and see the same batches in turn, so the loss curves can
be laid over each other and the step times compared. Needs no data and no network.

    python examples/train_bytes.py --steps 150 --out out
"""

from __future__ import annotations

import statistics
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import matplotlib.pyplot as plt
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import rudagraph as rg
from rudagraph.measure import peak_bytes


class Variant(StrEnum):
    """Which of the two is trained."""

    both = "both"
    compiled = "compiled"
    eager = "eager"


@dataclass
class Run:
    """One model in training and what was seen of it."""

    name: str
    model: nn.Module
    step: Callable[..., Any]
    optimizer: torch.optim.Optimizer
    build_seconds: float
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak: int = 0

    def forward_backward(self, tokens: torch.Tensor) -> None:
        """The part that is compiled, and the part that is timed."""
        start = time.perf_counter()
        out = self.step(input_ids=tokens, labels=tokens)
        out.loss.backward()
        self.losses.append(out.loss.item())  # waits for a GPU, so it comes before the clock
        self.seconds.append(time.perf_counter() - start)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def step_seconds(self) -> float:
        """Median over all steps but the first, whose memory was being watched."""
        return statistics.median(self.seconds[1:] or self.seconds)


def standard_library(limit: int = 12_000_000) -> torch.Tensor:
    """Source text of the standard library's modules, one byte a token."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "test", "tests"}
    sources = sorted(p for p in folder.rglob("*.py") if not left_out & set(p.parts))
    text = bytearray()
    for source in sources:
        if len(text) >= limit:
            break
        text += source.read_bytes()
    return torch.frombuffer(text, dtype=torch.uint8)


def build_model(hidden: int, layers: int, context: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=context,
        attn_implementation="sdpa",
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def batches(text: torch.Tensor, batch: int, context: int, seed: int) -> Callable[[], torch.Tensor]:
    """A function that draws windows at random places, the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    windows = text.unfold(0, context, 1)

    def draw() -> torch.Tensor:
        return windows[torch.randint(len(windows), (batch,), generator=generator)].long()

    return draw


def prepare(name: str, model: nn.Module, example: torch.Tensor, rate: float) -> Run:
    """The model with its optimizer and its step: compiled, or the model itself."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    start = time.perf_counter()
    if name == "compiled":
        step = rg.StaticGraph(model, outputs="loss").compile(input_ids=example, labels=example)
    else:
        step = model
    return Run(name, model, step, optimizer, time.perf_counter() - start)


@torch.no_grad()
def continue_text(model: nn.Module, prompt: bytes, length: int, context: int, seed: int) -> str:
    """The prompt and what the model writes after it."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    tokens = torch.tensor([list(prompt)])
    for _ in range(length):
        logits = model(input_ids=tokens[:, -context:].to(device)).logits[0, -1].float().cpu()
        chosen = torch.multinomial(torch.softmax(logits / 0.7, -1), 1, generator=generator)
        tokens = torch.cat([tokens, chosen[None]], 1)
    model.train()
    return bytes(tokens[0].tolist()).decode("utf-8", "replace")


def describe(runs: list[Run], tokens: int) -> str:
    """Loss and speed of the last step of each run."""
    return "   ".join(
        f"{run.name}: loss {run.losses[-1]:.3f}, {tokens / run.seconds[-1]:,.0f} tokens/s"
        for run in runs
    )


def draw_curves(runs: list[Run], path: Path) -> None:
    """Loss of each step, the compiled curve dashed over the eager one."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    styles = {"eager": {"lw": 3, "alpha": 0.5}, "compiled": {"lw": 1.5, "ls": "--", "c": "black"}}
    for run in sorted(runs, key=lambda run: run.name, reverse=True):
        label = f"{run.name}, {1e3 * run.step_seconds:.0f} ms a step"
        axes.plot(run.losses, label=label, **styles[run.name])
    axes.set(xlabel="step", ylabel="loss, nats a byte", title="Bytes of the standard library")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def print_summary(console: Console, runs: list[Run], tokens: int) -> None:
    table = Table(title="forward and backward", title_justify="left")
    table.add_column("")
    for heading in ("first loss", "last loss", "step ms", "tokens/s", "peak MiB", "compile s"):
        table.add_column(heading, justify="right")
    for run in runs:
        table.add_row(
            run.name,
            f"{run.losses[0]:.4f}",
            f"{statistics.fmean(run.losses[-10:]):.4f}",
            f"{1e3 * run.step_seconds:.1f}",
            f"{tokens / run.step_seconds:,.0f}",
            f"{run.peak / 2**20:.1f}",
            f"{run.build_seconds:.1f}" if run.name == "compiled" else "",
        )
    console.print(table)
    if len(runs) == 2:
        eager, compiled = runs
        apart = [abs(a - b) for a, b in zip(eager.losses, compiled.losses, strict=True)]
        console.print(
            f"compiled: {compiled.step_seconds / eager.step_seconds:.2f} of eager's time, "
            f"{compiled.peak / eager.peak:.2f} of its memory"
        )
        # Training magnifies the last bit a thousandfold every twenty steps: eager's own losses
        # are as far apart if one of its weights is.
        console.print(
            f"losses apart by at most {max(apart[:10]):.0e} in the first ten steps, and by "
            f"{max(apart):.0e} in all, as rounding grows"
        )


def main(
    steps: Annotated[int, typer.Option(help="optimizer steps")] = 150,
    batch: Annotated[int, typer.Option(help="windows a step")] = 4,
    context: Annotated[int, typer.Option(help="bytes a window")] = 256,
    hidden: Annotated[int, typer.Option(help="width, a multiple of 64")] = 192,
    layers: Annotated[int, typer.Option(help="transformer layers")] = 4,
    rate: Annotated[float, typer.Option(help="learning rate")] = 2e-3,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    seed: Annotated[int, typer.Option(help="of weights and batches")] = 0,
    variant: Annotated[Variant, typer.Option(help="what to train")] = Variant.both,
    sample: Annotated[int, typer.Option(help="bytes to write at the end")] = 160,
    out: Annotated[Path, typer.Option(help="folder of the picture")] = Path("out"),
) -> list[Run]:
    """Train, compare, and leave the loss curves in OUT/train_bytes.png."""
    console = Console()
    text = standard_library()
    draw = batches(text, batch, context, seed + 1)
    names = ["eager", "compiled"] if variant is Variant.both else [variant.value]
    runs = []
    for name in names:
        torch.manual_seed(seed)
        model = build_model(hidden, layers, context).to(device)
        with console.status(f"{name}: getting ready"):
            runs.append(prepare(name, model, draw().to(device), rate))
    parameters = sum(p.numel() for p in runs[0].model.parameters())
    console.print(
        f"{parameters / 1e6:.2f} M parameters, {len(text) / 1e6:.1f} MB of source text, "
        f"{batch} x {context} bytes a step, {torch.get_num_threads()} threads, {device}"
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("training", total=steps)
        for number in range(steps):
            for run in runs:
                for group in run.optimizer.param_groups:
                    group["lr"] = rate * min(1.0, (number + 1) / 20)
            tokens = draw().to(device)
            for run in runs:
                work = partial(run.forward_backward, tokens)
                if number == 0:
                    run.peak = peak_bytes(work, device)
                else:
                    work()
                run.update()
            progress.update(task, advance=1, description=describe(runs, batch * context))

    print_summary(console, runs, batch * context)
    picture = out / "train_bytes.png"
    draw_curves(runs, picture)
    console.print(f"curves: {picture}")
    if sample:
        written = continue_text(runs[-1].model, b"def main(", sample, context, seed)
        console.rule("what it writes")
        console.print(written, markup=False, highlight=False)
    return runs


if __name__ == "__main__":
    typer.run(main)
