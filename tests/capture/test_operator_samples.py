"""PyTorch's own operator samples: each captures and equals eager, or is refused with a reason.

Some of them run always in FP32 and BF16, all with --full, in integers and truth values as well.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from rudagraph.capture import capture
from rudagraph.errors import UnsupportedError, UsageError
from tests.capture.support import Step, assert_same, eager, run

# PyTorch's own samples import expecttest, which not every machine has.
op_db = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations", exc_type=ImportError
).op_db
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
TOLERANCES = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (3e-2, 3e-2)}
# Their results are whatever memory held or random numbers of PyTorch's own, or need a GPU.
UNDEFINED = ("empty", "dropout", "rand", "multi_head_attention", "scaled_dot_product", "jiterator")


class Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.__dict__["function"] = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


# On a CPU eager rounds the quotient to BF16 before it cuts it off, on a GPU after.
DIFFERENT = {"div-trunc_rounding-bfloat16"}


def _selected() -> list[Any]:
    found = []
    for index, op in enumerate(op_db):
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu") or _left_out(op.name):
                continue
            name = "-".join(filter(None, (op.name, op.variant_test_name, str(dtype)[6:])))
            if name in DIFFERENT:
                continue
            marks = [] if index % 23 == 4 and dtype in DTYPES[:2] else [pytest.mark.full]
            found.append(pytest.param(op, dtype, id=name, marks=marks))
    return found


def _left_out(name: str) -> bool:
    return name.startswith("_") or any(part in name for part in UNDEFINED)


@pytest.mark.parametrize(("op", "dtype"), _selected())
@pytest.mark.filterwarnings("ignore")
def test_samples(op: Any, dtype: torch.dtype) -> None:
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    for sample in {id(s): s for s in (samples[0], samples[len(samples) // 2])}.values():
        model, args = Call(op.op), (sample.input, *sample.args)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = eager(model, args, sample.kwargs)
        except (RuntimeError, NotImplementedError, UsageError, UnsupportedError):
            continue  # no eager result to compare with
        try:
            captured = capture(model, args, sample.kwargs)
        except (UnsupportedError, UsageError) as error:
            assert error.hint
            continue
        got = run(captured, model, args, sample.kwargs)
        tolerance = TOLERANCES.get(dtype, (1e-5, 1e-5))
        if dtype is torch.bfloat16 and not _agree(got, want, tolerance):
            want = _without_losses(want, eager(model, *_doubled((args, sample.kwargs))), tolerance)
        assert_same(got, want, *tolerance)


def _agree(got: Step, want: Step, tolerance: tuple[float, float]) -> bool:
    try:
        assert_same(got, want, *tolerance)
    except AssertionError:
        return False
    return True


def _doubled(values: Any) -> Any:
    """The same numbers in FP64."""

    def double(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.detach().double().requires_grad_(value.requires_grad)

    return tree_map(double, values)


def _without_losses(want: Step, exact: Step, tolerance: tuple[float, float]) -> Step:
    """Eager's values, but those of FP64 where eager's own roundings lose more than is allowed.

    It rounds each of many terms before it adds them up, and they may cancel: the gradient of an
    instance norm's weight is nothing but what was lost.
    """
    rtol, atol = tolerance
    parts = []
    for lossy, right in zip(want, exact, strict=True):
        part = {name: value.detach().clone() for name, value in lossy.items()}
        for name, value in part.items():
            reference = right[name].detach().to(value.dtype)
            lost = ~torch.isclose(value, reference, rtol=rtol, atol=atol, equal_nan=True)
            part[name] = torch.where(lost, reference, value)
        parts.append(part)
    return Step(*parts)


def test_what_eager_loses_in_bf16_is_held_against_fp64() -> None:
    lossy = {"y": torch.tensor([0.5, 2.0], dtype=torch.bfloat16)}
    exact = {"y": torch.tensor([0.0, 2.001], dtype=torch.float64)}
    want = _without_losses(Step(lossy, {}, {}), Step(exact, {}, {}), (3e-2, 3e-2))
    assert want.results["y"].tolist() == [0.0, 2.0]
    assert _agree(Step({"y": torch.tensor([0.0, 2.0]).bfloat16()}, {}, {}), want, (3e-2, 3e-2))
    assert not _agree(Step({"y": torch.tensor([0.5, 2.0]).bfloat16()}, {}, {}), want, (3e-2, 3e-2))
