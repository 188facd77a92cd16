"""How functions of the kernel language reach Numba-CUDA: scalars, and tiles of them.

Input: an operation over Scalars, as for the CPU. Output: an intrinsic of Numba-CUDA that also takes
tiles (tuples of numbers held in registers), element by element, with plain numbers broadcast. So
kernel text reads the same for one element and for sixteen. Invariant: an element's value does not
depend on the tile it is in; NVVM gets no intrinsic that it would not accept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy

if not hasattr(numpy, "row_stack"):
    # Gone in NumPy 2.5; numba-cuda 0.30 names it when it is imported.
    numpy.row_stack = numpy.vstack

from llvmlite import ir
from numba.core.errors import TypingError
from numba.cuda import cgutils, types
from numba.cuda.extending import _Intrinsic

from rudagraph.build.cpu_emit import (
    B8,
    F32,
    KINDS,
    OTHER_TARGETS,
    POINTER,
    VOID,
    Emit,
    Kind,
    Operation,
    Rule,
    Scalar,
    declare,
)

TRIPLE = "nvptx64-nvidia-cuda"
GLOBAL_SPACE, SHARED_SPACE = 1, 3

_KIND_OF = {kind.numba: kind for kind in (*KINDS, POINTER)}

# What NVVM offers under a name of its own: float, then double. The rest is in libdevice.
_NVVM = {
    "fma": ("llvm.fma.f32", "llvm.fma.f64"),
    "sqrt": ("llvm.sqrt.f32", "llvm.sqrt.f64"),
    "fabs": ("llvm.nvvm.fabs.f", "llvm.nvvm.fabs.d"),
    "floor": ("llvm.floor.f32", "llvm.floor.f64"),
    "ceil": ("llvm.ceil.f32", "llvm.ceil.f64"),
    "trunc": ("llvm.trunc.f32", "llvm.trunc.f64"),
    "copysign": ("llvm.copysign.f32", "llvm.copysign.f64"),
}


def call_by_name(name: str, arguments: list[Scalar]) -> Scalar:
    """A function by the name LLVM's CPU targets or libm know it by."""
    first = arguments[0]
    if name in ("maximum", "minimum"):
        return _extreme(name, *arguments)
    is_single = first.kind is F32
    if name in _NVVM:
        function = _NVVM[name][0 if is_single else 1]
    else:
        function = f"__nv_{name}{'f' if is_single else ''}"
    return call(function, first.kind, *arguments)


OTHER_TARGETS[TRIPLE] = call_by_name


def call(function: str, kind: Kind, *arguments: Scalar) -> Scalar:
    """A function of NVVM or libdevice."""
    builder = arguments[0].builder
    signature = ir.FunctionType(kind.llvm, [argument.kind.llvm for argument in arguments])
    declared = declare(builder.module, function, signature)
    values = [argument.value for argument in arguments]
    return Scalar(builder, builder.call(declared, values), kind)


def _extreme(name: str, x: Scalar, y: Scalar) -> Scalar:
    """max.NaN and min.NaN of the hardware, which doubles lack."""
    if x.kind is F32:
        return assembly(f"{name[:3]}.NaN.f32 $0, $1, $2;", "=f,f,f", F32, x, y)
    better = x > y if name == "maximum" else x < y
    # x where it is NaN or better; where y is NaN the comparison is false and y comes out.
    is_x = Scalar(x.builder, x.builder.or_(better.value, x.differs(x).value), B8)
    return Scalar(x.builder, x.builder.select(is_x.value, x.value, y.value), x.kind)


def assembly(
    text: str, constraints: str, kind: Kind, *arguments: Scalar, volatile: bool = False
) -> Scalar:
    """One line of PTX. Volatile ones are never merged, moved or left out."""
    builder = arguments[0].builder
    values = [argument.value for argument in arguments]
    return Scalar(
        builder, raw_assembly(builder, text, constraints, kind.llvm, values, volatile), kind
    )


def raw_assembly(
    builder: Any,
    text: str,
    constraints: str,
    result: Any,
    values: Sequence[Any],
    volatile: bool,
    *,
    convergent: bool = False,
) -> Any:
    """PTX over plain LLVM values; convergent where all threads must run it together."""
    signature = ir.FunctionType(result, [value.type for value in values])
    inline = ir.InlineAsm(signature, text, constraints, side_effect=volatile)
    called = builder.call(inline, values)
    if convergent:
        called.attributes.add("convergent")
    return called


class Intrinsic(_Intrinsic):  # type: ignore[misc]
    """A function of kernel text: `lower(Numba types)` gives a signature and an emitter."""

    def __init__(self, name: str, parameters: Sequence[str], lower: Callable[..., Any]) -> None:
        names = [
            inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for each in ("typing_context", *parameters)
        ]

        def definition(typing_context: Any, *arguments: Any) -> Any:
            return lower(*arguments)

        definition.__name__ = name
        definition.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
        super().__init__(name, definition)
        self._register()


class TileOperation(Intrinsic):
    """An operation over numbers and tiles: every element alike."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        parameters = list(inspect.signature(operation.emit).parameters)
        super().__init__(operation.__name__, parameters, self._lower)

    def __call__(self, *arguments: Scalar) -> Scalar:
        """Emits the operation inside another one."""
        return self.operation(*arguments)

    def _lower(self, *arguments: Any) -> Any:
        name = self.operation.__name__
        kinds = [element_kind(name, argument) for argument in arguments]
        result = self.operation.rule(name, *kinds)
        lengths = {len(argument) for argument in arguments if is_tile(argument)}
        if len(lengths) > 1:
            raise TypingError(f"{name} takes tiles of one length, got {sorted(lengths)}")
        length = lengths.pop() if lengths else None
        result_type = result.numba
        if length is not None and result is not VOID:
            result_type = types.UniTuple(result.numba, length)

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            parts = [
                elements(builder, value, argument, kind, length)
                for value, argument, kind in zip(values, arguments, kinds, strict=True)
            ]
            results = [self.operation(*column) for column in zip(*parts, strict=True)]
            if result is VOID:
                return context.get_dummy_value()
            if length is None:
                return results[0].value
            return pack(builder, results)

        return result_type(*map(plain_type, arguments)), emit


def tiled(operation: Operation) -> TileOperation:
    """A function of the CPU's language as one of CUDA's: the same lines emit it."""
    return TileOperation(operation)


def cuda_operation(rule: Rule) -> Callable[[Emit], TileOperation]:
    """Makes an operation of CUDA's language alone of the decorated function."""
    return lambda emit: TileOperation(Operation(emit, rule, small=True))


def is_tile(numba_type: Any) -> bool:
    return isinstance(numba_type, types.UniTuple)


def plain_type(numba_type: Any) -> Any:
    """Without the value of a literal."""
    return numba_type if is_tile(numba_type) else types.unliteral(numba_type)


def element_kind(name: str, numba_type: Any) -> Kind:
    """Of one element of a tile, or of the number."""
    element = numba_type.dtype if is_tile(numba_type) else numba_type
    kind = _KIND_OF.get(types.unliteral(element))
    if kind is None:
        raise TypingError(f"{name} takes numbers, tiles and pointers, got {numba_type}")
    return kind


def elements(
    builder: Any, value: Any, numba_type: Any, kind: Kind, length: int | None
) -> list[Scalar]:
    """The Scalars of a tile; a number is repeated."""
    if not is_tile(numba_type):
        return [Scalar(builder, value, kind)] * (length or 1)
    return unpack(builder, value, kind)


def unpack(builder: Any, value: Any, kind: Kind) -> list[Scalar]:
    """The elements of a tile's LLVM value."""
    parts = cgutils.unpack_tuple(builder, value, value.type.count)
    if kind is B8:
        # Numba holds booleans in aggregates as bytes.
        parts = [part if part.type == B8.llvm else builder.trunc(part, B8.llvm) for part in parts]
    return [Scalar(builder, part, kind) for part in parts]


def pack(builder: Any, scalars: Sequence[Scalar]) -> Any:
    """A tile's LLVM value."""
    return cgutils.pack_array(builder, [scalar.value for scalar in scalars])
