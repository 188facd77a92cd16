"""Softmax's maximum and sum in one pass over a long row: the sum is scaled when the maximum grows.

Input: the stages of a body. Output: by pass, the pairs that cuda_long computes together.
"""

from __future__ import annotations

from dataclasses import dataclass

from rudagraph.codegen.cuda_picks import find_pick
from rudagraph.codegen.stages import Pass, Stages
from rudagraph.ir.graph import Op
from rudagraph.ir.types import DType


@dataclass(frozen=True)
class Online:
    """A maximum, and the sum of exp(x - maximum) in the pass after it."""

    largest: Op
    exponential: Op
    total: Op


def find_online(stages: Stages) -> dict[int, Online]:
    """By pass: pairs of which the second pass has nothing else to do."""
    found: dict[int, Online] = {}
    for at, (current, following) in enumerate(zip(stages.passes, stages.passes[1:], strict=False)):
        pair = _pair(stages, current, following)
        if pair is not None and at - 1 not in found:
            found[at] = pair
    return found


def _pair(stages: Stages, current: Pass, following: Pass) -> Online | None:
    folds = [op for op in following.folds if find_pick(stages, op) is None]
    largest_ones = {op.result for op in current.folds}
    waits = any(largest_ones & set(op.inputs) for op in following.row_ops)
    if len(folds) != 1 or following.sums or following.stores or following.row_stores or waits:
        return None
    (total,) = folds
    exponential = stages.producer.get(total.inputs[0])
    if total.opcode != "sum" or exponential is None or exponential.opcode != "exp":
        return None
    difference = stages.producer.get(exponential.inputs[0])
    if difference is None or difference.opcode != "sub" or len(difference.inputs) != 2:
        return None
    x, largest = difference.inputs
    for op in current.folds:
        same = op.opcode == "amax" and op.result == largest and op.inputs[0] == x
        if same and x.type.dtype.compute is DType.F32:
            return Online(op, exponential, total)
    return None
