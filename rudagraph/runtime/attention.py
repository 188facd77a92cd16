"""Attention on an NVIDIA GPU: PyTorch's kernels behind one interface, chosen from a table.

Input: a launch of `attention` or `attention_backward`, and the device. Output: a maker whose
results are (out, logsumexp f32[B,H,S]) or (dq, dk, dv), whichever kernel ran; None where only the
definition of the op will do. Choices depend on types alone, so a step runs the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rudagraph.ir.types import TensorType
from rudagraph.runtime.choices import ATTENTION, Backend
from rudagraph.runtime.devices import CudaDevice
from rudagraph.schedule.plan import Launch, View

Tensor = torch.Tensor
Maker = Callable[..., tuple[Tensor, ...]]

aten = torch.ops.aten


def choose(launch: Launch, device: CudaDevice) -> Backend | None:
    """The backend of an attention launch, or None."""
    first = 1 if launch.opcode == "attention_backward" else 0
    query, key, value = (_type(launch, first + index) for index in range(3))
    masked = launch.arguments[first + 3] is not None
    sizes = {query.shape[3], key.shape[3], value.shape[3]}
    if len(sizes) > 1 or min(query.numel, key.numel) == 0:
        return None
    size = sizes.pop()
    causal = any(name == "causal" and flag for name, flag in launch.attributes)
    if causal and (masked or query.shape[2] != key.shape[2]):
        return None  # kernels differ in where the diagonal starts
    for row in ATTENTION:
        if row.fits(device.capability, query.dtype, size, masked, device.deterministic):
            return row.backend
    return None


def maker_for(launch: Launch, device: CudaDevice) -> Maker | None:
    """How this launch makes its results."""
    backend = choose(launch, device)
    if backend is None:
        return None
    settings = dict(launch.attributes)
    causal, scale = bool(settings.get("causal", False)), settings.get("scale")
    if launch.opcode == "attention":
        return _FORWARD[backend](causal, scale)
    run = _BACKWARD[backend](causal, scale, device)
    return reproducibly(run) if device.deterministic else run


def reproducibly(run: Maker) -> Maker:
    """With PyTorch's flag for deterministic algorithms set, which its kernels ask for."""

    def guarded(*operands: Any) -> tuple[Tensor, ...]:
        before = torch._C._get_deterministic_algorithms()
        only_warn = torch._C._get_deterministic_algorithms_warn_only()
        fill = torch._C._get_deterministic_fill_uninitialized_memory()
        torch._C._set_deterministic_algorithms(True, warn_only=False)
        torch._C._set_deterministic_fill_uninitialized_memory(False)
        try:
            return run(*operands)
        finally:
            torch._C._set_deterministic_algorithms(before, warn_only=only_warn)
            torch._C._set_deterministic_fill_uninitialized_memory(fill)

    return guarded


# ---- forward


def _cudnn(causal: bool, scale: Any) -> Maker:
    run = aten._scaled_dot_product_cudnn_attention.default

    def forward(q: Tensor, k: Tensor, v: Tensor, mask: None) -> tuple[Tensor, ...]:
        made = run(_dense(q), _dense(k), _dense(v), None, True, 0.0, causal, False, scale=scale)
        return made[0], made[1].view(made[0].shape[:3])

    return forward


def _flash(causal: bool, scale: Any) -> Maker:
    run = aten._scaled_dot_product_flash_attention.default

    def forward(q: Tensor, k: Tensor, v: Tensor, mask: None) -> tuple[Tensor, ...]:
        made = run(_dense(q), _dense(k), _dense(v), 0.0, causal, False, scale=scale)
        return made[0], made[1]

    return forward


def _efficient(causal: bool, scale: Any) -> Maker:
    run = aten._scaled_dot_product_efficient_attention.default

    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        k, v = _repeated(k, q), _repeated(v, q)
        bias = _bias(mask, q, k)
        made = run(_dense(q), k, v, bias, True, 0.0, causal, scale=scale)
        # Rows are padded to a multiple of 32.
        return made[0], made[1][:, :, : q.shape[2]]

    return forward


# ---- backward


def _cudnn_backward(causal: bool, scale: Any, device: CudaDevice) -> Maker:
    run = aten._scaled_dot_product_cudnn_attention_backward.default
    seed = torch.zeros((), dtype=torch.int64, device=device.device)

    def backward(
        gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: None, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, ...]:
        made = run(
            *(_dense(gradient), _dense(q), _dense(k), _dense(v), _dense(out)),
            *(lse.contiguous()[..., None], seed, seed, None, None, None),
            *(q.shape[2], k.shape[2], 0.0, causal),
            scale=scale,
        )
        return made[0], made[1], made[2]

    return backward


def _flash_backward(causal: bool, scale: Any, device: CudaDevice) -> Maker:
    run = aten._scaled_dot_product_flash_attention_backward.default
    seed = torch.zeros(2, dtype=torch.uint64, device=device.device)
    offset = torch.zeros((), dtype=torch.uint64, device=device.device)

    def backward(
        gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: None, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, ...]:
        made = run(
            *(_dense(gradient), _dense(q), _dense(k), _dense(v), _dense(out)),
            *(lse.contiguous(), None, None, q.shape[2], k.shape[2]),
            *(0.0, causal, seed, offset),
            scale=scale,
        )
        return made[0], made[1], made[2]

    return backward


def _efficient_backward(causal: bool, scale: Any, device: CudaDevice) -> Maker:
    run = aten._scaled_dot_product_efficient_attention_backward.default
    seed = torch.zeros((), dtype=torch.int64, device=device.device)

    def backward(
        gradient: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        out: Tensor,
        lse: Tensor,
    ) -> tuple[Tensor, ...]:
        keys, values = _repeated(k, q), _repeated(v, q)
        bias = _bias(mask, q, keys)
        rows = q.shape[2]
        padded = torch.nn.functional.pad(lse, (0, -rows % 32), value=torch.inf).contiguous()
        made = run(
            *(_dense(gradient), _dense(q), keys, values, bias, _dense(out), padded, seed, seed),
            *(0.0, [True, True, True, False], causal),
            scale=scale,
        )
        return made[0], _summed(made[1], k), _summed(made[2], v)

    return backward


_FORWARD: dict[Backend, Callable[[bool, Any], Maker]] = {
    "cudnn": _cudnn,
    "flash": _flash,
    "efficient": _efficient,
}
_BACKWARD: dict[Backend, Callable[[bool, Any, CudaDevice], Maker]] = {
    "cudnn": _cudnn_backward,
    "flash": _flash_backward,
    "efficient": _efficient_backward,
}


# ---- operands as the kernels take them


def _type(launch: Launch, index: int) -> TensorType:
    argument = launch.arguments[index]
    assert isinstance(argument, View), f"operand {index} of {launch.opcode} must be a tensor"
    return argument.type


def _dense(tensor: Tensor) -> Tensor:
    """Rows are read 16 bytes at a time: the last axis dense, every other stride a multiple."""
    width = 16 // tensor.element_size()
    strides = tensor.stride()
    fits = strides[-1] == 1 and all(
        stride % width == 0 and (stride > 0 or extent == 1)
        for stride, extent in zip(strides[:-1], tensor.shape[:-1], strict=True)
    )
    return tensor if fits and tensor.data_ptr() % 16 == 0 else tensor.contiguous()


def _repeated(heads: Tensor, query: Tensor) -> Tensor:
    """Key or value heads, each repeated for the query heads of its group."""
    times = query.shape[1] // heads.shape[1]
    return _dense(heads) if times == 1 else heads.repeat_interleave(times, 1)


def _summed(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient of repeated heads, summed over each group."""
    times = gradient.shape[1] // like.shape[1]
    if times == 1:
        return gradient
    batch, _, *rest = gradient.shape
    return gradient.reshape(batch, -1, times, *rest).sum(2)


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask as numbers to add, over all of [B,H,S,T], with rows aligned for the kernel."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        zero = query.new_zeros(())
        mask = torch.where(mask, zero, zero.new_full((), -torch.inf))
    elif mask.dtype != query.dtype:
        mask = mask.to(query.dtype)
    mask = mask[(None,) * (4 - mask.dim())]
    columns = key.shape[2]
    if mask.shape[3] != columns:
        mask = mask.expand(*mask.shape[:3], columns)
    padded = torch.nn.functional.pad(mask, (0, -columns % 16)).contiguous()
    shape = (query.shape[0], query.shape[1], query.shape[2], columns)
    return padded[..., :columns].expand(shape)
