"""Which ATen ops the trace takes apart, with PyTorch's own rules, and which stay whole.

Invariant: what stays whole has a row in the lowering table or runs in PyTorch as a library op;
what is taken apart rounds as eager does, because PyTorch's rules cast to the compute type inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

aten = torch.ops.aten

# Whole although PyTorch's core table would take them apart: IR ops, or better as library ops.
_WHOLE_PACKETS = (
    "silu silu_backward gelu_backward sigmoid_backward tanh_backward "
    "_softmax_backward_data _log_softmax_backward_data embedding_dense_backward "
    "native_batch_norm_backward "
    "select_backward slice_backward unfold_backward diagonal_backward "
    "index_add index_copy index_fill _unsafe_index _unsafe_index_put _unsafe_masked_index "
    "_unsafe_masked_index_put_accumulate "
    "reflection_pad1d reflection_pad2d reflection_pad3d reflection_pad1d_backward "
    "reflection_pad2d_backward reflection_pad3d_backward "
    "replication_pad1d replication_pad2d replication_pad3d im2col col2im "
    "mv dot vdot bernoulli native_dropout_backward new_empty new_full new_ones new_zeros "
    "zeros ones zeros_like ones_like empty_like roll grid_sampler_2d t transpose split unbind "
    "squeeze _weight_norm_interface detach addmv"
).split()
_WHOLE_PREFIXES = ("aten.upsample_", "aten._upsample_")

# Taken apart although the core table leaves them whole.
_APART = (
    aten.native_group_norm.default,
    aten.elu.default,
    aten.leaky_relu.default,
    aten.hardtanh.default,
)


def _viewed(x: torch.Tensor, shape: Any, *_: Any) -> Any:
    """As PyTorch's rule, without its wrapper: each product with a batch makes two such views."""
    return aten.view.default(x, shape)


_OWN = {aten._unsafe_view.default: _viewed, aten._reshape_alias.default: _viewed}


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table that the trace uses."""
    whole = {f"aten.{name}" for name in _WHOLE_PACKETS}
    core: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table = {
        op: rule
        for op, rule in core.items()
        if str(op).rsplit(".", 1)[0] not in whole and not str(op).startswith(_WHOLE_PREFIXES)
    }
    for op in _APART:
        if op in decomposition_table:
            table[op] = decomposition_table[op]
    return table | _OWN
