"""layer_norm, rms_norm and their derivatives as primitives.

The variance is the mean of squared deviations from the mean, never E[x²]-E[x]². Everything between
the operands and the one rounding of each result is in the compute type; only the llama style rounds
x̂ before the weight, as the model it comes from does.

    %y, %mean, %rstd = layer_norm(%x, %weight, %bias) [axes=1, epsilon=1e-05]
becomes
    %near = sub(%x, mean(%x))         %mean = add(mean(%x), mean(%near))
    %rstd = rsqrt(%shifted)           %shifted = add(mean(mul(%near, %near)), 1e-05)
    %y = multiply_add(mul(sub(%x, %mean), %rstd), %weight, %bias)

Backward, with inner = gradient * weight and x̂ = (x - mean) * rstd, is
    dx = rstd * (inner - mean(inner) - x̂ * mean(inner * x̂))
       = inner * rstd + (x̂ * slope + lift), where slope and lift are numbers of the row.
"""

from __future__ import annotations

from rudagraph.ir.graph import Value
from rudagraph.ir.types import DType
from rudagraph.passes.expansion import Expansion, merged_tail


def expand_layer_norm(e: Expansion) -> None:
    y, mean_result, rstd_result = e.op.results
    axes, x = e.integer("axes"), _input(e, 0)
    weight, bias = _affine(e, 1), _affine(e, 2)
    # A sum of many numbers far from 0 is off by some of their ulps; the mean of what is left of
    # them corrects it, in the pass that the variance takes anyway.
    first = e.row("mean", x, "first_mean")
    near = e.one("near", "sub", x, first)
    mean = _statistic(e, mean_result, "add", (first, e.row("mean", near, "rest")), axes)
    variance = e.row("mean", e.one("square", "mul", near, near), "variance")
    shifted = e.one("shifted", "add", variance, e.number("epsilon"))
    rstd = _statistic(e, rstd_result, "rsqrt", (shifted,), axes)
    normal, _ = _normal(e, x, mean, rstd, e.value(0).type.dtype)
    _finish(e, y, _scale_and_shift(e, normal, weight, bias))


def expand_rms_norm(e: Expansion) -> None:
    y, rstd_result = e.op.results
    x, weight = _input(e, 0), _affine(e, 1)
    square = e.one("square", "mul", x, x)
    mean = e.row("mean", square, "mean_square")
    shifted = e.one("shifted", "add", mean, e.number("epsilon"))
    rstd = _statistic(e, rstd_result, "rsqrt", (shifted,), e.integer("axes"))
    normal = e.one("normal", "mul", x, rstd)
    if e.op["style"] == "llama":
        normal = _rounded(e, normal, y.type.dtype)
    _finish(e, y, _scale_and_shift(e, normal, _rms_weight(e, weight), None))


def expand_layer_norm_backward(e: Expansion) -> None:
    gradient, x = _input(e, 0), _input(e, 1)
    mean, rstd = (_saved_statistic(e, e.value(index), x) for index in (2, 3))
    weight = _affine(e, 4)
    normal, offset = _normal(e, x, mean, rstd, e.value(1).type.dtype)
    results = _results(e)
    if results[0] is not None:
        inner = gradient if weight is None else e.one("scaled", "mul", gradient, weight)
        slope = _projection(e, inner, normal, rstd)
        mean_gradient = e.row("mean", inner, "mean_gradient")
        lift = e.one("lift", "mul", e.one("lowered", "neg", mean_gradient), rstd)
        if offset is None:
            along = e.one("along", "multiply_add", normal, slope, lift)
        else:  # straight from x: two factors and two terms of the row become one each
            lift = e.one("lift.whole", "multiply_add", offset, slope, lift)
            slope = e.one("slope.whole", "mul", slope, rstd)
            along = e.one("along", "multiply_add", x, slope, lift)
        _finish(e, results[0], e.one("dx", "multiply_add", inner, rstd, along))
    if results[1] is not None:
        _column_sum(e, results[1], e.one("weighted", "mul", gradient, normal))
    if results[2] is not None:
        _column_sum(e, results[2], gradient)


def expand_rms_norm_backward(e: Expansion) -> None:
    gradient, x = _input(e, 0), _input(e, 1)
    rstd, weight = _saved_statistic(e, e.value(2), x), _affine(e, 3)
    normal = e.one("normal", "mul", x, rstd)
    results = _results(e)
    if results[0] is not None:
        factor = _rms_weight(e, weight)
        inner = gradient if factor is None else e.one("scaled", "mul", gradient, factor)
        slope = e.one("slope.whole", "mul", _projection(e, inner, normal, rstd), rstd)
        along = e.one("along", "mul", x, slope)
        _finish(e, results[0], e.one("dx", "multiply_add", inner, rstd, along))
    if results[1] is not None:
        if e.op["style"] == "llama":
            normal = _rounded(e, normal, e.value(1).type.dtype)
        _column_sum(e, results[1], e.one("weighted", "mul", gradient, normal))


def _normal(
    e: Expansion, x: Value, mean: Value, rstd: Value, stored: DType
) -> tuple[Value, Value | None]:
    """x̂ of an x that lies in memory as `stored`, and -mean * rstd if it is x * rstd + that.

    Of 16 bits, x is known to half its ulp at best, and what one operation less rounds lies far
    below that. Of 32, only the difference from the mean keeps x̂ exact where x is far from 0.
    """
    if stored is x.type.dtype:
        return e.one("normal", "mul", e.one("centred", "sub", x, mean), rstd), None
    offset = e.one("offset", "mul", e.one("lowered_mean", "neg", mean), rstd)
    return e.one("normal", "multiply_add", x, rstd, offset), offset


def _projection(e: Expansion, inner: Value, normal: Value, rstd: Value) -> Value:
    """What x̂ is multiplied by to take out of dx the part of the gradient that lies along it."""
    product = e.one("product", "mul", inner, normal)
    mean = e.row("mean", product, "mean_product")
    return e.one("slope", "mul", e.one("against", "neg", mean), rstd)


def _input(e: Expansion, index: int) -> Value:
    """A full operand with its normalised axes made one, in the compute type."""
    value = e.value(index)
    return e.wide(e.reshape(value, merged_tail(value.type, e.integer("axes"))))


def _affine(e: Expansion, index: int) -> Value | None:
    value = e.optional(index)
    if value is None:
        return None
    return e.wide(e.reshape(value, (value.type.numel,)))


def _rms_weight(e: Expansion, weight: Value | None) -> Value | None:
    if weight is None or e.op["style"] != "gemma":
        return weight
    return e.one("factor", "add", weight, 1)


def _scale_and_shift(
    e: Expansion, normal: Value, weight: Value | None, bias: Value | None
) -> Value:
    if weight is not None and bias is not None:
        return e.one("affine", "multiply_add", normal, weight, bias)
    value = normal if weight is None else e.one("scaled", "mul", normal, weight)
    return value if bias is None else e.one("affine", "add", value, bias)


def _statistic(
    e: Expansion, result: Value, opcode: str, operands: tuple[Value, ...], axes: int
) -> Value:
    """A row statistic under the composite's own name, with as many axes as it has."""
    if axes == 1:
        return e.define(result, opcode, *operands)
    suffix = result.name.rpartition(".")[2]
    statistic = e.one(f"row.{suffix}", opcode, *operands)
    e.define_reshape(result, statistic)
    return statistic


def _saved_statistic(e: Expansion, value: Value, x: Value) -> Value:
    return e.reshape(value, (*x.type.shape[:-1], 1))


def _rounded(e: Expansion, value: Value, dtype: DType) -> Value:
    return e.wide(e.cast(value, dtype, "normal.rounded"))


def _finish(e: Expansion, result: Value, value: Value) -> None:
    """Round to the result's type and undo the merging of axes."""
    if value.type.shape == result.type.shape:
        e.define_cast(result, value)
    else:
        e.define_reshape(result, e.cast(value, result.type.dtype))


def _column_sum(e: Expansion, result: Value, value: Value) -> None:
    axes, dtype = tuple(range(value.type.rank - 1)), result.type.dtype
    if result.type.rank == 1:
        e.define(result, "sum", value, axes=axes, keepdim=False, dtype=dtype)
    else:
        total = e.one("total", "sum", value, axes=axes, keepdim=False, dtype=dtype)
        e.define_reshape(result, total)


def _results(e: Expansion) -> list[Value | None]:
    """The op's results with None where `needs` says that one is not asked for."""
    given = iter(e.op.results)
    return [next(given) if needed else None for needed in e.flags("needs")]
