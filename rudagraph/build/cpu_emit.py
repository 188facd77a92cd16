"""How the functions of the kernel language are written: Python over LLVM values.

Input: a function over `Scalar`s and a typing rule. Output: an `Operation`, which kernel text calls
through Numba and other operations call directly. Invariant: arithmetic on Scalars is IEEE, in the
order written, with no fast-math flag and no silent widening; kinds that do not match are errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import imputils, types
from numba.core.errors import TypingError
from numba.core.typing import templates

Number = int | float


@dataclass(frozen=True, slots=True)
class Kind:
    """A register type of the kernel language."""

    name: str
    numba: Any
    llvm: Any
    bits: int
    is_floating: bool = False
    is_signed: bool = True

    @property
    def is_integer(self) -> bool:
        return not self.is_floating and self.bits > 1

    def __str__(self) -> str:
        return self.name


F32 = Kind("f32", types.float32, ir.FloatType(), 32, is_floating=True)
F64 = Kind("f64", types.float64, ir.DoubleType(), 64, is_floating=True)
I64 = Kind("i64", types.int64, ir.IntType(64), 64)
I32 = Kind("i32", types.int32, ir.IntType(32), 32)
I16 = Kind("i16", types.int16, ir.IntType(16), 16)
I8 = Kind("i8", types.int8, ir.IntType(8), 8)
U8 = Kind("u8", types.uint8, ir.IntType(8), 8, is_signed=False)
U32 = Kind("u32", types.uint32, ir.IntType(32), 32, is_signed=False)
U64 = Kind("u64", types.uint64, ir.IntType(64), 64, is_signed=False)
B8 = Kind("b8", types.boolean, ir.IntType(1), 1, is_signed=False)
POINTER = Kind("pointer", types.voidptr, ir.IntType(8).as_pointer(), 0)
VOID = Kind("nothing", types.void, ir.VoidType(), 0)

KINDS = (F32, F64, I64, I32, I16, I8, U8, U32, U64, B8)
NUMBERS = (F32, F64, I64, I32, I16, I8, U8)
_OF_NUMBA = {kind.numba: kind for kind in (*KINDS, POINTER)}


class Scalar:
    """One value inside an operation; a plain number beside it becomes a constant of its kind."""

    __slots__ = ("builder", "kind", "value")

    def __init__(self, builder: ir.IRBuilder, value: Any, kind: Kind) -> None:
        self.builder = builder
        self.value = value
        self.kind = kind

    def constant(self, number: Number) -> Scalar:
        """A constant of this value's kind."""
        value = float(number) if self.kind.is_floating else int(number)
        return Scalar(self.builder, ir.Constant(self.kind.llvm, value), self.kind)

    def of(self, kind: Kind, number: Number) -> Scalar:
        """A constant of another kind, for the same place."""
        return Scalar(self.builder, None, kind).constant(number)

    def __add__(self, other: Scalar | Number) -> Scalar:
        return self._arithmetic("fadd", "add", other)

    def __radd__(self, other: Number) -> Scalar:
        return self.constant(other) + self

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return self._arithmetic("fsub", "sub", other)

    def __rsub__(self, other: Number) -> Scalar:
        return self.constant(other) - self

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return self._arithmetic("fmul", "mul", other)

    def __rmul__(self, other: Number) -> Scalar:
        return self.constant(other) * self

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        return self._arithmetic("fdiv", None, other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return self.constant(other) / self

    def __neg__(self) -> Scalar:
        if not self.kind.is_floating:
            return self.constant(0) - self
        if other_target(self) is not None:
            return self.constant(-0.0) - self
        return Scalar(self.builder, self.builder.fneg(self.value), self.kind)

    def __and__(self, other: Scalar | Number) -> Scalar:
        return self._arithmetic(None, "and_", other)

    def __or__(self, other: Scalar | Number) -> Scalar:
        return self._arithmetic(None, "or_", other)

    def __xor__(self, other: Scalar | Number) -> Scalar:
        return self._arithmetic(None, "xor", other)

    def __invert__(self) -> Scalar:
        return Scalar(self.builder, self.builder.not_(self.value), self.kind)

    def __lshift__(self, other: Scalar | Number) -> Scalar:
        return self._arithmetic(None, "shl", other)

    def __rshift__(self, other: Scalar | Number) -> Scalar:
        """Arithmetic on signed kinds, logical on unsigned ones."""
        return self._arithmetic(None, "ashr" if self.kind.is_signed else "lshr", other)

    def __lt__(self, other: Scalar | Number) -> Scalar:
        return self.compare("<", other)

    def __le__(self, other: Scalar | Number) -> Scalar:
        return self.compare("<=", other)

    def __gt__(self, other: Scalar | Number) -> Scalar:
        return self.compare(">", other)

    def __ge__(self, other: Scalar | Number) -> Scalar:
        return self.compare(">=", other)

    def equals(self, other: Scalar | Number) -> Scalar:
        return self.compare("==", other)

    def differs(self, other: Scalar | Number) -> Scalar:
        return self.compare("!=", other)

    def compare(self, sign: str, other: Scalar | Number) -> Scalar:
        """False with a NaN on either side, except for !=."""
        right = self._same(other)
        builder = self.builder
        if self.kind.is_floating:
            make = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
        else:
            make = builder.icmp_signed if self.kind.is_signed else builder.icmp_unsigned
        return Scalar(builder, make(sign, self.value, right.value), B8)

    def instruction(self, name: str, kind: Kind) -> Scalar:
        """One conversion instruction of LLVM, such as `bitcast` or `zext`, to a kind."""
        return Scalar(self.builder, getattr(self.builder, name)(self.value, kind.llvm), kind)

    def bits(self, kind: Kind) -> Scalar:
        """The same bits as another kind of the same width."""
        return self.instruction("bitcast", kind)

    def intrinsic(self, name: str, *others: Scalar | Number) -> Scalar:
        """An LLVM intrinsic over values of this kind, `llvm.NAME.f32`."""
        values = [self, *(self._same(other) for other in others)]
        special = other_target(self)
        if special is not None:
            return special(name, values)
        suffix = f"f{self.kind.bits}" if self.kind.is_floating else f"i{self.kind.bits}"
        function = declare(
            self.builder.module,
            f"llvm.{name}.{suffix}",
            ir.FunctionType(self.kind.llvm, [self.kind.llvm] * len(values)),
        )
        call = self.builder.call(function, [value.value for value in values])
        return Scalar(self.builder, call, self.kind)

    def _same(self, other: Scalar | Number) -> Scalar:
        if not isinstance(other, Scalar):
            return self.constant(other)
        if other.kind != self.kind:
            raise TypingError(f"{self.kind} meets {other.kind}")
        return other

    def _arithmetic(
        self, floating: str | None, integer: str | None, other: Scalar | Number
    ) -> Scalar:
        name = floating if self.kind.is_floating else integer
        if name is None:
            raise TypingError(f"no such arithmetic on {self.kind}")
        make = getattr(self.builder, name)
        return Scalar(self.builder, make(self.value, self._same(other).value), self.kind)


# Triple of a module for another target -> how intrinsics and libm functions are called there.
OTHER_TARGETS: dict[str, Callable[[str, list[Scalar]], Scalar]] = {}


def other_target(value: Scalar) -> Callable[[str, list[Scalar]], Scalar] | None:
    """How the target of this value's module calls a function by name; None for the CPU."""
    return OTHER_TARGETS.get(value.builder.module.triple)


def select(condition: Scalar, first: Scalar, second: Scalar | Number) -> Scalar:
    """`first` where the condition holds, else `second`; never a branch."""
    other = second if isinstance(second, Scalar) else first.constant(second)
    value = first.builder.select(condition.value, first.value, other.value)
    return Scalar(first.builder, value, first.kind)


def declare(module: ir.Module, name: str, signature: ir.FunctionType) -> ir.Function:
    """The function of that name, declared once in a module."""
    known = module.globals.get(name)
    return known if known is not None else ir.Function(module, signature, name)


# What Numba must know of the operations: their types and their code. Not in its own registries,
# so that a user's Numba sees nothing of it.
TYPINGS = templates.Registry()
LOWERINGS = imputils.Registry()

Rule = Callable[..., Kind]
Emit = Callable[..., Scalar | None]


class Operation:
    """One function of the kernel language.

    Small ones are emitted where they are called; the others become an internal function of the
    kernel's module, named after the operation and its kinds so that LLVM text stays readable.
    """

    def __init__(self, emit: Emit, rule: Rule, *, small: bool) -> None:
        self.emit = emit
        self.rule = rule
        self.small = small
        self.__name__ = emit.__name__
        self.__doc__ = emit.__doc__
        template = type(self.__name__, (_Template,), {"key": self, "lowered": {}})
        TYPINGS.register_global(self, types.Function(template))

    def __call__(self, *arguments: Scalar) -> Scalar:
        """Emits the operation inside another one."""
        kinds = [argument.kind for argument in arguments]
        result = self.rule(self.__name__, *kinds)
        builder = arguments[0].builder
        if self.small:
            emitted = self.emit(*arguments)
            return emitted if emitted is not None else Scalar(builder, None, VOID)
        function = self._function(builder.module, kinds, result)
        call = builder.call(function, [argument.value for argument in arguments])
        return Scalar(builder, call, result)

    def lowering(self, arguments: tuple[Any, ...]) -> Any:
        """Numba's signature for arguments of these types, and the function that emits the call."""
        kinds = [_kind_of(self.__name__, argument) for argument in arguments]
        result = self.rule(self.__name__, *kinds)

        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            scalars = [
                Scalar(builder, value, kind) for value, kind in zip(values, kinds, strict=True)
            ]
            emitted = self(*scalars)
            return context.get_dummy_value() if result is VOID else emitted.value

        return result.numba(*(kind.numba for kind in kinds)), lower

    def _function(self, module: ir.Module, kinds: list[Kind], result: Kind) -> ir.Function:
        name = ".".join(["rudagraph", self.__name__, *(kind.name for kind in kinds)])
        known = module.globals.get(name)
        if known is not None:
            return known
        signature = ir.FunctionType(result.llvm, [kind.llvm for kind in kinds])
        function = ir.Function(module, signature, name)
        function.linkage = "internal"
        # Loops vectorise only around what is inlined.
        function.attributes.add("alwaysinline")
        function.attributes.add("nounwind")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        arguments = [
            Scalar(builder, value, kind) for value, kind in zip(function.args, kinds, strict=True)
        ]
        emitted = self.emit(*arguments)
        if emitted is None:
            builder.ret_void()
        else:
            builder.ret(emitted.value)
        return function


class _Template(templates.AbstractTemplate):  # type: ignore[misc]
    """How Numba types an operation.

    The template of Numba's own `intrinsic` would initialise Numba's whole CPU target, and refresh
    it again at every call typed, only to find a registry.
    """

    key: Operation
    lowered: dict[Any, Any]

    def generic(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if keywords:
            raise TypingError(f"{self.key.__name__} takes its arguments by position")
        if arguments not in self.lowered:
            signature, lower = self.key.lowering(arguments)
            LOWERINGS.lower(self.key, *signature.args)(lower)
            self.lowered[arguments] = signature
        return self.lowered[arguments]

    def get_template_info(self) -> dict[str, Any]:
        emit = self.key.emit
        line = emit.__code__.co_firstlineno
        return {
            "kind": "operation",
            "name": self.key.__name__,
            "sig": str(inspect.signature(emit)),
            "filename": emit.__code__.co_filename,
            "lines": (line, line),
            "docstring": emit.__doc__,
        }


def operation(rule: Rule, *, small: bool = False) -> Callable[[Emit], Operation]:
    """Makes an operation of the decorated function; `rule` gives the result's kind."""
    return lambda emit: Operation(emit, rule, small=small)


def same(*allowed: Kind) -> Rule:
    """All arguments of one kind, which is the result's."""

    def rule(name: str, *kinds: Kind) -> Kind:
        return _require_same(name, allowed, kinds)

    return rule


def predicate(*allowed: Kind) -> Rule:
    """All arguments of one kind, the result a boolean."""

    def rule(name: str, *kinds: Kind) -> Kind:
        _require_same(name, allowed, kinds)
        return B8

    return rule


def exactly(result: Kind, *wanted: Kind | tuple[Kind, ...]) -> Rule:
    """Fixed kinds of arguments; a tuple lists the kinds one argument may have."""

    def rule(name: str, *kinds: Kind) -> Kind:
        for position, (kind, want) in enumerate(zip(kinds, wanted, strict=True)):
            choices = want if isinstance(want, tuple) else (want,)
            if kind not in choices:
                raise TypingError(
                    f"argument {position + 1} of {name} is {kind}, "
                    f"it must be {' or '.join(map(str, choices))}"
                )
        return result

    return rule


def _require_same(name: str, allowed: tuple[Kind, ...], kinds: tuple[Kind, ...]) -> Kind:
    if len(set(kinds)) != 1:
        raise TypingError(
            f"{name} takes arguments of one kind, got {', '.join(map(str, kinds))}; "
            "operators of Python widen integers, use add, sub, mul, div or a cast"
        )
    if kinds[0] not in allowed:
        raise TypingError(f"{name} is not defined for {kinds[0]}")
    return kinds[0]


def _kind_of(name: str, numba_type: Any) -> Kind:
    kind = _OF_NUMBA.get(types.unliteral(numba_type))
    if kind is None:
        raise TypingError(f"{name} takes numbers and pointers, got {numba_type}")
    return kind
