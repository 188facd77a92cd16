"""The kernels that the benchmark of single kernels times, without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.kernel_cases import (
    KernelCase,
    cases,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
    silu_mul,
)
from benchmarks.kernels import plan
from rudagraph.build.cuda import compile_ptx
from rudagraph.build.ptx import facts

LENGTHS = (1024, 4096, 8192, 16384)
# Launches of what does not go in one: column sums, rows in parts, sorted ids.
LAUNCHES = {"rms_norm backward": 2, "layer_norm backward": 2, "cross_entropy": 3, "embedding": 7}


def test_each_case_is_one_fused_operation_in_the_fewest_launches() -> None:
    for case in cases(8192, LENGTHS, ("bf16", "f32")):
        plans = plan(case, "sm_90").kernels
        launches = sum(len(lowered.calls) for _, lowered in plans)
        expected = next((n for name, n in LAUNCHES.items() if case.name.startswith(name)), 1)
        assert launches == expected, case.name


@pytest.mark.parametrize("make", [rms_norm, rms_norm_backward, silu_mul])
def test_rows_move_by_16_bytes_and_stay_in_registers(make: Callable[..., KernelCase]) -> None:
    plans = plan(make(8192, 4096, "bf16"), "sm_90").kernels
    found = facts(compile_ptx(plans[0][1].calls[0].source))
    assert found.local == 0
    assert found.widest_store == 16
    assert found.scalar_stores <= 1  # rstd


@pytest.mark.parametrize(
    "length,dtype,blocks", [(8192, "f32", 1), (16384, "f32", 2), (65536, "bf16", 4)]
)
def test_blocks_share_a_row_that_none_holds_beside_its_sums(
    length: int, dtype: str, blocks: int
) -> None:
    for make in (rms_norm_backward, layer_norm_backward):
        ((_, lowered),) = plan(make(8192, length, dtype), "sm_90").kernels
        source = lowered.calls[0].source
        assert source.cuda is not None
        assert source.cuda.cluster == blocks
        assert source.blocks % blocks == 0
        ((_, before),) = plan(make(8192, length, dtype), "sm_80").kernels
        assert all(call.source.cuda.cluster == 1 for call in before.calls)


@pytest.mark.parametrize("target,most", [("sm_80", 163), ("sm_89", 99), ("sm_90", 227)])
def test_no_block_takes_more_shared_memory_than_its_target_has(target: str, most: int) -> None:
    """KiB that CUDA's programming guide gives for a block, less a KiB for sums of threads."""
    for case in cases(8192, LENGTHS, ("bf16", "f32")):
        for _, lowered in plan(case, target).kernels:
            for call in lowered.calls:
                assert call.source.cuda is not None
                assert call.source.cuda.shared_bytes <= (most - 1) * 1024, case.name
