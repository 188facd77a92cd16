"""Typical fused bodies as IR text, by dtype, rows and row length: what layers and losses become."""

from __future__ import annotations


def _wide(dtype: str) -> str:
    return "f64" if dtype == "f64" else "f32"


def _filled(text: str, dtype: str, rows: int, length: int) -> str:
    """`T`, `W`, `D`, `R` and `N` stand for the dtype, its compute type, and shapes."""
    full, row = f"[{rows},{length}]", f"[{rows},1]"
    for old, new in (("T@", dtype), ("W@", _wide(dtype)), ("@D", full), ("@R", row)):
        text = text.replace(old, new)
    text = text.replace("@N", f"[{length}]").replace("$T", dtype).replace("$W", _wide(dtype))
    return text.replace("$N", str(length)).replace("$R", str(rows)).strip()


def residual_layer_norm(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%x: T@@D = input operand
%residual: T@@D = input operand
%weight: T@@N = input operand
%bias: T@@N = input operand
%h: T@@D = add(%x, %residual)
%h.wide: W@@D = cast(%h) [dtype=$W]
%weight.wide: W@@N = cast(%weight) [dtype=$W]
%bias.wide: W@@N = cast(%bias) [dtype=$W]
%mean: W@@R = mean(%h.wide) [axes=[1], keepdim=true]
%centred: W@@D = sub(%h.wide, %mean)
%square: W@@D = mul(%centred, %centred)
%variance: W@@R = mean(%square) [axes=[1], keepdim=true]
%shifted: W@@R = add(%variance, 1e-05)
%rstd: W@@R = rsqrt(%shifted)
%normal: W@@D = mul(%centred, %rstd)
%scaled: W@@D = mul(%normal, %weight.wide)
%affine: W@@D = add(%scaled, %bias.wide)
%y: T@@D = cast(%affine) [dtype=$T]
output result = %h
output result = %y
output result = %mean
output result = %rstd
""",
        dtype,
        rows,
        length,
    )


def layer_norm_backward(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%gradient: T@@D = input operand
%x: T@@D = input operand
%mean: W@@R = input operand
%rstd: W@@R = input operand
%weight: T@@N = input operand
%gradient.wide: W@@D = cast(%gradient) [dtype=$W]
%x.wide: W@@D = cast(%x) [dtype=$W]
%weight.wide: W@@N = cast(%weight) [dtype=$W]
%centred: W@@D = sub(%x.wide, %mean)
%normal: W@@D = mul(%centred, %rstd)
%inner: W@@D = mul(%gradient.wide, %weight.wide)
%product: W@@D = mul(%inner, %normal)
%mean_product: W@@R = mean(%product) [axes=[1], keepdim=true]
%along: W@@D = mul(%normal, %mean_product)
%mean_gradient: W@@R = mean(%inner) [axes=[1], keepdim=true]
%flat: W@@D = sub(%inner, %mean_gradient)
%difference: W@@D = sub(%flat, %along)
%dx.wide: W@@D = mul(%difference, %rstd)
%dx: T@@D = cast(%dx.wide) [dtype=$T]
%weighted: W@@D = mul(%gradient.wide, %normal)
%dweight: T@@N = sum(%weighted) [axes=[0], dtype=$T, keepdim=false]
%dbias: T@@N = sum(%gradient.wide) [axes=[0], dtype=$T, keepdim=false]
output result = %dx
output result = %dweight
output result = %dbias
""",
        dtype,
        rows,
        length,
    )


def rms_norm(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%x: T@@D = input operand
%weight: T@@N = input operand
%x.wide: W@@D = cast(%x) [dtype=$W]
%weight.wide: W@@N = cast(%weight) [dtype=$W]
%square: W@@D = mul(%x.wide, %x.wide)
%mean_square: W@@R = mean(%square) [axes=[1], keepdim=true]
%shifted: W@@R = add(%mean_square, 1e-06)
%rstd: W@@R = rsqrt(%shifted)
%normal: W@@D = mul(%x.wide, %rstd)
%scaled: W@@D = mul(%normal, %weight.wide)
%y: T@@D = cast(%scaled) [dtype=$T]
output result = %y
output result = %rstd
""",
        dtype,
        rows,
        length,
    )


def rms_norm_backward(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%gradient: T@@D = input operand
%x: T@@D = input operand
%rstd: W@@R = input operand
%weight: T@@N = input operand
%gradient.wide: W@@D = cast(%gradient) [dtype=$W]
%x.wide: W@@D = cast(%x) [dtype=$W]
%weight.wide: W@@N = cast(%weight) [dtype=$W]
%normal: W@@D = mul(%x.wide, %rstd)
%inner: W@@D = mul(%gradient.wide, %weight.wide)
%product: W@@D = mul(%inner, %normal)
%mean_product: W@@R = mean(%product) [axes=[1], keepdim=true]
%along: W@@D = mul(%normal, %mean_product)
%difference: W@@D = sub(%inner, %along)
%dx.wide: W@@D = mul(%difference, %rstd)
%dx: T@@D = cast(%dx.wide) [dtype=$T]
%weighted: W@@D = mul(%gradient.wide, %normal)
%dweight: T@@N = sum(%weighted) [axes=[0], dtype=$T, keepdim=false]
output result = %dx
output result = %dweight
""",
        dtype,
        rows,
        length,
    )


def softmax(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%x: T@@D = input operand
%x.wide: W@@D = cast(%x) [dtype=$W]
%max: W@@R = amax(%x.wide) [axes=[1], keepdim=true]
%shifted: W@@D = sub(%x.wide, %max)
%exp: W@@D = exp(%shifted)
%sum: W@@R = sum(%exp) [axes=[1], keepdim=true]
%quotient: W@@D = div(%exp, %sum)
%y: T@@D = cast(%quotient) [dtype=$T]
output result = %y
""",
        dtype,
        rows,
        length,
    )


def softmax_backward(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%gradient: T@@D = input operand
%y: T@@D = input operand
%gradient.wide: W@@D = cast(%gradient) [dtype=$W]
%y.wide: W@@D = cast(%y) [dtype=$W]
%product: W@@D = mul(%gradient.wide, %y.wide)
%sum: W@@R = sum(%product) [axes=[1], keepdim=true]
%difference: W@@D = sub(%gradient.wide, %sum)
%dx.wide: W@@D = mul(%difference, %y.wide)
%dx: T@@D = cast(%dx.wide) [dtype=$T]
output result = %dx
""",
        dtype,
        rows,
        length,
    )


def silu_mul(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%gate: T@@D = input operand
%up: T@@D = input operand
%active: T@@D = silu(%gate)
%y: T@@D = mul(%active, %up)
output result = %y
""",
        dtype,
        rows,
        length,
    )


def silu_mul_backward(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%gradient: T@@D = input operand
%gate: T@@D = input operand
%up: T@@D = input operand
%active: T@@D = silu(%gate)
%dup: T@@D = mul(%gradient, %active)
%dactive: T@@D = mul(%gradient, %up)
%dgate: T@@D = silu_backward(%dactive, %gate)
output result = %dgate
output result = %dup
""",
        dtype,
        rows,
        length,
    )


def bias_gelu(dtype: str, rows: int, length: int, approximate: str = "none") -> str:
    return _filled(
        f"""
%x: T@@D = input operand
%bias: T@@N = input operand
%biased: T@@D = add(%x, %bias)
%y: T@@D = gelu(%biased) [approximate="{approximate}"]
output result = %y
""",
        dtype,
        rows,
        length,
    )


def bias_gelu_backward(dtype: str, rows: int, length: int, approximate: str = "none") -> str:
    return _filled(
        f"""
%gradient: T@@D = input operand
%x: T@@D = input operand
%bias: T@@N = input operand
%biased: T@@D = add(%x, %bias)
%dx: T@@D = gelu_backward(%gradient, %biased) [approximate="{approximate}"]
%dbias: T@@N = sum(%dx) [axes=[0], dtype=$T, keepdim=false]
output result = %dx
output result = %dbias
""",
        dtype,
        rows,
        length,
    )


def dropout(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%x: T@@D = input operand
%key: i64[] = input operand
%keep: b8@D = bernoulli(%key) [bits=16, probability=0.1, shape=[$R, $N], stream=7]
%scaled: T@@D = mul(%x, 1.1111111111111112)
%y: T@@D = where(%keep, %scaled, 0)
output result = %y
""",
        dtype,
        rows,
        length,
    )


def cross_entropy(dtype: str, rows: int, length: int) -> str:
    """Mean over rows, and each row's logsumexp."""
    return _filled(
        """
%logits: T@@D = input operand
%target: i64@R = input operand
%x: W@@D = cast(%logits) [dtype=$W]
%max: W@@R = amax(%x) [axes=[1], keepdim=true]
%shifted: W@@D = sub(%x, %max)
%exp: W@@D = exp(%shifted)
%sum: W@@R = sum(%exp) [axes=[1], keepdim=true]
%log: W@@R = log(%sum)
%logsumexp: W@@R = add(%log, %max)
%class: i64@N = iota() [dtype=i64, length=$N, start=0, step=1]
%is_target: b8@D = eq(%class, %target)
%chosen: W@@D = where(%is_target, %x, 0)
%picked: W@@R = sum(%chosen) [axes=[1], keepdim=true]
%row_loss: W@@R = sub(%logsumexp, %picked)
%loss: T@[] = mean(%row_loss) [axes=[0, 1], keepdim=false]
output result = %loss
output result = %logsumexp
""".replace("%loss: T@[] = mean(%row_loss)", "%loss: W@[] = mean(%row_loss)"),
        dtype,
        rows,
        length,
    )


def cross_entropy_backward(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%gradient: W@[] = input operand
%logits: T@@D = input operand
%target: i64@R = input operand
%logsumexp: W@@R = input operand
%x: W@@D = cast(%logits) [dtype=$W]
%shifted: W@@D = sub(%x, %logsumexp)
%probability: W@@D = exp(%shifted)
%class: i64@N = iota() [dtype=i64, length=$N, start=0, step=1]
%is_target: b8@D = eq(%class, %target)
%one: W@@D = where(%is_target, 1, 0) [dtype=$W]
%difference: W@@D = sub(%probability, %one)
%share: W@[] = div(%gradient, $R)
%dx: W@@D = mul(%difference, %share)
%dlogits: T@@D = cast(%dx) [dtype=$T]
output result = %dlogits
""",
        dtype,
        rows,
        length,
    )


def block_forward(dtype: str, rows: int, length: int) -> str:
    """Residual + LayerNorm, bias + GELU, dropout, residual + RMSNorm, softmax cross-entropy."""
    return _filled(
        """
%x: T@@D = input operand
%residual: T@@D = input operand
%ln.weight: T@@N = input operand
%ln.bias: T@@N = input operand
%bias: T@@N = input operand
%rms.weight: T@@N = input operand
%target: i64@R = input operand
%key: i64[] = input operand
%h: T@@D = add(%x, %residual)
%h.wide: W@@D = cast(%h) [dtype=$W]
%ln.weight.wide: W@@N = cast(%ln.weight) [dtype=$W]
%ln.bias.wide: W@@N = cast(%ln.bias) [dtype=$W]
%mean: W@@R = mean(%h.wide) [axes=[1], keepdim=true]
%centred: W@@D = sub(%h.wide, %mean)
%square: W@@D = mul(%centred, %centred)
%variance: W@@R = mean(%square) [axes=[1], keepdim=true]
%shifted: W@@R = add(%variance, 1e-05)
%rstd: W@@R = rsqrt(%shifted)
%normal: W@@D = mul(%centred, %rstd)
%scaled: W@@D = mul(%normal, %ln.weight.wide)
%affine: W@@D = add(%scaled, %ln.bias.wide)
%ln: T@@D = cast(%affine) [dtype=$T]
%biased: T@@D = add(%ln, %bias)
%gelu: T@@D = gelu(%biased)
%keep: b8@D = bernoulli(%key) [bits=16, probability=0.1, shape=[$R, $N], stream=7]
%gelu.scaled: T@@D = mul(%gelu, 1.1111111111111112)
%dropped: T@@D = where(%keep, %gelu.scaled, 0)
%z: T@@D = add(%dropped, %h)
%z.wide: W@@D = cast(%z) [dtype=$W]
%rms.weight.wide: W@@N = cast(%rms.weight) [dtype=$W]
%z.square: W@@D = mul(%z.wide, %z.wide)
%mean_square: W@@R = mean(%z.square) [axes=[1], keepdim=true]
%rms.shifted: W@@R = add(%mean_square, 1e-06)
%rms.rstd: W@@R = rsqrt(%rms.shifted)
%rms.normal: W@@D = mul(%z.wide, %rms.rstd)
%rms.scaled: W@@D = mul(%rms.normal, %rms.weight.wide)
%logits: T@@D = cast(%rms.scaled) [dtype=$T]
%logits.wide: W@@D = cast(%logits) [dtype=$W]
%max: W@@R = amax(%logits.wide) [axes=[1], keepdim=true]
%logits.shifted: W@@D = sub(%logits.wide, %max)
%exp: W@@D = exp(%logits.shifted)
%sum: W@@R = sum(%exp) [axes=[1], keepdim=true]
%log: W@@R = log(%sum)
%logsumexp: W@@R = add(%log, %max)
%class: i64@N = iota() [dtype=i64, length=$N, start=0, step=1]
%is_target: b8@D = eq(%class, %target)
%chosen: W@@D = where(%is_target, %logits.wide, 0)
%picked: W@@R = sum(%chosen) [axes=[1], keepdim=true]
%row_loss: W@@R = sub(%logsumexp, %picked)
%loss: W@[] = mean(%row_loss) [axes=[0, 1], keepdim=false]
output result = %h
output result = %mean
output result = %rstd
output result = %z
output result = %rms.rstd
output result = %logsumexp
output result = %loss
""",
        dtype,
        rows,
        length,
    )


def block_backward(dtype: str, rows: int, length: int) -> str:
    return _filled(
        """
%gradient: W@[] = input operand
%h: T@@D = input operand
%z: T@@D = input operand
%mean: W@@R = input operand
%rstd: W@@R = input operand
%rms.rstd: W@@R = input operand
%logsumexp: W@@R = input operand
%ln.weight: T@@N = input operand
%ln.bias: T@@N = input operand
%bias: T@@N = input operand
%rms.weight: T@@N = input operand
%target: i64@R = input operand
%key: i64[] = input operand
%ln.weight.wide: W@@N = cast(%ln.weight) [dtype=$W]
%ln.bias.wide: W@@N = cast(%ln.bias) [dtype=$W]
%rms.weight.wide: W@@N = cast(%rms.weight) [dtype=$W]
%z.wide: W@@D = cast(%z) [dtype=$W]
%rms.normal: W@@D = mul(%z.wide, %rms.rstd)
%rms.scaled: W@@D = mul(%rms.normal, %rms.weight.wide)
%logits: T@@D = cast(%rms.scaled) [dtype=$T]
%logits.wide: W@@D = cast(%logits) [dtype=$W]
%logits.shifted: W@@D = sub(%logits.wide, %logsumexp)
%probability: W@@D = exp(%logits.shifted)
%class: i64@N = iota() [dtype=i64, length=$N, start=0, step=1]
%is_target: b8@D = eq(%class, %target)
%one: W@@D = where(%is_target, 1, 0) [dtype=$W]
%difference: W@@D = sub(%probability, %one)
%share: W@[] = div(%gradient, $R)
%dlogits.wide: W@@D = mul(%difference, %share)
%dlogits: T@@D = cast(%dlogits.wide) [dtype=$T]
%dy: W@@D = cast(%dlogits) [dtype=$W]
%rms.inner: W@@D = mul(%dy, %rms.weight.wide)
%rms.product: W@@D = mul(%rms.inner, %rms.normal)
%rms.mean_product: W@@R = mean(%rms.product) [axes=[1], keepdim=true]
%rms.along: W@@D = mul(%rms.normal, %rms.mean_product)
%rms.difference: W@@D = sub(%rms.inner, %rms.along)
%dz.wide: W@@D = mul(%rms.difference, %rms.rstd)
%dz: T@@D = cast(%dz.wide) [dtype=$T]
%rms.weighted: W@@D = mul(%dy, %rms.normal)
%rms.dweight: T@@N = sum(%rms.weighted) [axes=[0], dtype=$T, keepdim=false]
%keep: b8@D = bernoulli(%key) [bits=16, probability=0.1, shape=[$R, $N], stream=7]
%dz.scaled: T@@D = mul(%dz, 1.1111111111111112)
%ddropped: T@@D = where(%keep, %dz.scaled, 0)
%h.wide: W@@D = cast(%h) [dtype=$W]
%centred: W@@D = sub(%h.wide, %mean)
%normal: W@@D = mul(%centred, %rstd)
%scaled: W@@D = mul(%normal, %ln.weight.wide)
%affine: W@@D = add(%scaled, %ln.bias.wide)
%ln: T@@D = cast(%affine) [dtype=$T]
%biased: T@@D = add(%ln, %bias)
%dbiased: T@@D = gelu_backward(%ddropped, %biased)
%dbias: T@@N = sum(%dbiased) [axes=[0], dtype=$T, keepdim=false]
%dln: W@@D = cast(%dbiased) [dtype=$W]
%inner: W@@D = mul(%dln, %ln.weight.wide)
%product: W@@D = mul(%inner, %normal)
%mean_product: W@@R = mean(%product) [axes=[1], keepdim=true]
%along: W@@D = mul(%normal, %mean_product)
%mean_gradient: W@@R = mean(%inner) [axes=[1], keepdim=true]
%flat: W@@D = sub(%inner, %mean_gradient)
%ln.difference: W@@D = sub(%flat, %along)
%dh.wide: W@@D = mul(%ln.difference, %rstd)
%dh: T@@D = cast(%dh.wide) [dtype=$T]
%weighted: W@@D = mul(%dln, %normal)
%ln.dweight: T@@N = sum(%weighted) [axes=[0], dtype=$T, keepdim=false]
%ln.dbias: T@@N = sum(%dln) [axes=[0], dtype=$T, keepdim=false]
%dx: T@@D = add(%dh, %dz)
output result = %dx
output result = %rms.dweight
output result = %dbias
output result = %ln.dweight
output result = %ln.dbias
""",
        dtype,
        rows,
        length,
    )
