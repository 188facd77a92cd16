"""The table op -> scalar text, for both targets; the functions it names are the kernel language.

Input: a body op and the names of its operands. Output: one expression in registers: f32 for f16,
bf16 and f32, the type itself for the others. Invariant: the value of every 16-bit register is one
that its type can hold, so an expression rounds unless its row is exact.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rudagraph.codegen.ranges import MARK
from rudagraph.codegen.slopes import is_slope
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Number, Op, Value
from rudagraph.ir.types import DType

# Register type constructors of the language, by storage type.
REGISTER = {
    DType.F16: "float32",
    DType.BF16: "float32",
    DType.F32: "float32",
    DType.F64: "float64",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.U8: "uint8",
    DType.B8: "boolean",
}
ROUNDED = (DType.F16, DType.BF16)


@dataclass(frozen=True, slots=True)
class Row:
    """`text` has {0}, {1}, … for operands; `cost` is in units of one vector addition.

    `exact`: 16-bit operands give a result their type holds, so nothing is rounded.
    """

    text: str | Callable[[Op], str]
    cost: float = 1.0
    exact: bool = False


# Costs, measured on Zen 4 in ns per element and thread and divided by an addition's 0.02: exp .30,
# erf and tanh .28 (rational), log .48, sigmoid .41; what goes through libm does not vectorise, 2.3.
_DIVISION, _EXP, _LOG, _LIBM = 6.0, 15.0, 24.0, 115.0


def _calls(names: str, arity: int, cost: float = 1.0, *, exact: bool = False) -> dict[str, Row]:
    """Rows whose function in the language has the op's name."""
    operands = ", ".join(f"{{{index}}}" for index in range(arity))
    return {name: Row(f"{name}({operands})", cost, exact) for name in names.split()}


def _gelu(suffix: str, operands: str) -> Callable[[Op], str]:
    def text(op: Op) -> str:
        form = "tanh" if op.get("approximate") == "tanh" else "erf"
        name = "_slope" if is_slope(op) else suffix
        return f"gelu_{form}{name}({operands})"

    return text


def _exp(op: Op) -> str:
    return "exp_nonpositive({0})" if op.get(MARK) else "exp({0})"


_POWERS = {
    0.5: "sqrt({0})",
    1: "{0}",
    2: "mul({0}, {0})",
    3: "mul(mul({0}, {0}), {0})",
    -0.5: "rsqrt({0})",
    -1: "reciprocal({0})",
    -2: "reciprocal(mul({0}, {0}))",
}


def _pow(op: Op) -> str:
    """Exponents that PyTorch computes without pow, to the same bits."""
    base, exponent = op.operands
    if isinstance(base, Value) and isinstance(exponent, (int, float)):
        is_floating = op.result.type.dtype.is_floating
        if exponent in _POWERS and (is_floating or exponent in (1, 2, 3)):
            return _POWERS[exponent]
    return "pow({0}, {1})"


EXPRESSIONS: Mapping[str, Row] = {
    "copy": Row("{0}", 0.0, exact=True),
    **_calls("neg abs floor ceil trunc round sign relu", 1, exact=True),
    **_calls("sqrt rsqrt reciprocal", 1, _DIVISION),
    "exp": Row(_exp, _EXP),
    **_calls("exp2 sigmoid tanh erf", 1, _EXP),
    **_calls("expm1 log log2 log1p", 1, _LOG),
    **_calls("log10 sin cos tan asin acos atan sinh cosh", 1, _LIBM),
    "silu": Row("silu({0})", _EXP + 6),
    "gelu": Row(_gelu("", "{0}"), 2 * _EXP),
    **_calls("isnan isinf logical_not bitwise_not", 1, exact=True),
    "cast": Row("{0}", 1.0),
    "check_index": Row("{0}", exact=True),  # the loop shape adds the check
    **_calls("maximum minimum", 2, exact=True),
    **_calls("add sub mul", 2),
    **_calls("div", 2, _DIVISION),
    **_calls("floor_divide truncate_divide remainder fmod", 2, 2 * _DIVISION),
    "pow": Row(_pow, _LIBM),
    **_calls("atan2", 2, _LIBM),
    **_calls("eq ne lt le gt ge logical_and logical_or logical_xor", 2, exact=True),
    **_calls("bitwise_and bitwise_or bitwise_xor shift_left shift_right", 2, exact=True),
    "silu_backward": Row("silu_backward({0}, {1})", _EXP + 8),
    "gelu_backward": Row(_gelu("_backward", "{0}, {1}"), 2 * _EXP),
    **_calls("sigmoid_backward tanh_backward", 2, 3.0),
    "multiply_add": Row("fma({0}, {1}, {2})"),
    "where": Row("where({0}, {1}, {2})", exact=True),
}


def expression(op: Op, operands: list[str]) -> str:
    """The op's value before rounding; `operands` has a name for each operand that is a value."""
    if op.opcode == "cast":
        return _cast(op, operands[0])
    row = EXPRESSIONS.get(op.opcode)
    if row is None:
        raise UnsupportedError(f"{op.opcode} has no scalar text", f"%{op.result.name}")
    template = row.text if isinstance(row.text, str) else row.text(op)
    names = iter(operands)
    dtype = arithmetic_dtype(op)
    texts = [
        next(names)
        if isinstance(operand, Value)
        else literal(_number(op, operand, dtype, row), dtype)
        for operand in op.operands
    ]
    return template.format(*texts)


def rounded(text: str, dtype: DType) -> str:
    """The expression rounded to a 16-bit type; others as they are."""
    return f"round_{dtype}({text})" if dtype in ROUNDED else text


def needs_rounding(op: Op) -> bool:
    """Whether the expression's register may hold what the result's type cannot."""
    dtype = op.result.type.dtype
    if dtype not in ROUNDED:
        return False
    if op.opcode == "cast":
        return op.inputs[0].type.dtype is not dtype
    return not EXPRESSIONS[op.opcode].exact


def cost(op: Op) -> float:
    """Of one element, rounding included, in units of one vector addition."""
    row = EXPRESSIONS.get(op.opcode)
    if row is None:
        return 1.0
    scale = 8.0 if op.result.type.dtype is DType.F64 and row.cost >= _EXP else 1.0
    if op.opcode == "pow" and _pow(op) != "pow({0}, {1})":
        scale = _DIVISION / _LIBM
    return row.cost * scale + (ROUNDING_COST if needs_rounding(op) else 0.0)


# A 16-bit rounding is five vector instructions, measured 0.08 ns.
ROUNDING_COST = 4.0


def arithmetic_dtype(op: Op) -> DType:
    """The type that numbers among the operands take."""
    return op.result.type.dtype if op.opcode == "where" else op.inputs[0].type.dtype


def _number(op: Op, operand: object, dtype: DType, row: Row) -> Number:
    if not isinstance(operand, (bool, int, float)):
        raise UnsupportedError(f"{op.opcode} cannot leave an operand out", f"%{op.result.name}")
    # An exact op returns its operands, so a number among them must be one of the result's type.
    exact = row.exact and op.result.type.dtype is dtype
    return round_number(operand, dtype) if exact and dtype in ROUNDED else operand


def _cast(op: Op, operand: str) -> str:
    source, target = op.inputs[0].type.dtype, op.result.type.dtype
    if REGISTER[source] == REGISTER[target]:
        return operand
    return f"{REGISTER[target]}({operand})"


# -- literals


def literal(number: Number, dtype: DType) -> str:
    """A number in the register type of `dtype`: float32(0.5), int64(7), True."""
    if dtype is DType.B8:
        return "True" if number else "False"
    if not dtype.is_floating:
        return f"{REGISTER[dtype]}({_wrapped(int(number), dtype)})"
    value = float(number)
    if math.isnan(value):
        return f"{REGISTER[dtype]}(nan)"
    if math.isinf(value):
        return f"{REGISTER[dtype]}({'-' if value < 0 else ''}infinity)"
    return f"{REGISTER[dtype]}({value!r})"


def _wrapped(number: int, dtype: DType) -> int:
    bits = 8 * dtype.size
    number &= (1 << bits) - 1
    return number - (1 << bits) if dtype is not DType.U8 and number >> (bits - 1) else number


def round_number(number: Number, dtype: DType) -> float:
    """The nearest number that a 16-bit float type holds, through f32 as PyTorch goes."""
    value = _to_f32(float(number))
    if not math.isfinite(value):
        return value
    if dtype is DType.F16:
        try:
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _to_f32(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


# -- folds of reductions


@dataclass(frozen=True, slots=True)
class Fold:
    """How a reduction gathers: the start value and the function of the language.

    `ordered` is the function for places in memory, where no order is left to the compiler.
    """

    start: Number
    function: str

    @property
    def ordered(self) -> str:
        names = {"accumulate_add": "add", "accumulate_max": "maximum"}
        return names.get(self.function, "minimum")


def accumulator_dtype(op: Op) -> DType:
    """The type a reduction gathers in: the compute type of the wider of operand and result."""
    given, wanted = op.inputs[0].type.dtype, op.result.type.dtype
    both_floating = given.is_floating and wanted.is_floating
    return given.compute if both_floating and given.size > wanted.size else wanted.compute


def fold(op: Op) -> Fold:
    """The fold of a reduction in its accumulator's type."""
    if op.opcode in ("sum", "mean"):
        return Fold(0, "accumulate_add")
    largest = op.opcode == "amax"
    dtype = accumulator_dtype(op)
    name = "accumulate_max" if largest else "accumulate_min"
    if dtype.is_floating:
        return Fold(-math.inf if largest else math.inf, name)
    if dtype is DType.B8:
        return Fold(not largest, name)
    low = 0 if dtype is DType.U8 else -(1 << (8 * dtype.size - 1))
    return Fold(low if largest else low + (1 << (8 * dtype.size)) - 1, name)


def convert(text: str, source: DType, target: DType) -> str:
    """A register of one type as that of another, unrounded."""
    if REGISTER[source] == REGISTER[target]:
        return text
    return f"{REGISTER[target]}({text})"


# Names of the language that loop shapes use beside the table's.
HELPERS = frozenset(
    "accumulate_add accumulate_max accumulate_min advance philox_row philox_row_32 random_u16"
    " random_u32 infinity nan begin end block range min max boolean gelu_erf gelu_tanh"
    " gelu_erf_backward gelu_tanh_backward round_bf16 round_f16 reciprocal select where"
    " nearest_bf16 store_bf16_nearest settled store_bf16_rounded store_f16_rounded load_u16"
    " load_u32 store_u32 uint32 uint64 fma exp_nonpositive gelu_erf_slope gelu_tanh_slope"
    " stream finish_streams".split()
)
RESERVED = (
    HELPERS
    | frozenset(EXPRESSIONS)
    | frozenset(REGISTER.values())
    | frozenset(f"{verb}_{dtype}" for verb in ("load", "store") for dtype in DType)
)
