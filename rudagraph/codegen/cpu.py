"""The CPU code generator: op -> kernel calls, by a table of what kernels serve.

Input: an op with the strides of its operands and results. Output: Lowered, or None where PyTorch
runs the op.
"""

from __future__ import annotations

from collections.abc import Callable

from rudagraph.codegen.embedding import lower_embedding, lower_embedding_backward
from rudagraph.codegen.fused import lower_fused
from rudagraph.ir.graph import Op
from rudagraph.schedule.lowered import Lowered, Strides

_Lower = Callable[
    [Op, tuple[Strides | None, ...], tuple[Strides, ...], tuple[tuple[int, int], ...]], Lowered
]

LOWERINGS: dict[str, _Lower] = {
    "fused": lower_fused,
    "embedding": lower_embedding,
    "embedding_backward": lower_embedding_backward,
}


def generate(
    op: Op,
    operand_strides: tuple[Strides | None, ...],
    result_strides: tuple[Strides, ...],
    shared: tuple[tuple[int, int], ...] = (),
    offsets: tuple[int, ...] = (),
) -> Lowered | None:
    """Kernel calls of an op; `shared` are pairs of Lowered.inplace that the plan makes use of.

    A CPU reads from any address: where operands begin changes nothing.
    """
    lower = LOWERINGS.get(op.opcode)
    return None if lower is None else lower(op, operand_strides, result_strides, shared)
