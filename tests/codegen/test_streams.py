"""Which results are written past the caches, and that it changes no bit."""

from __future__ import annotations

import pytest
import torch

from rudagraph.codegen import streams
from rudagraph.ir.graph import Op
from tests.codegen import bodies
from tests.codegen.compare import bits, check, operands_for
from tests.codegen.run import fused, lower, run

COPIED = """
%x: f32[64,96] = input operand
%y: f32[64,96] = input operand
%mean: f32[64,1] = mean(%x) [axes=[1], keepdim=true]
%z: f32[64,96] = add(%y, %mean)
%own: f32[64,96] = copy(%z)
output result = %z
output result = %own
"""
READ_AGAIN = """
%x: f32[64,96] = input operand
%y: f32[64,96] = input operand
%z: f32[64,96] = add(%x, %y)
%mean: f32[64,1] = mean(%z) [axes=[1], keepdim=true]
%centred: f32[64,96] = sub(%z, %mean)
output result = %z
output result = %centred
"""


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAMED_TRAFFIC", 64 * 1024)
    monkeypatch.setattr(streams, "STREAMED_RESULT", 16 * 1024)


def text_of(op: Op, *tensors: torch.Tensor, **how: tuple[tuple[int, int], ...]) -> str:
    return lower(op, *(tensors or operands_for(op)), **how).calls[0].source.text.split('"""')[2]


@pytest.mark.usefixtures("small_caches")
def test_copies_share_a_row_of_scratch() -> None:
    op = fused(COPIED.strip())
    text = text_of(op)
    assert "stream(z_pointer, at * 4, row_of_z, 96 * 4)" in text
    assert "stream(own_pointer, at * 4, row_of_z, 96 * 4)" in text
    assert text.count("store_f32(") == 1 and text.rstrip().splitlines()[-1].strip() == (
        "finish_streams(x_pointer)"
    )
    check(op, *operands_for(op))


@pytest.mark.usefixtures("small_caches")
def test_what_the_kernel_reads_again_is_stored_where_it_is_read() -> None:
    op = fused(READ_AGAIN.strip())
    text = text_of(op)
    assert "store_f32(z_pointer" in text and "stream(z_pointer" not in text
    assert "stream(centred_pointer" in text
    check(op, *operands_for(op))


@pytest.mark.usefixtures("small_caches")
def test_results_in_the_place_of_operands_are_stored() -> None:
    op = fused(COPIED.strip())
    text = text_of(op, shared=((1, 0),))
    assert "stream(own_pointer" in text and text.count("stream(") == 1


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize(
    "changes",
    [{"64,96": "64,97"}, {"64,96": "16,96", "64,1]": "16,1]"}, {"add(%y, %mean)": "add(%y, %x)"}],
    ids=["rows of parts of lines", "little traffic", "one loop"],
)
def test_other_results_are_stored(changes: dict[str, str]) -> None:
    body = COPIED
    for old, new in changes.items():
        body = body.replace(old, new)
    if "%y, %x" in body:
        body = body.replace("%mean: f32[64,1] = mean(%x) [axes=[1], keepdim=true]\n", "")
    assert "stream(" not in text_of(fused(body.strip()))


def test_results_that_the_caches_hold_are_stored() -> None:
    assert "stream(" not in text_of(fused(bodies.softmax("f32", 2048, 1024)))
    assert "stream(" in text_of(fused(bodies.softmax("f32", 4096, 1024)))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", ["layer_norm_backward", "softmax", "residual_layer_norm"])
@pytest.mark.parametrize("rows,length", [(70, 512), (12, 12288)])
def test_streamed_bits_are_the_stored_ones(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, rows: int, length: int
) -> None:
    op = fused(getattr(bodies, name)(dtype, rows, length))
    tensors = operands_for(op)
    stored = run(op, *tensors)
    monkeypatch.setattr(streams, "STREAMED_TRAFFIC", 64 * 1024)
    monkeypatch.setattr(streams, "STREAMED_RESULT", 16 * 1024)
    assert "stream(" in text_of(op, *tensors)
    for threads in (1, 3):
        for one, other in zip(stored, run(op, *tensors, threads=threads), strict=True):
            assert torch.equal(bits(one), bits(other))
    check(op, *tensors)
