"""Sums and extremes over the threads of a warp, of part of one, or of a block.

Input: one or more numbers per thread. Output: their totals, the same in every thread. The tree is
fixed (butterflies in warps, then one over the warps), so bits never depend on timing. Threads are a
power of two. Invariant: one barrier a call; shared memory of a call is its own, so straight code
needs no second one, and code in a loop alternates between two halves of it (`turn`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from rudagraph.build.cpu_emit import B8, I32, Kind, Scalar, declare, select
from rudagraph.build.cuda_emit import SHARED_SPACE, raw_assembly

_i32 = ir.IntType(32)
WARP = 32


@dataclass(frozen=True, slots=True)
class Fold:
    """An associative function and the number that changes nothing."""

    name: str
    combine: Callable[[Scalar, Scalar], Scalar]
    identity: Callable[[Kind], int | float]


def _largest(x: Scalar, y: Scalar) -> Scalar:
    return x.intrinsic("maximum", y) if x.kind.is_floating else select(x > y, x, y)


def _smallest(x: Scalar, y: Scalar) -> Scalar:
    return x.intrinsic("minimum", y) if x.kind.is_floating else select(x < y, x, y)


def _least(kind: Kind) -> int | float:
    if kind.is_floating:
        return -math.inf
    return -(1 << (kind.bits - 1)) if kind.is_signed else 0


def _most(kind: Kind) -> int | float:
    if kind.is_floating:
        return math.inf
    return (1 << (kind.bits - kind.is_signed)) - 1


FOLDS = {
    "sum": Fold("sum", lambda x, y: x + y, lambda kind: 0),
    "max": Fold("max", _largest, _least),
    "min": Fold("min", _smallest, _most),
}


def register(builder: Any, name: str) -> Scalar:
    """A special register such as `tid.x`, as an i32."""
    function = declare(builder.module, f"llvm.nvvm.read.ptx.sreg.{name}", ir.FunctionType(_i32, []))
    return Scalar(builder, builder.call(function, []), I32)


def barrier(builder: Any, threads: int = 0) -> None:
    """All threads of the block meet, or `threads` neighbours; what they shared is seen."""
    if threads:
        group = builder.lshr(register(builder, "tid.x").value, _i32(threads.bit_length() - 1))
        text = f"bar.sync $0, {threads};"
        number = builder.add(group, _i32(1))  # 0 is the block's
        raw_assembly(builder, text, "r,~{memory}", ir.VoidType(), [number], True, convergent=True)
        return
    function = declare(builder.module, "llvm.nvvm.barrier0", ir.FunctionType(ir.VoidType(), []))
    builder.call(function, [])


def meet_cluster(builder: Any) -> None:
    """All threads of a cluster's blocks meet; what they wrote to each other is seen."""
    for step in ("arrive.release", "wait.acquire"):
        text = f"barrier.cluster.{step}.aligned;"
        raw_assembly(builder, text, "~{memory}", ir.VoidType(), [], True, convergent=True)


def cluster_rank(builder: Any, cluster: int) -> Scalar:
    """Which of its cluster's blocks this is."""
    return register(builder, "ctaid.x") & (cluster - 1)


def fold_registers(values: Sequence[Scalar], fold: Fold) -> Scalar:
    """Of one thread's numbers: four chains, so that additions need not wait for each other."""
    chains = list(values[:4])
    for position, value in enumerate(values[4:]):
        chains[position % 4] = fold.combine(chains[position % 4], value)
    while len(chains) > 1:
        half = len(chains) // 2
        pairs = [fold.combine(chains[i], chains[i + half]) for i in range(half)]
        chains = pairs + chains[2 * half :]
    return chains[0]


def fold_threads(
    values: Sequence[Scalar],
    fold: Fold,
    threads: int,
    turn: Scalar | None,
    groups: int = 1,
    cluster: int = 1,
) -> list[Scalar]:
    """Totals over `threads` neighbours in each of `cluster` blocks.

    Groups of more than a warp meet at a barrier of their own, and there are at most 15 in a block.
    Blocks of a cluster have one group each, and every one gets the parts of all.
    """
    pairs = [tuple(values[first : first + 2]) for first in range(0, len(values), 2)]
    warps = threads // WARP
    if warps <= 1 and cluster == 1:
        return [total for pair in pairs for total in _fold_warp_pair(pair, fold, threads)]
    builder = values[0].builder
    thread = register(builder, "tid.x")
    lane = thread & (WARP - 1)
    warp = Scalar(builder, builder.lshr(thread.value, _i32(5)), I32)
    own = warp & -warps if groups > 1 else warp.constant(0)
    parts = warps * cluster
    base = own.constant(0) if turn is None else (_low(turn) & 1) * (parts * groups)
    buffers = []
    for pair in pairs:
        # One value's warp totals after the other's; a pair's halves of a warp hold one each.
        partial, count = _halve(pair, fold, WARP), len(pair)
        size = parts * groups * (1 if turn is None else 2)
        buffer = _shared(partial, size * count)
        number = lane & (WARP // count - 1)
        with builder.if_then((number < cluster).value):
            place = base + warp
            if cluster > 1:
                place = place + cluster_rank(builder, cluster) * warps
            if count == 2:
                place = place + _half_of(lane) * size
            slot = _slot(builder, buffer, place)
            if cluster > 1:
                _store_to(builder, number, _stored(partial), slot)
            else:
                builder.store(_stored(partial), slot)
        buffers.append((buffer, size, count, partial.kind))
    if cluster > 1:
        meet_cluster(builder)
    else:
        barrier(builder, threads if groups > 1 else 0)
    results: list[Scalar] = []
    for buffer, size, count, kind in buffers:
        width = WARP // count
        place = base + own + (lane & (min(parts, width) - 1))
        if count == 2:
            place = place + _half_of(lane) * size
        loaded = [
            _loaded(builder, builder.load(_slot(builder, buffer, place + first)), kind)
            for first in range(0, parts, width)
        ]
        total = fold_warp(fold_registers(loaded, fold), fold, min(parts, width))
        results += [total] if count == 1 else _exchange_halves(total, WARP)
    return results


def _halve(pair: tuple[Scalar, ...], fold: Fold, width: int) -> Scalar:
    """Totals over `width` lanes: of the first value in the lower half, of the second in the upper.

    Two values take one shuffle more than one value takes, not twice as many.
    """
    if len(pair) == 1:
        return fold_warp(pair[0], fold, width)
    first, second = pair
    is_low = (register(first.builder, "tid.x") & (width // 2)).equals(0)
    received = _exchange(select(is_low, second, first), width // 2)
    kept = fold.combine(select(is_low, first, second), received)
    return fold_warp(kept, fold, width // 2)


def _fold_warp_pair(pair: tuple[Scalar, ...], fold: Fold, width: int) -> list[Scalar]:
    if len(pair) == 1 or width == 1:
        return [fold_warp(value, fold, width) for value in pair]
    return _exchange_halves(_halve(pair, fold, width), width)


def _exchange_halves(total: Scalar, width: int) -> list[Scalar]:
    """Both totals in every lane."""
    is_low = (register(total.builder, "tid.x") & (width // 2)).equals(0)
    other = _exchange(total, width // 2)
    return [select(is_low, total, other), select(is_low, other, total)]


def _half_of(lane: Scalar) -> Scalar:
    """0 in the lower half of a warp, 1 in the upper."""
    return Scalar(lane.builder, lane.builder.lshr(lane.value, _i32(4)), I32)


def fold_warps(values: Sequence[Scalar], fold: Fold, threads: int) -> list[Scalar]:
    """For each lane, over the block's warps in their order."""
    builder = values[0].builder
    thread = register(builder, "tid.x")
    buffers = [_shared(value, threads) for value in values]
    for value, buffer in zip(values, buffers, strict=True):
        builder.store(_stored(value), _slot(builder, buffer, thread))
    barrier(builder)
    lane = thread & (WARP - 1)
    totals = []
    for value, buffer in zip(values, buffers, strict=True):
        parts = []
        for warp in range(threads // WARP):
            part = builder.load(_slot(builder, buffer, lane + warp * WARP))
            parts.append(_loaded(builder, part, value.kind))
        totals.append(fold_registers(parts, fold))
    return totals


def fold_groups(
    values: Sequence[Scalar], fold: Fold, threads: int, groups: int, buffer_name: str
) -> list[Scalar]:
    """Each value over the `groups` groups of `threads` in a block: right in the first group.

    By halves: the upper groups hand theirs to the lower ones. Both numbers are powers of two.
    """
    builder = values[0].builder
    thread = register(builder, "tid.x")
    kind = _stored(values[0]).type
    result = list(values)
    half = groups // 2
    span = threads * half
    size, name = span * len(values), f"groups_{kind}_{len(values)}_{buffer_name}"
    buffer = shared_array(builder.module, kind, size, name, is_new=False) if half else None
    while half:
        place = thread & (half * threads - 1)
        hands = (thread >= half * threads) & (thread < 2 * half * threads)
        barrier(builder)  # whoever reads this memory has done so
        with builder.if_then(hands.value):
            for index, value in enumerate(result):
                builder.store(_stored(value), _slot(builder, buffer, place + index * span))
        barrier(builder)
        for index, value in enumerate(result):
            other = builder.load(_slot(builder, buffer, place + index * span))
            result[index] = fold.combine(value, _loaded(builder, other, value.kind))
        half //= 2
    return result


def fold_warp(value: Scalar, fold: Fold, width: int) -> Scalar:
    """Over `width` neighbouring lanes, by a butterfly: the same bits in every lane."""
    distance = width // 2
    while distance:
        value = fold.combine(value, _exchange(value, distance))
        distance //= 2
    return value


def _exchange(value: Scalar, distance: int) -> Scalar:
    """The value of the lane whose number differs in one bit."""
    builder, kind = value.builder, value.kind
    if kind.bits < 32:
        extend = "sext" if kind.is_signed else "zext"
        word = _shuffle(builder, value.instruction(extend, I32).value, distance)
        return Scalar(builder, word, I32).instruction("trunc", kind)
    if kind.bits == 32:
        word = _shuffle(builder, builder.bitcast(value.value, _i32), distance)
        return Scalar(builder, builder.bitcast(word, kind.llvm), kind)
    pair_type = ir.VectorType(_i32, 2)
    pair = builder.bitcast(value.value, pair_type)
    result = ir.Constant(pair_type, ir.Undefined)
    for half in range(2):
        word = _shuffle(builder, builder.extract_element(pair, _i32(half)), distance)
        result = builder.insert_element(result, word, _i32(half))
    return Scalar(builder, builder.bitcast(result, kind.llvm), kind)


def _shuffle(builder: Any, word: Any, distance: int) -> Any:
    text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 0x1f, 0xffffffff;"
    return raw_assembly(builder, text, "=r,r", _i32, [word], True, convergent=True)


def low_word(value: Scalar) -> Any:
    """The low 32 bits of a number."""
    builder, bits = value.builder, value.kind.bits
    whole = builder.bitcast(value.value, ir.IntType(bits))
    if bits == 32:
        return whole
    return builder.trunc(whole, _i32) if bits > 32 else builder.zext(whole, _i32)


def _low(turn: Scalar) -> Scalar:
    return turn if turn.kind.bits == 32 else turn.instruction("trunc", I32)


def _shared(total: Scalar, count: int) -> Any:
    """An array in shared memory of this call alone."""
    kind = _stored(total).type
    return shared_array(total.builder.module, kind, count, "folded")


def shared_array(
    module: ir.Module, kind: Any, count: int, name: str, align: int = 16, *, is_new: bool = True
) -> Any:
    """An array in the block's shared memory: a new one, or that of this name."""
    unique = f"rudagraph_{name}" + (f"_{len(module.globals)}" if is_new else "")
    known = module.globals.get(unique)
    if known is not None:
        return known
    array = ir.GlobalVariable(module, ir.ArrayType(kind, count), unique, SHARED_SPACE)
    array.linkage = "internal"
    array.align = align
    array.initializer = ir.Constant(array.value_type, ir.Undefined)
    return array


def _slot(builder: Any, buffer: Any, index: Scalar) -> Any:
    return builder.gep(buffer, [_i32(0), index.value], inbounds=True)


def _store_to(builder: Any, rank: Scalar, value: Any, slot: Any) -> None:
    """Store at the same place in another block's shared memory."""
    bits = 64 if value.type == ir.DoubleType() or value.type == ir.IntType(64) else 32
    word = builder.bitcast(value, ir.IntType(bits))
    address = builder.trunc(builder.ptrtoint(slot, ir.IntType(64)), _i32)
    text = "mapa.shared::cluster.u32 $0, $1, $2;"
    remote = raw_assembly(builder, text, "=r,r,r", _i32, [address, rank.value], False)
    text = f"st.shared::cluster.u{bits} [$0], $1;"
    kind = "l" if bits == 64 else "r"
    values = [remote, word]
    raw_assembly(builder, text, f"r,{kind},~{{memory}}", ir.VoidType(), values, True)


def _stored(value: Scalar) -> Any:
    return value.instruction("zext", I32).value if value.kind is B8 else value.value


def _loaded(builder: Any, value: Any, kind: Kind) -> Scalar:
    return Scalar(builder, builder.trunc(value, B8.llvm) if kind is B8 else value, kind)
