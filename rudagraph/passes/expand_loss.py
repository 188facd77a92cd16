"""cross_entropy and its derivative as primitives: one row of logits at a time, nothing gathered.

The target's logit is found by comparing the classes' indices with the target, so the row is read
once. Forward checks the targets; backward sees checked ones only.

    %loss, %logsumexp, %divisor = cross_entropy(%logits, %target, none) [reduction="mean", ...]
becomes
    %shifted = sub(%logits, amax(%logits))        %log = log(sum(exp(%shifted)))
    %chosen = sum(where(eq(iota(), check_index(%target)), %shifted, 0))
    %loss = div(sum(where(ne(%target, ignore), sub(%log, %chosen), 0)), %divisor)
"""

from __future__ import annotations

from dataclasses import dataclass

from rudagraph.ir.graph import Value
from rudagraph.ir.types import DType
from rudagraph.passes.expansion import Expansion


@dataclass
class _Rows:
    """What forward and backward share: the logits and, per row, where the target is and counts."""

    logits: Value  # [rows,classes], compute type
    hit: Value  # b8[rows,classes]: the target's class
    counted: Value  # b8[rows,1]: not ignored
    class_weight: Value | None  # [classes], compute type
    weight: Value  # [rows,1]: the weight of the row's class, 0 where ignored


def expand_cross_entropy(e: Expansion) -> None:
    loss, logsumexp, divisor = e.op.results
    rows = _rows(e, e.value(0), e.value(1), e.optional(2), checked=True)
    largest = e.row("amax", rows.logits, "max")
    shifted = e.one("shifted", "sub", rows.logits, largest)
    log = e.one("log", "log", e.row("sum", e.one("exp", "exp", shifted), "sum"))
    e.define_reshape(logsumexp, e.one("logsumexp.row", "add", largest, log))
    e.parts[logsumexp] = (largest, log)
    chosen = e.row("sum", e.one("at_target", "where", rows.hit, shifted, 0), "chosen")
    distance = e.one("distance", "sub", log, chosen)
    if rows.class_weight is not None:
        distance = e.one("distance.weighted", "mul", distance, rows.weight)
    smoothing = e.number("label_smoothing")
    if smoothing:
        spread = _spread_loss(e, rows, e.one("log_probability", "sub", shifted, log))
        near = e.one("near", "mul", distance, 1 - smoothing)
        far = e.one("far", "mul", spread, smoothing / rows.logits.type.shape[1])
        distance = e.one("distance.smooth", "add", near, far)
    each = e.one("each", "where", rows.counted, distance, 0)
    if e.op["reduction"] == "none":
        e.define(divisor, "full", dtype=divisor.type.dtype, shape=(), value=1.0)
        e.define_reshape(loss, e.cast(each, loss.type.dtype))
        return
    total = e.one("total", "sum", each, axes=(0, 1), keepdim=False)
    if e.op["reduction"] == "sum":
        e.define(divisor, "full", dtype=divisor.type.dtype, shape=(), value=1.0)
        e.define_cast(loss, total)
        return
    e.define(divisor, "sum", rows.weight, axes=(0, 1), keepdim=False)
    e.define_cast(loss, e.one("mean", "div", total, divisor))


def expand_cross_entropy_backward(e: Expansion) -> None:
    gradient, divisor = e.wide(e.value(0)), e.value(5)
    rows = _rows(e, e.value(1), e.value(2), e.optional(3), checked=False)
    probability = e.one("probability", "exp", _log_probability(e, rows.logits))
    target = e.one("hit.number", "cast", rows.hit, dtype=rows.logits.type.dtype)
    slope = e.one("slope", "sub", probability, target)
    if rows.class_weight is not None:
        slope = e.one("slope.weighted", "mul", slope, rows.weight)
    smoothing = e.number("label_smoothing")
    if smoothing:
        near = e.one("near", "mul", slope, 1 - smoothing)
        spread = _spread_slope(e, rows, probability)
        far = e.one("far", "mul", spread, smoothing / rows.logits.type.shape[1])
        slope = e.one("slope.smooth", "add", near, far)
    upstream = e.one("upstream", "div", gradient, divisor)
    if upstream.type.rank == 1:
        upstream = e.reshape(upstream, (rows.logits.type.shape[0], 1))
    scaled = e.one("scaled", "mul", upstream, slope)
    e.define_cast(e.op.result, e.one("dlogits", "where", rows.counted, scaled, 0))


def _log_probability(e: Expansion, logits: Value) -> Value:
    """From the two parts of the logsumexp where forward is in the same graph: their sum rounds."""
    if e.value(4) in e.parts:
        largest, log = e.parts[e.value(4)]
        return e.one("log_probability", "sub", e.one("shifted", "sub", logits, largest), log)
    logsumexp = e.reshape(e.value(4), (logits.type.shape[0], 1))
    return e.one("log_probability", "sub", logits, logsumexp)


def _rows(
    e: Expansion, logits: Value, target: Value, class_weight: Value | None, *, checked: bool
) -> _Rows:
    wide = e.wide(logits)
    rows, classes = wide.type.shape
    ignore = e.integer("ignore_index")
    target = e.reshape(target, (rows, 1))
    counted = e.one("counted", "ne", target, ignore)
    if checked:
        target = e.one("target", "check_index", target, extent=classes, ignore=ignore)
    # Compared in 32 bits: as wide as the numbers beside them, so that vectors are full.
    small = e.cast(target, DType.I32, "target.small")
    index = e.one("class", "iota", dtype=DType.I32, length=classes, start=0, step=1)
    hit = e.one("hit", "eq", index, small)
    if class_weight is None:
        weight = e.one("row_weight", "cast", counted, dtype=wide.type.dtype)
        return _Rows(wide, hit, counted, None, weight)
    class_weight = e.cast(class_weight, wide.type.dtype)
    of_target = e.one("weight_at_target", "where", hit, class_weight, 0)
    weight = e.row("sum", of_target, "row_weight.any")
    weight = e.one("row_weight", "where", counted, weight, 0)
    return _Rows(wide, hit, counted, class_weight, weight)


def _spread_loss(e: Expansion, rows: _Rows, log_probability: Value) -> Value:
    """Minus the (weighted) sum of log probabilities over all classes."""
    spread = log_probability
    if rows.class_weight is not None:
        spread = e.one("spread", "mul", spread, rows.class_weight)
    return e.one("spread_loss", "neg", e.row("sum", spread, "spread_sum"))


def _spread_slope(e: Expansion, rows: _Rows, probability: Value) -> Value:
    """The derivative of `_spread_loss` by the logits."""
    if rows.class_weight is None:
        classes = rows.logits.type.shape[1]
        return e.one("spread", "sub", e.one("share", "mul", probability, classes), 1)
    total = e.one("weight_total", "sum", rows.class_weight, axes=(0,), keepdim=False)
    share = e.one("share", "mul", probability, total)
    return e.one("spread", "sub", share, rows.class_weight)
