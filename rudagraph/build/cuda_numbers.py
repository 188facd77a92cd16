"""Arithmetic, casts, comparisons and selection on CUDA: the CPU's lines, tiled.

Invariant: as for the CPU, nothing widens and integers wrap; nothing here contracts, because NVVM is
told not to and writes every sum and product with its rounding.
"""

from __future__ import annotations

from typing import Any

from rudagraph.build import cpu_math, cpu_numbers
from rudagraph.build.cpu_emit import (
    B8,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    KINDS,
    NUMBERS,
    U8,
    U32,
    U64,
    Kind,
    Scalar,
    exactly,
    same,
    select,
)
from rudagraph.build.cuda_emit import (
    Intrinsic,
    TileOperation,
    call,
    cuda_operation,
    element_kind,
    is_tile,
    pack,
    plain_type,
    tiled,
    unpack,
)
from rudagraph.build.cuda_memory import round_pair

_FLOATS = (F32, F64)

abs = tiled(cpu_numbers.abs)
add = tiled(cpu_numbers.add)
sub = tiled(cpu_numbers.sub)
mul = tiled(cpu_numbers.mul)
div = tiled(cpu_numbers.div)
neg = tiled(cpu_numbers.neg)
sign = tiled(cpu_numbers.sign)
relu = tiled(cpu_numbers.relu)
maximum = tiled(cpu_numbers.maximum)
minimum = tiled(cpu_numbers.minimum)
floor_divide = tiled(cpu_numbers.floor_divide)
truncate_divide = tiled(cpu_numbers.truncate_divide)
remainder = tiled(cpu_numbers.remainder)
fmod = tiled(cpu_numbers.fmod)
pow = tiled(cpu_numbers.pow)
eq = tiled(cpu_numbers.eq)
ne = tiled(cpu_numbers.ne)
lt = tiled(cpu_numbers.lt)
le = tiled(cpu_numbers.le)
gt = tiled(cpu_numbers.gt)
ge = tiled(cpu_numbers.ge)
logical_and = tiled(cpu_numbers.logical_and)
logical_or = tiled(cpu_numbers.logical_or)
logical_xor = tiled(cpu_numbers.logical_xor)
logical_not = tiled(cpu_numbers.logical_not)
bitwise_and = tiled(cpu_numbers.bitwise_and)
bitwise_or = tiled(cpu_numbers.bitwise_or)
bitwise_xor = tiled(cpu_numbers.bitwise_xor)
bitwise_not = tiled(cpu_numbers.bitwise_not)
shift_left = tiled(cpu_numbers.shift_left)
shift_right = tiled(cpu_numbers.shift_right)
where = tiled(cpu_numbers.where)
floor = tiled(cpu_math.floor)
ceil = tiled(cpu_math.ceil)
trunc = tiled(cpu_math.trunc)
round = tiled(cpu_math.round)
isnan = tiled(cpu_math.isnan)
isinf = tiled(cpu_math.isinf)
fma = tiled(cpu_math.fma)
sqrt = tiled(cpu_math.sqrt)
reciprocal = tiled(cpu_math.reciprocal)


@cuda_operation(same(*NUMBERS))
def accumulate_add(total: Scalar, value: Scalar) -> Scalar:
    """total + value, in this order."""
    return total + value


accumulate_max = tiled(cpu_numbers.accumulate_max)
accumulate_min = tiled(cpu_numbers.accumulate_min)


def convert(x: Scalar, kind: Kind) -> Scalar:
    """x as another kind: floats truncate and saturate, integers wrap, b8 is "not zero"."""
    if not x.kind.is_floating or kind.is_floating or kind is B8:
        return cpu_numbers.convert(x, kind)
    # Saturates at 32 or 64 bits (NaN is 0), then wraps, as on the CPU.
    wide = I32 if kind.bits < 32 else I64 if kind is U32 else kind
    source = "s" if x.kind is F32 else "d"
    direction = ("" if wide.is_signed else "u") + ("i" if wide.bits == 32 else "ll")
    return cpu_numbers.convert(
        _to_whole(x, f"{'f' if source == 's' else 'd'}2{direction}", wide), kind
    )


def _to_whole(x: Scalar, conversion: str, wide: Kind) -> Scalar:
    # NVVM gives 2**63 for a NaN of 64 bits.
    whole = call(f"llvm.nvvm.{conversion}.rz", wide, x)
    return select(x.differs(x), whole.constant(0), whole)


def _cast(kind: Kind, name: str) -> TileOperation:
    def emit(x: Scalar) -> Scalar:
        return convert(x, kind)

    emit.__name__ = name
    emit.__doc__ = f"Any number as {kind}, as PyTorch casts."
    return cuda_operation(exactly(kind, KINDS))(emit)


float32 = _cast(F32, "float32")
float64 = _cast(F64, "float64")
int64 = _cast(I64, "int64")
int32 = _cast(I32, "int32")
int16 = _cast(I16, "int16")
int8 = _cast(I8, "int8")
uint8 = _cast(U8, "uint8")
uint32 = _cast(U32, "uint32")
uint64 = _cast(U64, "uint64")
boolean = _cast(B8, "boolean")


def _round_bf16(values: Any) -> Any:
    kind = exactly(F32, F32)("round_bf16", element_kind("round_bf16", values))

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        if not is_tile(values):
            return round_pair(builder, Scalar(builder, value, kind), None)[0].value
        scalars = unpack(builder, value, kind)
        result = []
        for first in range(0, len(scalars), 2):
            pair = scalars[first : first + 2]
            result += round_pair(builder, pair[0], pair[1] if len(pair) == 2 else None)
        return pack(builder, result)

    return plain_type(values)(plain_type(values)), emit


round_bf16 = Intrinsic("round_bf16", ["values"], _round_bf16)
