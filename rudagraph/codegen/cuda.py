"""The CUDA code generator: op -> kernel calls for one GPU target, by a table of what kernels serve.

Input: an op with the strides of its operands and results. Output: Lowered, or None where PyTorch
runs the op.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rudagraph.codegen.cuda_embedding import lower_embedding, lower_embedding_backward
from rudagraph.codegen.cuda_fused import lower_fused
from rudagraph.ir.graph import Op
from rudagraph.schedule.lowered import Generate, Lowered, Strides

_Lower = Callable[
    [Op, tuple[Strides | None, ...], tuple[Strides, ...], str, tuple[int, ...]], Lowered
]

LOWERINGS: dict[str, _Lower] = {
    "fused": lower_fused,
    "embedding": lower_embedding,
    "embedding_backward": lower_embedding_backward,
}


def generator(target: str) -> Generate:
    """`generate` for a GPU such as "sm_90"."""
    return partial(generate, target=target)


def generate(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    shared: tuple[tuple[int, int], ...] = (),
    offsets: tuple[int, ...] = (),
    *,
    target: str = "sm_90",
) -> Lowered | None:
    """Kernel calls of an op; memory that operands and results share changes nothing."""
    lower = LOWERINGS.get(op.opcode)
    return None if lower is None else lower(op, operand_strides, result_strides, target, offsets)
