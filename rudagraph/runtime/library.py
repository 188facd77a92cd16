"""The ops that run in PyTorch's libraries: one table per way of giving results.

`writer(launch)` is a function that writes into the tensor it is given, for ops with a true out=;
`maker(launch)` one that returns tensors of its own. Input: a launch of the plan, read once; what
comes back decides nothing any more. An op in neither table runs as the interpreter defines it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from rudagraph.errors import VerifyError
from rudagraph.ir.graph import Attribute, Hole, Op, Value
from rudagraph.ir.interpret import evaluate, library_function, library_results, output_mask
from rudagraph.ir.semantics import Context
from rudagraph.ir.torch_types import to_torch_dtype
from rudagraph.ir.types import DType
from rudagraph.runtime import attention
from rudagraph.runtime.devices import CudaDevice, Device
from rudagraph.schedule.plan import Launch, View

Tensor = torch.Tensor
Writer = Callable[..., object]  # (out, *operands)
Maker = Callable[..., tuple[Tensor, ...]]  # (*operands) -> results


def attribute(launch: Launch, name: str, default: Attribute = None) -> Any:
    """The attribute of that name, or the default."""
    return next((value for key, value in launch.attributes if key == name), default)


# ---- ops that write where the plan says


def _copy(launch: Launch) -> Writer:
    return lambda out, source: out.copy_(source)


def _matmul(launch: Launch) -> Writer:
    rank = _operand_rank(launch, 0)
    mm, bmm = torch.mm, torch.bmm
    if attribute(launch, "dtype") is not None:
        dtype = to_torch_dtype(launch.results[0].type.dtype)
        return lambda out, left, right: mm(left, right, dtype, out=out)
    if rank == 2:
        return lambda out, left, right: mm(left, right, out=out)
    if rank == 3:
        return lambda out, left, right: bmm(left, right, out=out)

    def batched(out: Tensor, left: Tensor, right: Tensor) -> None:
        if not out.numel():
            return
        bmm(left.flatten(0, -3), right.flatten(0, -3), out=out.flatten(0, -3))

    return batched


def _addmm(launch: Launch) -> Writer:
    addmm = torch.addmm
    if attribute(launch, "dtype") is not None:
        dtype = to_torch_dtype(launch.results[0].type.dtype)
        return lambda out, first, left, right: addmm(first, left, right, dtype, out=out)
    if launch.arguments[0] == launch.results[0]:  # the plan lets them share memory
        return lambda out, _, left, right: out.addmm_(left, right)
    return lambda out, first, left, right: addmm(first, left, right, out=out)


def _concatenate(launch: Launch) -> Writer:
    axis = attribute(launch, "axis")
    return lambda out, *parts: torch.cat(parts, axis, out=out)


def _sum(launch: Launch) -> Writer:
    axes, keepdim = attribute(launch, "axes"), bool(attribute(launch, "keepdim", False))
    given, wanted = _operand_type(launch, 0).dtype, launch.results[0].type.dtype
    if not axes:
        return lambda out, x: out.copy_(x)
    if given.is_floating and wanted.size < given.compute.size:
        # PyTorch would round the elements first and sum the rounded ones.
        return lambda out, x: out.copy_(torch.sum(x, axes, keepdim))
    dtype = to_torch_dtype(wanted)
    return lambda out, x: torch.sum(x, axes, keepdim, dtype=dtype, out=out)


def _reduction(function: Callable[..., Tensor]) -> Callable[[Launch], Writer]:
    def make(launch: Launch) -> Writer:
        axes, keepdim = attribute(launch, "axes"), bool(attribute(launch, "keepdim", False))
        if not axes:
            return lambda out, x: out.copy_(x)
        return lambda out, x: function(x, axes, keepdim, out=out)

    return make


WRITERS: dict[str, Callable[[Launch], Writer]] = {
    "copy": _copy,
    "matmul": _matmul,
    "addmm": _addmm,
    "concatenate": _concatenate,
    "sum": _sum,
    "mean": _reduction(torch.mean),
    "amax": _reduction(torch.amax),
    "amin": _reduction(torch.amin),
}


# ---- ops that allocate


def _pad(launch: Launch, device: Device) -> Maker:
    low, high = attribute(launch, "low"), attribute(launch, "high")
    pairs = zip(reversed(low), reversed(high), strict=True)
    amounts = [amount for pair in pairs for amount in pair]
    value = attribute(launch, "value", 0)
    return lambda x: (torch.constant_pad_nd(x, amounts, value),)


def _attention(launch: Launch, device: Device) -> Maker:
    if isinstance(device, CudaDevice):
        return attention.maker_for(launch, device) or _interpreted(launch, device)
    scale, causal = attribute(launch, "scale"), bool(attribute(launch, "causal", False))
    if not _flash_takes(launch, 0):
        return _interpreted(launch, device)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        q, k, v = _unit_stride(q), _unit_stride(k), _unit_stride(v)
        mask = _additive(mask, q)
        return cast(tuple[Tensor, ...], flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale))

    return run


def _attention_backward(launch: Launch, device: Device) -> Maker:
    if isinstance(device, CudaDevice):
        return attention.maker_for(launch, device) or _interpreted(launch, device)
    scale, causal = attribute(launch, "scale"), bool(attribute(launch, "causal", False))
    if not _flash_takes(launch, 1):
        return _interpreted(launch, device)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

    def run(
        gradient: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        out: Tensor,
        logsumexp: Tensor,
    ) -> tuple[Tensor, ...]:
        gradient, out = _unit_stride(gradient), _unit_stride(out)
        q, k, v = _unit_stride(q), _unit_stride(k), _unit_stride(v)
        mask = _additive(mask, q)
        gradients = flash(
            gradient, q, k, v, out, logsumexp, 0.0, causal, attn_mask=mask, scale=scale
        )
        return cast(tuple[Tensor, ...], gradients)

    return run


def _flash_takes(launch: Launch, query: int) -> bool:
    """Equal head sizes and something to do; the CPU kernel takes all dtypes, masks and groups."""
    q, k, v = (_operand_type(launch, query + index) for index in range(3))
    return bool(q.shape[3] == v.shape[3] and min(q.numel, k.numel) > 0)


def _unit_stride(tensor: Tensor) -> Tensor:
    """The CPU kernel reads the last axis as dense without asking."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """The mask as the CPU kernel takes it: added, of the query's dtype, of rank 2 or 4."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = like.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    elif mask.dtype != like.dtype:
        mask = mask.to(like.dtype)
    if mask.dim() in (2, 4):
        return mask
    return mask[(None,) * (4 - mask.dim())]


def _embedding(launch: Launch, device: Device) -> Maker:
    return lambda weight, ids: (torch.embedding(weight, ids),)


def _embedding_backward(launch: Launch, device: Device) -> Maker:
    rows, padding = attribute(launch, "rows"), attribute(launch, "padding_index", -1)
    scale = bool(attribute(launch, "scale_by_frequency", False))
    run = torch.ops.aten.embedding_dense_backward.default
    return lambda gradient, ids: (run(gradient, ids, rows, padding, scale),)


def _library(launch: Launch, device: Device) -> Maker:
    function = library_function(str(attribute(launch, "target")))
    given = cast(Any, attribute(launch, "arguments", ()))
    named = dict(cast(Any, attribute(launch, "keywords", ())) or ())
    arguments = [_template(item) for item in given]
    keywords = {name: _template(value) for name, value in named.items()}
    mask = output_mask(function, given, named)

    def run(*operands: Any) -> tuple[Tensor, ...]:
        result = function(
            *[fill(operands) for fill in arguments],
            **{name: fill(operands) for name, fill in keywords.items()},
        )
        if isinstance(result, Tensor):
            return (result,)
        return library_results(result, mask)

    if isinstance(device, CudaDevice) and device.deterministic:
        run = attention.reproducibly(run)
    return _owning(run)


def _template(item: Attribute) -> Callable[[tuple[Any, ...]], Any]:
    """A function from operands to one argument of an ATen call."""
    match item:
        case Hole(index):
            return lambda operands: operands[index]
        case tuple():
            parts = [_template(part) for part in item]
            return lambda operands: [part(operands) for part in parts]
        case DType():
            value: Any = to_torch_dtype(item)
        case str() if item.startswith("torch."):
            value = getattr(torch, item.removeprefix("torch."))
        case _:
            value = item
    return lambda operands: value


def _interpreted(launch: Launch, device: Device) -> Maker:
    """The op as the interpreter defines it."""
    operands = tuple(
        Value(f"operand{index}", argument.type) if isinstance(argument, View) else argument
        for index, argument in enumerate(launch.arguments)
    )
    results = tuple(Value(f"result{i}", view.type) for i, view in enumerate(launch.results))
    op = Op(launch.opcode, cast(Any, operands), results, launch.attributes, launch.location)
    context = Context(device=device.device)
    return _owning(lambda *tensors: evaluate(op, tensors, context))


def _owning(make: Maker) -> Maker:
    """Copies of what an op gives back of its operands: arena memory is soon something else."""

    def run(*operands: Any) -> tuple[Tensor, ...]:
        made = make(*operands)
        taken = {
            operand.untyped_storage().data_ptr()
            for operand in operands
            if isinstance(operand, Tensor)
        }
        owned = []
        for tensor in made:
            pointer = tensor.untyped_storage().data_ptr()
            owned.append(tensor.clone() if pointer in taken else tensor)
            taken.add(pointer)
        return tuple(owned)

    return run


MAKERS: dict[str, Callable[[Launch, Device], Maker]] = {
    "pad": _pad,
    "attention": _attention,
    "attention_backward": _attention_backward,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "library": _library,
}


def product(launch: Launch) -> Callable[..., Tensor] | None:
    """A product as a function that allocates its row-major result itself, where there is one.

    For a result that is returned anyway this spares an allocation from Python.
    """
    if attribute(launch, "dtype") is not None:
        return None
    if launch.opcode == "addmm":
        return torch.addmm
    rank = _operand_rank(launch, 0) if launch.opcode == "matmul" else 0
    return {2: torch.mm, 3: torch.bmm}.get(rank)


def writer(launch: Launch) -> Writer | None:
    """How the op writes into its result, or None where it has no true out=."""
    make = WRITERS.get(launch.opcode)
    return None if make is None else make(launch)


def maker(launch: Launch, device: Device) -> Maker:
    """How the op makes its results on this device."""
    if launch.opcode == "fused":
        raise VerifyError("a fused op has no kernel", launch.location.line)
    return MAKERS.get(launch.opcode, _interpreted)(launch, device)


def _operand_type(launch: Launch, index: int) -> Any:
    argument = launch.arguments[index]
    assert isinstance(argument, View), f"operand {index} of {launch.opcode} must be a tensor"
    return argument.type


def _operand_rank(launch: Launch, index: int) -> int:
    return int(_operand_type(launch, index).rank)
