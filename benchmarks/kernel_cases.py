"""The kernels that training steps spend their time in: as IR, as PyTorch, and what they reach.

Input: rows, row length, dtype. Output: `KernelCase`s. The IR is what capture gives for the PyTorch
function beside it. Targets are percentages of the bandwidth of a copy.
"""

# ruff: noqa: E501 - one operation a line, as capture prints it

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

Tensor = torch.Tensor
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
VOCABULARY = 128256


@dataclass(frozen=True)
class KernelCase:
    """One kernel on one shape.

    `eager` takes the inputs. Of a backward case it returns outputs, and what is timed is the
    gradient of those at `upstream` with respect to the inputs named in `wanted`.
    """

    name: str
    text: str
    inputs: Callable[[], dict[str, Tensor]]
    eager: Callable[..., Any]
    target_percent: float | None = None
    upstream: str = ""
    wanted: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()  # results compared with eager's, in its order
    in_place: tuple[tuple[str, str], ...] = ()  # (input, result) in the same memory
    rtol: float = 2e-2
    exact: bool = True  # compare with float64; what is random is not
    peers: dict[str, Callable[..., Any]] = field(default_factory=dict)


def cases(rows: int, lengths: tuple[int, ...], dtypes: tuple[str, ...]) -> Iterator[KernelCase]:
    """Every kernel of the list, in all shapes."""
    for dtype in dtypes:
        for length in lengths:
            for make in (*_FORWARD, *_BACKWARD):
                yield make(rows, length, dtype)
            if length >= 4096:
                for make in _POINTWISE:
                    yield make(rows, length, dtype)
    if len(lengths) > 1:
        yield from _odd(rows)
        yield cross_entropy(4096, VOCABULARY, "bf16")
        yield embedding_backward(rows, 2048)


def _odd(rows: int) -> Iterator[KernelCase]:
    for length in (1000, 4097, 65536):
        for make in (rms_norm, softmax, rms_norm_backward):
            yield make(rows, length, "bf16", 75.0)
    for make in (rms_norm, softmax):
        yield make(2048, 262144, "bf16", 75.0)


def _target(length: int, small: float, middle: float, large: float) -> float:
    return small if length < 4096 else middle if length < 8192 else large


def _forward_target(length: int) -> float:
    return _target(length, 78.0, 90.0, 94.0)


def _backward_target(length: int) -> float:
    return _target(length, 68.0, 87.0, 93.0)


def _random(*shape: int, dtype: str, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(DTYPES[dtype])


def _weight(length: int, dtype: str) -> Tensor:
    return (1 + 0.1 * _random(length, dtype="f32", seed=7)).to(DTYPES[dtype])


def _graph(lines: str, **shapes: object) -> str:
    body = "\n".join(f"  {line.strip()}" for line in lines.strip().splitlines())
    return "graph forward {\n" + body.format(**shapes) + "\n}\n"


# -- forward


def rms_norm(rows: int, length: int, dtype: str, target: float | None = None) -> KernelCase:
    return KernelCase(
        f"rms_norm {dtype} {rows}x{length}",
        _graph(
            """
            %x: {t}[{m},{n}] = input argument "x"
            %weight: {t}[{n}] = input parameter "weight"
            %y: {t}[{m},{n}], %rstd: f32[{m},1] = rms_norm(%x, %weight) [axes=1, epsilon=1e-06, style="torch"]
            output result "y" = %y
            output residual "rstd" = %rstd
            """,
            t=dtype,
            m=rows,
            n=length,
        ),
        lambda: {"x": _random(rows, length, dtype=dtype), "weight": _weight(length, dtype)},
        lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-6),
        target or _forward_target(length),
        outputs=("y",),
        peers=_peers("rms_norm"),
    )


def layer_norm(rows: int, length: int, dtype: str, target: float | None = None) -> KernelCase:
    return KernelCase(
        f"layer_norm {dtype} {rows}x{length}",
        _graph(
            """
            %x: {t}[{m},{n}] = input argument "x"
            %weight: {t}[{n}] = input parameter "weight"
            %bias: {t}[{n}] = input parameter "bias"
            %y: {t}[{m},{n}], %mean: f32[{m},1], %rstd: f32[{m},1] = layer_norm(%x, %weight, %bias) [axes=1, epsilon=1e-05]
            output result "y" = %y
            output residual "mean" = %mean
            output residual "rstd" = %rstd
            """,
            t=dtype,
            m=rows,
            n=length,
        ),
        lambda: {
            "x": _random(rows, length, dtype=dtype),
            "weight": _weight(length, dtype),
            "bias": _random(length, dtype=dtype, seed=3),
        },
        lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias),
        target or _forward_target(length),
        outputs=("y",),
        peers=_peers("layer_norm"),
    )


def add_rms_norm(rows: int, length: int, dtype: str, target: float | None = None) -> KernelCase:
    def eager(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        return h, F.rms_norm(h, weight.shape, weight, 1e-6)

    return KernelCase(
        f"residual+rms_norm {dtype} {rows}x{length}",
        _graph(
            """
            %x: {t}[{m},{n}] = input argument "x"
            %residual: {t}[{m},{n}] = input argument "residual"
            %weight: {t}[{n}] = input parameter "weight"
            %h: {t}[{m},{n}] = add(%x, %residual)
            %y: {t}[{m},{n}], %rstd: f32[{m},1] = rms_norm(%h, %weight) [axes=1, epsilon=1e-06, style="torch"]
            output result "h" = %h
            output result "y" = %y
            output residual "rstd" = %rstd
            """,
            t=dtype,
            m=rows,
            n=length,
        ),
        lambda: {
            "x": _random(rows, length, dtype=dtype),
            "residual": _random(rows, length, dtype=dtype, seed=1),
            "weight": _weight(length, dtype),
        },
        eager,
        target or _forward_target(length),
        outputs=("h", "y"),
    )


def softmax(rows: int, length: int, dtype: str, target: float | None = None) -> KernelCase:
    return KernelCase(
        f"softmax {dtype} {rows}x{length}",
        _graph(
            """
            %x: {t}[{m},{n}] = input argument "x"
            %y: {t}[{m},{n}] = softmax(%x) [axis=1]
            output result "y" = %y
            """,
            t=dtype,
            m=rows,
            n=length,
        ),
        lambda: {"x": _random(rows, length, dtype=dtype)},
        lambda x: torch.softmax(x, -1),
        target or _forward_target(length),
        outputs=("y",),
        peers=_peers("softmax"),
    )


# -- backward


def rms_norm_backward(
    rows: int, length: int, dtype: str, target: float | None = None
) -> KernelCase:
    def inputs() -> dict[str, Tensor]:
        x = _random(rows, length, dtype=dtype)
        rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        gradient = _random(rows, length, dtype=dtype, seed=1)
        return {"gradient": gradient, "x": x, "rstd": rstd, "weight": _weight(length, dtype)}

    return KernelCase(
        f"rms_norm backward {dtype} {rows}x{length}",
        _graph(
            """
            %gradient: {t}[{m},{n}] = input tangent "y"
            %x: {t}[{m},{n}] = input argument "x"
            %rstd: f32[{m},1] = input argument "rstd"
            %weight: {t}[{n}] = input parameter "weight"
            %dx: {t}[{m},{n}], %dweight: {t}[{n}] = rms_norm_backward(%gradient, %x, %rstd, %weight) [axes=1, needs=[true, true], style="torch"]
            output gradient "argument:x" = %dx
            output gradient "weight" = %dweight
            """,
            t=dtype,
            m=rows,
            n=length,
        ),
        inputs,
        lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-6),
        target or _backward_target(length),
        upstream="gradient",
        wanted=("x", "weight"),
        outputs=("dx", "dweight"),
        peers=_peers("rms_norm"),
    )


def layer_norm_backward(
    rows: int, length: int, dtype: str, target: float | None = None
) -> KernelCase:
    def inputs() -> dict[str, Tensor]:
        x = _random(rows, length, dtype=dtype)
        mean = x.float().mean(-1, keepdim=True)
        rstd = torch.rsqrt((x.float() - mean).square().mean(-1, keepdim=True) + 1e-5)
        return {
            "gradient": _random(rows, length, dtype=dtype, seed=1),
            "x": x,
            "mean": mean,
            "rstd": rstd,
            "weight": _weight(length, dtype),
            "bias": _random(length, dtype=dtype, seed=3),
        }

    return KernelCase(
        f"layer_norm backward {dtype} {rows}x{length}",
        _graph(
            """
            %gradient: {t}[{m},{n}] = input tangent "y"
            %x: {t}[{m},{n}] = input argument "x"
            %mean: f32[{m},1] = input argument "mean"
            %rstd: f32[{m},1] = input argument "rstd"
            %weight: {t}[{n}] = input parameter "weight"
            %dx: {t}[{m},{n}], %dweight: {t}[{n}], %dbias: {t}[{n}] = layer_norm_backward(%gradient, %x, %mean, %rstd, %weight) [axes=1, needs=[true, true, true]]
            output gradient "argument:x" = %dx
            output gradient "weight" = %dweight
            output gradient "bias" = %dbias
            """,
            t=dtype,
            m=rows,
            n=length,
        ),
        inputs,
        lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias),
        target or _backward_target(length),
        upstream="gradient",
        wanted=("x", "weight", "bias"),
        outputs=("dx", "dweight", "dbias"),
        peers=_peers("layer_norm"),
    )


def softmax_backward(rows: int, length: int, dtype: str, target: float | None = None) -> KernelCase:
    def inputs() -> dict[str, Tensor]:
        x = _random(rows, length, dtype=dtype)
        gradient = _random(rows, length, dtype=dtype, seed=1)
        return {"gradient": gradient, "y": torch.softmax(x, -1), "x": x}

    return KernelCase(
        f"softmax backward {dtype} {rows}x{length}",
        _graph(
            """
            %gradient: {t}[{m},{n}] = input tangent "y"
            %y: {t}[{m},{n}] = input argument "y"
            %dx: {t}[{m},{n}] = softmax_backward(%gradient, %y) [axis=1]
            output gradient "argument:x" = %dx
            """,
            t=dtype,
            m=rows,
            n=length,
        ),
        inputs,
        lambda x: torch.softmax(x, -1),
        target or _backward_target(length),
        upstream="gradient",
        wanted=("x",),
        outputs=("dx",),
    )


# -- pointwise


def _pointwise(
    name: str,
    lines: str,
    names: tuple[str, ...],
    eager: Callable[..., Any],
    rows: int,
    length: int,
    dtype: str,
    **more: Any,
) -> KernelCase:
    def inputs() -> dict[str, Tensor]:
        given = {n: _random(rows, length, dtype=dtype, seed=i) for i, n in enumerate(names)}
        if "key" in lines:
            given["key"] = torch.tensor(1234567890123, device="cuda")
        return given

    head = "".join(f'%{n}: {dtype}[{rows},{length}] = input argument "{n}"\n' for n in names)
    if "key" in lines:
        head += '%key: i64[] = input key ""\n'
    full = f"{dtype}[{rows},{length}]"
    return KernelCase(
        f"{name} {dtype} {rows}x{length}",
        _graph(head + lines.replace("FULL", full).replace("SHAPE", f"[{rows},{length}]")),
        inputs,
        eager,
        95.0,
        **more,
    )


def silu_mul(rows: int, length: int, dtype: str) -> KernelCase:
    return _pointwise(
        "silu*mul",
        '%a: FULL = silu(%gate)\n%y: FULL = mul(%a, %up)\noutput result "y" = %y',
        ("gate", "up"),
        lambda gate, up: F.silu(gate) * up,
        rows,
        length,
        dtype,
        outputs=("y",),
        peers=_peers("silu_mul"),
    )


def silu_mul_backward(rows: int, length: int, dtype: str) -> KernelCase:
    return _pointwise(
        "silu*mul backward",
        """%a: FULL = silu(%gate)
        %dup: FULL = mul(%gradient, %a)
        %da: FULL = mul(%gradient, %up)
        %dgate: FULL = silu_backward(%da, %gate)
        output gradient "argument:gate" = %dgate
        output gradient "argument:up" = %dup""",
        ("gradient", "gate", "up"),
        lambda gate, up: F.silu(gate) * up,
        rows,
        length,
        dtype,
        upstream="gradient",
        wanted=("gate", "up"),
        outputs=("dgate", "dup"),
        peers=_peers("silu_mul"),
    )


def gelu(rows: int, length: int, dtype: str) -> KernelCase:
    return _pointwise(
        "gelu",
        '%y: FULL = gelu(%x)\noutput result "y" = %y',
        ("x",),
        lambda x: F.gelu(x),
        rows,
        length,
        dtype,
        outputs=("y",),
    )


def gelu_backward(rows: int, length: int, dtype: str) -> KernelCase:
    return _pointwise(
        "gelu backward",
        '%dx: FULL = gelu_backward(%gradient, %x)\noutput gradient "argument:x" = %dx',
        ("gradient", "x"),
        lambda x: F.gelu(x),
        rows,
        length,
        dtype,
        upstream="gradient",
        wanted=("x",),
        outputs=("dx",),
    )


def gelu_mul(rows: int, length: int, dtype: str) -> KernelCase:
    return _pointwise(
        "gelu*mul",
        '%a: FULL = gelu(%gate)\n%y: FULL = mul(%a, %up)\noutput result "y" = %y',
        ("gate", "up"),
        lambda gate, up: F.gelu(gate) * up,
        rows,
        length,
        dtype,
        outputs=("y",),
    )


def gelu_mul_backward(rows: int, length: int, dtype: str) -> KernelCase:
    return _pointwise(
        "gelu*mul backward",
        """%a: FULL = gelu(%gate)
        %dup: FULL = mul(%gradient, %a)
        %da: FULL = mul(%gradient, %up)
        %dgate: FULL = gelu_backward(%da, %gate)
        output gradient "argument:gate" = %dgate
        output gradient "argument:up" = %dup""",
        ("gradient", "gate", "up"),
        lambda gate, up: F.gelu(gate) * up,
        rows,
        length,
        dtype,
        upstream="gradient",
        wanted=("gate", "up"),
        outputs=("dgate", "dup"),
    )


def dropout_add(rows: int, length: int, dtype: str) -> KernelCase:
    return _pointwise(
        "dropout+residual",
        """%d: FULL = dropout(%x, %key) [probability=0.1, stream=3]
        %y: FULL = add(%d, %residual)
        output result "y" = %y""",
        ("x", "residual"),
        lambda x, residual: F.dropout(x, 0.1) + residual,
        rows,
        length,
        dtype,
        outputs=("y",),
        exact=False,
    )


def rope(rows: int, length: int, dtype: str) -> KernelCase:
    """Rotary embedding of heads of 128, as Hugging Face's Llama writes it."""
    tokens, heads, half = rows, length // 128, 64

    def inputs() -> dict[str, Tensor]:
        angles = _random(tokens, 128, dtype="f32", seed=2)
        return {
            "x": _random(1, heads, tokens, 128, dtype=dtype),
            "cos": angles.cos().to(DTYPES[dtype]),
            "sin": angles.sin().to(DTYPES[dtype]),
        }

    return KernelCase(
        f"rope {dtype} {rows}x{length}",
        _graph(
            """
            %x: {t}[1,{heads},{m},128] = input argument "x"
            %cos: {t}[{m},128] = input argument "cos"
            %sin: {t}[{m},128] = input argument "sin"
            %a: {t}[1,{heads},{m},64] = slice(%x) [axis=3, start=0, step=1, stop=64]
            %b: {t}[1,{heads},{m},64] = slice(%x) [axis=3, start=64, step=1, stop=128]
            %n: {t}[1,{heads},{m},64] = neg(%b)
            %turned: {t}[1,{heads},{m},128] = concatenate(%n, %a) [axis=3]
            %straight: {t}[1,{heads},{m},128] = mul(%x, %cos)
            %crossed: {t}[1,{heads},{m},128] = mul(%turned, %sin)
            %y: {t}[1,{heads},{m},128] = add(%straight, %crossed)
            output result "y" = %y
            """,
            t=dtype,
            m=tokens,
            heads=heads,
        ),
        inputs,
        lambda x, cos, sin: x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin,
        95.0,
        outputs=("y",),
    )


def rope_backward(rows: int, length: int, dtype: str) -> KernelCase:
    forward = rope(rows, length, dtype)

    def inputs() -> dict[str, Tensor]:
        gradient = _random(1, length // 128, rows, 128, dtype=dtype, seed=4)
        return {"gradient": gradient, **forward.inputs()}

    return KernelCase(
        f"rope backward {dtype} {rows}x{length}",
        _graph(
            """
            %gradient: {t}[1,{heads},{m},128] = input tangent "y"
            %cos: {t}[{m},128] = input argument "cos"
            %sin: {t}[{m},128] = input argument "sin"
            %straight: {t}[1,{heads},{m},128] = mul(%gradient, %cos)
            %crossed: {t}[1,{heads},{m},128] = mul(%gradient, %sin)
            %a: {t}[1,{heads},{m},64] = slice(%crossed) [axis=3, start=0, step=1, stop=64]
            %b: {t}[1,{heads},{m},64] = slice(%crossed) [axis=3, start=64, step=1, stop=128]
            %n: {t}[1,{heads},{m},64] = neg(%a)
            %above: {t}[1,{heads},{m},128] = pad(%n) [high=[0, 0, 0, 0], low=[0, 0, 0, 64], value=0]
            %below: {t}[1,{heads},{m},128] = pad(%b) [high=[0, 0, 0, 64], low=[0, 0, 0, 0], value=0]
            %both: {t}[1,{heads},{m},128] = add(%above, %below)
            %dx: {t}[1,{heads},{m},128] = add(%straight, %both)
            output gradient "argument:x" = %dx
            """,
            t=dtype,
            m=rows,
            heads=length // 128,
        ),
        inputs,
        forward.eager,
        95.0,
        upstream="gradient",
        wanted=("x",),
        outputs=("dx",),
    )


# -- losses and tables


def cross_entropy(rows: int, length: int, dtype: str) -> KernelCase:
    def inputs() -> dict[str, Tensor]:
        generator = torch.Generator("cuda").manual_seed(5)
        target = torch.randint(length, (rows,), generator=generator, device="cuda")
        gradient = torch.ones((), device="cuda", dtype=DTYPES[dtype])
        return {
            "gradient": gradient,
            "logits": _random(rows, length, dtype=dtype),
            "target": target,
        }

    return KernelCase(
        f"cross_entropy with gradient {dtype} {rows}x{length}",
        _graph(
            """
            %gradient: {t}[] = input tangent "loss"
            %logits: {t}[{m},{n}] = input argument "logits"
            %target: i64[{m}] = input argument "target"
            %loss: {t}[], %logsumexp: f32[{m}], %divisor: f32[] = cross_entropy(%logits, %target, none) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]
            %dlogits: {t}[{m},{n}] = cross_entropy_backward(%gradient, %logits, %target, none, %logsumexp, %divisor) [ignore_index=-100, label_smoothing=0.0, reduction="sum"]
            output result "loss" = %loss
            output gradient "argument:logits" = %dlogits
            """,
            t=dtype,
            m=rows,
            n=length,
        ),
        inputs,
        lambda logits, target: F.cross_entropy(logits, target, reduction="sum"),
        91.0,
        wanted=("logits",),
        outputs=("dlogits",),
        in_place=(("logits", "dlogits"),),
        peers=_peers("cross_entropy"),
    )


def embedding_backward(ids: int, width: int) -> KernelCase:
    def inputs() -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        share = 1.0 / torch.arange(1, VOCABULARY + 1, dtype=torch.float64)
        rank = torch.multinomial(share, ids, replacement=True, generator=generator)
        numbers = torch.randperm(VOCABULARY, generator=generator)[rank].cuda()
        return {
            "gradient": _random(ids, width, dtype="bf16"),
            "ids": numbers,
            "table": torch.zeros(VOCABULARY, width, device="cuda", dtype=torch.bfloat16),
        }

    return KernelCase(
        f"embedding backward bf16 {ids} ids, {VOCABULARY}x{width}",
        _graph(
            """
            %gradient: bf16[{m},{n}] = input tangent "y"
            %ids: i64[{m}] = input argument "ids"
            %dtable: bf16[{v},{n}] = embedding_backward(%gradient, %ids) [padding_index=-1, rows={v}, scale_by_frequency=false]
            output gradient "weight" = %dtable
            """,
            m=ids,
            n=width,
            v=VOCABULARY,
        ),
        inputs,
        lambda ids, table: F.embedding(ids, table),
        70.0,
        upstream="gradient",
        wanted=("table",),
        outputs=("dtable",),
    )


_FORWARD = (rms_norm, layer_norm, add_rms_norm, softmax)
_BACKWARD = (rms_norm_backward, layer_norm_backward, softmax_backward)
_POINTWISE = (
    silu_mul,
    silu_mul_backward,
    gelu,
    gelu_backward,
    gelu_mul,
    gelu_mul_backward,
    dropout_add,
    rope,
    rope_backward,
)


# -- peers, where they are installed


def _peers(name: str) -> dict[str, Callable[..., Any]]:
    found = {}
    for library in ("liger", "quack"):
        function = globals().get(f"_{library}_{name}")
        if function is not None:
            found[library] = function
    return found


def _liger_rms_norm(x: Tensor, weight: Tensor) -> Any:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)


def _liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, 1e-5)


def _liger_softmax(x: Tensor) -> Any:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


def _liger_silu_mul(gate: Tensor, up: Tensor) -> Any:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(gate, up)


def _liger_cross_entropy(logits: Tensor, target: Tensor) -> Any:
    from liger_kernel.transformers import LigerCrossEntropyLoss

    return LigerCrossEntropyLoss(reduction="sum")(logits, target)


def _quack_rms_norm(x: Tensor, weight: Tensor) -> Any:
    from quack.rmsnorm import rmsnorm

    return rmsnorm(x, weight, eps=1e-6)


def _quack_softmax(x: Tensor) -> Any:
    from quack.softmax import softmax as quack_softmax

    return quack_softmax(x)


def _quack_cross_entropy(logits: Tensor, target: Tensor) -> Any:
    from quack.cross_entropy import cross_entropy as quack_cross_entropy

    return quack_cross_entropy(logits, target, reduction="sum", inplace_backward=True)
