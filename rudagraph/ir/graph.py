"""Value, Op, Graph: a straight line of operations in SSA form.

Values are named and typed; an operand is a value, a Python number (computed with in the op's own
arithmetic type, as PyTorch treats Python scalars) or None (an optional operand left out).
A fused op carries a nested graph, one level deep. Everything is immutable; passes build new graphs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TypeVar
from weakref import WeakValueDictionary

from rudagraph.ir.types import DType, TensorType


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Value:
    """One SSA value. Names are unique in a graph and stable from run to run.

    Of one name and type there is one object, so that equality is identity, which costs nothing:
    passes look values up a million times.
    """

    name: str
    type: TensorType

    def __new__(cls, name: str, type: TensorType) -> Value:
        key = (name, type.dtype, type.shape)
        with _VALUES_LOCK:
            value = _VALUES.get(key)
            if value is None:
                value = _VALUES[key] = object.__new__(cls)
        return value

    def __reduce__(self) -> tuple[object, ...]:
        return Value, (self.name, self.type)

    def __str__(self) -> str:
        return f"%{self.name}"


_VALUES: WeakValueDictionary[tuple[str, DType, tuple[int, ...]], Value] = WeakValueDictionary()
_VALUES_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class Hole:
    """In a library op's argument template: the place of operand number `index`."""

    index: int


_T = TypeVar("_T")
Number = bool | int | float
Operand = Value | Number | None
Attribute = Number | str | None | DType | Hole | tuple["Attribute", ...]


@dataclass(frozen=True, slots=True)
class Location:
    """Where an op comes from in the user's program; module path or file:line may be empty."""

    module: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: `results = opcode(operands) [attributes] { body }`."""

    opcode: str
    operands: tuple[Operand, ...]
    results: tuple[Value, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()
    location: Location = field(default=Location())
    body: Graph | None = None
    # The operands that are values, in order, repeats kept.
    inputs: tuple[Value, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Bring operands and attributes into canonical form, so that equal ops compare equal."""
        operands = tuple([_canonical_number(operand) for operand in self.operands])
        object.__setattr__(self, "operands", operands)
        inputs = tuple([operand for operand in operands if isinstance(operand, Value)])
        object.__setattr__(self, "inputs", operands if len(inputs) == len(operands) else inputs)
        if self.attributes and not isinstance(self.attributes, _Canonical):
            object.__setattr__(self, "attributes", make_attributes(**dict(self.attributes)))

    def __getitem__(self, name: str) -> Attribute:
        """The attribute `name`; KeyError where the op has none of that name."""
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Attribute = None) -> Attribute:
        for key, value in self.attributes:
            if key == name:
                return value
        return default

    def with_operands(self, operands: tuple[Operand, ...]) -> Op:
        """`replace`, which most passes ask for all the time, without its detours."""
        return Op(self.opcode, operands, self.results, self.attributes, self.location, self.body)

    def reading(self, instead: Mapping[Value, Operand]) -> Op:
        """The op with what stands for some values in their place; itself if it reads none."""
        if instead.keys().isdisjoint(self.inputs):
            return self
        return self.with_operands(
            tuple([instead.get(o, o) if isinstance(o, Value) else o for o in self.operands])
        )

    @property
    def result(self) -> Value:
        """The only result; ValueError where there are several."""
        (value,) = self.results
        return value


class Role(enum.Enum):
    """What a graph input or output is to the step; the value is its name in IR text."""

    PARAMETER = "parameter"  # target: parameter path (the first of tied names)
    BUFFER = "buffer"  # target: buffer path
    ARGUMENT = "argument"  # target: argument path as forward spells it: tokens, batch.mask, xs[0]
    KEY = "key"  # the 64-bit random key of this forward: i64[]
    CONSTANT = "constant"  # target: name of a tensor evaluated or found at compile time
    TANGENT = "tangent"  # target: the result whose upstream gradient this is
    RESIDUAL = "residual"  # saved by forward for backward; target: its name in both graphs
    OPERAND = "operand"  # input of a fused body
    RESULT = "result"  # target: leaf path of the user's output; in a fused body, a result
    UPDATE = "update"  # new value of a mutated buffer or argument; target as there: buffer:path
    GRADIENT = "gradient"  # target: parameter path, or argument:path


@dataclass(frozen=True, slots=True)
class Port:
    """A graph input or output: its value, its role and what it stands for outside."""

    value: Value
    role: Role
    target: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A straight line of ops with typed, labelled inputs and outputs."""

    name: str
    inputs: tuple[Port, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Port, ...]

    def values(self) -> Iterator[Value]:
        """Every value defined: inputs first, then results in order."""
        for port in self.inputs:
            yield port.value
        for op in self.ops:
            yield from op.results

    def producers(self) -> dict[Value, Op]:
        """The op that defines each non-input value."""
        return {value: op for op in self.ops for value in op.results}

    def users(self) -> dict[Value, list[Op]]:
        """The ops that read each value, once each, in order; every value has an entry."""
        table: dict[Value, list[Op]] = {value: [] for value in self.values()}
        for op in self.ops:
            for value in dict.fromkeys(op.inputs):
                table[value].append(op)
        return table

    def output_values(self) -> frozenset[Value]:
        return frozenset(port.value for port in self.outputs)

    def with_ops(self, ops: tuple[Op, ...]) -> Graph:
        return replace(self, ops=ops)


def make_attributes(**attributes: Attribute) -> tuple[tuple[str, Attribute], ...]:
    """Attributes in canonical order; those that are None are left out."""
    return _Canonical(
        [
            (key, _canonical(attributes[key]))
            for key in sorted(attributes)
            if attributes[key] is not None
        ]
    )


class _Canonical(tuple[tuple[str, Attribute], ...]):
    """Attributes that need not be brought into that form again."""

    __slots__ = ()


def _canonical(attribute: Attribute) -> Attribute:
    if isinstance(attribute, tuple):
        return tuple([_canonical(item) for item in attribute])
    return _canonical_number(attribute)


def _canonical_number(item: _T) -> _T | float:
    """One object for all NaN: it equals itself only where it is itself."""
    return math.nan if isinstance(item, float) and math.isnan(item) else item
