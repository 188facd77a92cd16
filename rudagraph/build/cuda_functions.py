"""Namespaces of the kernel language: functions that are made for one tile, vector or block.

Input: what a kernel's text says at its top, such as `Vector(8)`. Output: an object whose attributes
are functions of the language. Invariant: a function's arguments are checked for kind and length
when the text is compiled.
"""

from __future__ import annotations

import types as python_types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core.errors import TypingError
from numba.cuda import types

from rudagraph.build.cpu_emit import I64, U64, Kind, Scalar
from rudagraph.build.cuda_emit import Intrinsic, element_kind, elements, plain_type
from rudagraph.build.cuda_reduce import FOLDS, fold_threads

Emit = Callable[..., Any]
Argument = tuple[Any, Any]


class Functions(python_types.ModuleType):
    """A namespace of functions of the language, each made when the text first names it.

    It is a module because Numba resolves attributes of those: `tile.load_bf16` is one function.
    """

    count: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        verb, _, rest = name.rpartition("_")
        for part, argument in ((name, ""), (verb, rest)):
            make = getattr(type(self), f"_make_{part}", None)
            if make is not None:
                function = make(self, name, argument) if argument else make(self, name)
                setattr(self, name, function)
                return function
        raise AttributeError(f"{self.__name__} has no {name}")

    def values_of(
        self, name: str, builder: Any, value: Any, numba_type: Any, wanted: Kind | None
    ) -> list[Scalar]:
        """The elements of an argument, a number repeated."""
        kind = element_kind(name, numba_type)
        if wanted is not None and kind is not wanted:
            raise TypingError(f"{name} takes {wanted}, got {kind}")
        values = elements(builder, value, numba_type, kind, self.count)
        if len(values) != self.count:
            raise TypingError(f"{name} takes {self.count} elements, got {len(values)}")
        return values

    def function(
        self,
        name: str,
        parameters: str,
        result: Callable[..., Any] | Any,
        emit: Emit,
    ) -> Intrinsic:
        """A function whose emitter gets the builder and each argument with its Numba type."""

        def lower(*arguments: Any) -> Any:
            result_type = result if isinstance(result, types.Type) else result(*arguments)
            signature = result_type(*map(plain_type, arguments))

            def emit_call(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                pairs = list(zip(values, map(plain_type, arguments), strict=True))
                value = emit(builder, *pairs)
                return context.get_dummy_value() if value is None else value

            return signature, emit_call

        return Intrinsic(name, parameters.split(), lower)


def number_of(builder: Any, argument: Argument, kind: Kind | None = None) -> Scalar:
    value, numba_type = argument
    scalar = Scalar(builder, value, element_kind("a function of a tile", numba_type))
    if kind is I64 and scalar.kind.is_integer and scalar.kind.bits < 64:
        scalar = scalar.instruction("sext" if scalar.kind.is_signed else "zext", I64)
    if kind is not None and scalar.kind not in (kind, U64 if kind is I64 else kind):
        raise TypingError(f"expected {kind}, got {scalar.kind}")
    return Scalar(builder, scalar.value, kind) if kind is I64 else scalar


def tile_type(kind: Kind, count: int) -> Any:
    return types.UniTuple(kind.numba, count)


@dataclass(frozen=True, slots=True)
class Place:
    """One vector of a tile: where it begins after the row's offset, and when it exists."""

    position: Scalar | None
    constant: int
    exists: Scalar | None


def across(
    functions: Functions, name: str, fold_name: str, threads: int, groups: int = 1, cluster: int = 1
) -> Intrinsic:
    fold = FOLDS[fold_name]

    def emit(builder: Any, value: Argument) -> Any:
        values = [number_of(builder, value)]
        return fold_threads(values, fold, threads, None, groups, cluster)[0].value

    return functions.function(name, "value", lambda value: element_kind(name, value).numba, emit)


def unsigned(value: Scalar) -> Scalar:
    """A register that is never negative, as an i64."""
    return value.instruction("zext", I64)


def when(builder: Any, condition: Scalar | None, write: Callable[[], None]) -> None:
    if condition is None:
        write()
        return
    with builder.if_then(condition.value):
        write()


def read_where(
    builder: Any, condition: Scalar | None, read: Callable[[], list[Any]], count: int
) -> list[Any]:
    """The words read where the condition holds, zeros elsewhere."""
    if condition is None:
        return read()
    before = builder.block
    with builder.if_then(condition.value):
        words = read()
        inside = builder.block
    assert len(words) == count
    merged = []
    for word in words:
        phi = builder.phi(word.type)
        phi.add_incoming(ir.Constant(word.type, 0), before)
        phi.add_incoming(word, inside)
        merged.append(phi)
    return merged
