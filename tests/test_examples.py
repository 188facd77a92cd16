"""Every example runs to its end at a small size, and does what it says."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_hello_step_learns() -> None:
    assert load("01_hello_step").main(steps=200) < 0.01


def test_inspect_stages_prints_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    load("02_inspect_stages").main()
    printed = capsys.readouterr().out
    parts = printed.split("---- ")[1:]
    assert len(parts) == 5
    assert all(len(part.splitlines()) > 3 for part in parts)
    assert "matmul" in parts[1]


SMALL = {"steps": 6, "batch": 2, "context": 32, "hidden": 64, "layers": 1, "sample": 8}


def test_train_bytes_in_eager(tmp_path: Path) -> None:
    example = load("train_bytes")
    (run,) = example.main(**SMALL, variant=example.Variant.eager, out=tmp_path)
    assert run.losses[0] == pytest.approx(math.log(256), abs=0.3)
    assert run.losses[-1] < run.losses[0]
    assert run.peak > sum(p.numel() * 4 for p in run.model.parameters())
    assert (tmp_path / "train_bytes.png").read_bytes().startswith(b"\x89PNG")


def test_train_bytes_compiled_follows_eager(tmp_path: Path) -> None:
    eager, compiled = load("train_bytes").main(**SMALL, out=tmp_path)
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-4)
    assert compiled.losses[-1] < compiled.losses[0]
    planned = compiled.step.plan.peak_bytes
    assert 0.95 * planned <= compiled.peak <= planned


def test_digits_in_eager() -> None:
    assert load("digits").main(epochs=2, compiled=False) > 0.9


def test_digits_compiled_reaches_its_mark() -> None:
    assert load("digits").main(epochs=6) >= 0.97


@pytest.mark.cuda
def test_train_bytes_on_a_gpu_follows_eager(tmp_path: Path) -> None:
    eager, compiled = load("train_bytes").main(**SMALL, device="cuda", out=tmp_path)
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-3)
    assert compiled.losses[-1] < compiled.losses[0]


@pytest.mark.cuda
def test_digits_on_a_gpu_reaches_its_mark() -> None:
    assert load("digits").main(epochs=6, device="cuda") >= 0.97
