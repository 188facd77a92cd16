"""Tiles: the elements that one thread holds in registers, and how they are loaded and stored.

`Vector` is `length` neighbours at an address that the text computes. `Tile` is a thread's part of
a row: `chunks` vectors of `vector` elements, `threads` threads side by side, so that a warp's
accesses are contiguous. Kernel text makes one at its top and uses its functions:
`tile.load_bf16(x, at)` and the like.
Invariant: elements outside the row are never read, never written, and count for nothing in folds.
"""

from __future__ import annotations

import types as python_types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core.errors import TypingError
from numba.cuda import types

from rudagraph.build import cuda_memory as memory
from rudagraph.build import cuda_random as random
from rudagraph.build.cpu_emit import B8, I32, I64, U32, U64, VOID, Kind, Scalar, select
from rudagraph.build.cuda_emit import (
    Intrinsic,
    element_kind,
    elements,
    pack,
    plain_type,
    unpack,
)
from rudagraph.build.cuda_memory import STORAGES, Storage
from rudagraph.build.cuda_reduce import FOLDS, fold_registers, fold_threads, fold_warps, register

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

    def _values(
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

    def _function(
        self,
        name: str,
        parameters: str,
        result: Callable[..., Any] | Any,
        emit: Emit,
        *,
        placed: bool = True,
    ) -> Intrinsic:
        """A function whose emitter gets the builder and each argument with its Numba type.

        `placed` ones depend on where in a row the tile is.
        """
        extra = self._more_parameters() if placed else []

        def lower(*arguments: Any) -> Any:
            own = arguments[: len(arguments) - len(extra)]
            result_type = result if isinstance(result, types.Type) else result(*own)
            signature = result_type(*map(plain_type, arguments))

            def emit_call(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                pairs = list(zip(values, map(plain_type, arguments), strict=True))
                value = self._emit(emit, builder, pairs) if extra else emit(builder, *pairs)
                return context.get_dummy_value() if value is None else value

            return signature, emit_call

        return Intrinsic(name, parameters.split() + extra, lower)

    def _more_parameters(self) -> list[str]:
        return []

    def _emit(self, emit: Emit, builder: Any, arguments: list[Argument]) -> Any:
        return emit(builder, *arguments)


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


class Vector(Functions):
    """`length` neighbouring elements at an offset the text gives; the text guards them."""

    def __init__(self, length: int) -> None:
        super().__init__(f"vector of {length}")
        self.length = length
        self.count = length

    def places(self, builder: Any) -> list[Place]:
        return [Place(None, 0, None)]

    def _make_load(self, name: str, type_name: str) -> Intrinsic:
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, offset: Argument) -> Any:
            words = self._load(builder, pointer, offset, storage)
            return pack(builder, self._unpack(builder, words, storage, again=False))

        return self._function(name, "pointer offset", tile_type(storage.register, self.count), emit)

    def _make_load_strided(self, name: str, type_name: str) -> Intrinsic:
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, offset: Argument, stride: Argument) -> Any:
            step = number_of(builder, stride, I64)
            values: list[Scalar] = []
            for place in self.places(builder):
                first = self.first(builder, offset, place, step)

                def read(first: Scalar = first) -> list[Any]:
                    words: list[Any] = []
                    for index in range(self.length):
                        address = self.address(builder, pointer, first + step * index, storage)
                        words += memory.load_words(builder, address, storage.size)
                    return words

                per_element = max(storage.size // 4, 1)
                words = _where(builder, place.exists, read, self.length * per_element)
                for index in range(self.length):
                    part = words[index * per_element : (index + 1) * per_element]
                    values += memory.unpack_words(builder, part, storage, 1)
            return pack(builder, values)

        return self._function(
            name, "pointer offset stride", tile_type(storage.register, self.count), emit
        )

    def _make_store(self, name: str, type_name: str) -> Intrinsic:
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, offset: Argument, values: Argument) -> None:
            scalars = self._values(name, builder, *values, storage.register)
            words: list[Any] = []
            for first in range(0, self.count, self.length):
                part = scalars[first : first + self.length]
                words += memory.pack_words(builder, part, storage)
            self._store(builder, pointer, offset, words, storage)

        return self._function(name, "pointer offset values", VOID.numba, emit)

    def _make_store_strided(self, name: str, type_name: str) -> Intrinsic:
        storage = STORAGES[type_name]

        def emit(
            builder: Any, pointer: Argument, offset: Argument, stride: Argument, values: Argument
        ) -> None:
            step = number_of(builder, stride, I64)
            scalars = self._values(name, builder, *values, storage.register)
            for index, place in enumerate(self.places(builder)):
                part = scalars[index * self.length : (index + 1) * self.length]
                first = self.first(builder, offset, place, step)

                def write(first: Scalar = first, part: list[Scalar] = part) -> None:
                    for position, value in enumerate(part):
                        address = self.address(builder, pointer, first + step * position, storage)
                        words = memory.pack_words(builder, [value], storage)
                        memory.store_words(builder, address, words, storage.size)

                when(builder, place.exists, write)

        return self._function(name, "pointer offset stride values", VOID.numba, emit)

    def _make_load_words(self, name: str, type_name: str) -> Intrinsic:
        """Elements as they lie in memory: what is held across a barrier, at half the registers."""
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, offset: Argument) -> Any:
            words = self._load(builder, pointer, offset, storage)
            return pack(builder, [Scalar(builder, word, U32) for word in words])

        return self._function(name, "pointer offset", tile_type(U32, self._words(storage)), emit)

    def _make_pack(self, name: str, type_name: str) -> Intrinsic:
        """Elements rounded to how they lie in memory."""
        storage = STORAGES[type_name]

        def emit(builder: Any, values: Argument) -> Any:
            scalars = self._values(name, builder, *values, storage.register)
            words: list[Any] = []
            for first in range(0, self.count, self.length):
                part = scalars[first : first + self.length]
                words += memory.pack_words(builder, part, storage)
            return pack(builder, [Scalar(builder, word, U32) for word in words])

        words_type = tile_type(U32, self._words(storage))
        return self._function(name, "values", words_type, emit, placed=False)

    def _make_store_words(self, name: str, type_name: str) -> Intrinsic:
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, offset: Argument, words: Argument) -> None:
            parts = [scalar.value for scalar in unpack(builder, words[0], U32)]
            self._store(builder, pointer, offset, parts, storage)

        return self._function(name, "pointer offset words", VOID.numba, emit)

    def _make_unpack(self, name: str, type_name: str) -> Intrinsic:
        return self._unpacker(name, STORAGES[type_name], again=False)

    def _make_unpack_again(self, name: str, type_name: str) -> Intrinsic:
        """As `unpack`, but not shared with an unpacking before: see cuda_memory."""
        return self._unpacker(name, STORAGES[type_name], again=True)

    def _unpacker(self, name: str, storage: Storage, *, again: bool) -> Intrinsic:
        def emit(builder: Any, words: Argument) -> Any:
            parts = [scalar.value for scalar in unpack(builder, words[0], U32)]
            return pack(builder, self._unpack(builder, parts, storage, again=again))

        elements_type = tile_type(storage.register, self.count)
        return self._function(name, "words", elements_type, emit, placed=False)

    def _make_within(self, name: str, fold_name: str) -> Intrinsic:
        """`within_sum`: of this thread's elements."""
        fold = FOLDS[fold_name]

        def emit(builder: Any, values: Argument) -> Any:
            counted = self._counted(name, builder, values, fold.identity)
            return fold_registers(counted, fold).value

        return self._function(name, "values", lambda values: element_kind(name, values).numba, emit)

    def _counted(
        self, name: str, builder: Any, argument: Argument, identity: Callable[[Kind], int | float]
    ) -> list[Scalar]:
        """The elements that a fold counts."""
        return self._values(name, builder, *argument, None)

    def _make_full(self, name: str) -> Intrinsic:
        """A tile of one number."""

        def result(value: Any) -> Any:
            return tile_type(element_kind(name, value), self.count)

        def emit(builder: Any, value: Argument) -> Any:
            return pack(builder, self._values(name, builder, *value, None))

        return self._function(name, "value", result, emit, placed=False)

    def _make_positions(self, name: str) -> Intrinsic:
        """The column of each element, i64; for a Vector 0, 1, 2, …"""

        def emit(builder: Any) -> Any:
            values = []
            for place in self.places(builder):
                for index in range(self.length):
                    constant = Scalar(builder, None, I64).constant(place.constant + index)
                    values.append(constant if place.position is None else place.position + constant)
            return pack(builder, values)

        return self._function(name, "", tile_type(I64, self.count), emit)

    def _make_at_position(self, name: str) -> Intrinsic:
        """Whether an element's position is the number given; one comparison of 32 bits each."""

        def emit(builder: Any, wanted: Argument) -> Any:
            number = number_of(builder, wanted, I64)
            values = []
            for place in self.places(builder):
                relative = number - place.constant
                if place.position is not None:
                    relative = relative - place.position
                is_near = (relative >= 0) & (relative < self.length)
                near = relative.instruction("trunc", I32)
                near = select(is_near, near, -1)
                values += [near.equals(index) for index in range(self.length)]
            return pack(builder, values)

        return self._function(name, "number", tile_type(B8, self.count), emit)

    def _make_random(self, name: str, bits: str) -> Intrinsic:
        """`random_16(key, stream, offset)`: the words of the elements after the offset."""
        kind = I32 if bits == "16" else U32

        def emit(builder: Any, key: Argument, stream: Argument, offset: Argument) -> Any:
            values: list[Scalar] = []
            for place in self.places(builder):
                values += random.words(
                    number_of(builder, key, I64),
                    number_of(builder, stream, I64),
                    self.first(builder, offset, place, None),
                    self.length,
                    int(bits),
                )
            return pack(builder, values)

        return self._function(name, "key stream offset", tile_type(kind, self.count), emit)

    # -- pieces

    def _words(self, storage: Storage) -> int:
        return self.count // self.length * memory.word_count(storage, self.length)

    def first(self, builder: Any, offset: Argument, place: Place, stride: Scalar | None) -> Scalar:
        """Index of a vector's first element; columns are `stride` apart."""
        index = number_of(builder, offset, I64)
        if place.position is not None:
            index = index + (place.position if stride is None else place.position * stride)
        if place.constant:
            constant = index.constant(place.constant)
            index = index + (constant if stride is None else constant * stride)
        return index

    def address(self, builder: Any, pointer: Argument, index: Scalar, storage: Storage) -> Any:
        base = Scalar(builder, pointer[0], element_kind("a load", pointer[1]))
        return memory.address(base, index, storage.size)

    def _load(
        self, builder: Any, pointer: Argument, offset: Argument, storage: Storage
    ) -> list[Any]:
        words: list[Any] = []
        size = storage.size * self.length
        for place in self.places(builder):
            first = self.first(builder, offset, place, None)

            def read(first: Scalar = first) -> list[Any]:
                address = self.address(builder, pointer, first, storage)
                return memory.load_words(builder, address, size)

            count = memory.word_count(storage, self.length)
            words += _where(builder, place.exists, read, count)
        return words

    def _store(
        self,
        builder: Any,
        pointer: Argument,
        offset: Argument,
        words: Sequence[Any],
        storage: Storage,
    ) -> None:
        count = memory.word_count(storage, self.length)
        for index, place in enumerate(self.places(builder)):
            part = words[index * count : (index + 1) * count]
            first = self.first(builder, offset, place, None)

            def write(first: Scalar = first, part: Sequence[Any] = part) -> None:
                address = self.address(builder, pointer, first, storage)
                memory.store_words(builder, address, part, storage.size * self.length)

            when(builder, place.exists, write)

    def _unpack(
        self, builder: Any, words: Sequence[Any], storage: Storage, *, again: bool
    ) -> list[Scalar]:
        count = memory.word_count(storage, self.length)
        values: list[Scalar] = []
        for first in range(0, len(words), count):
            part = words[first : first + count]
            values += memory.unpack_words(builder, part, storage, self.length, again=again)
        return values


class Tile(Vector):
    """A thread's part of a row of `length` elements; a block holds `rows` rows of `extent`.

    Threads and vector are powers of two; `vector` divides the length. With `parts`, a row is longer
    than a tile, and each function takes one more argument: the column where this part starts.
    """

    def __init__(
        self,
        *,
        length: int,
        vector: int,
        chunks: int,
        threads: int,
        extent: int,
        rows: int = 1,
        parts: bool = False,
    ) -> None:
        super().__init__(vector)
        self.__name__ = f"tile of {chunks} × {vector}"
        self.count = vector * chunks
        self.row_length = length
        self.chunks = chunks
        self.threads = threads
        self.rows = rows
        self.extent = extent
        self.parts = parts
        self._start: Scalar | None = None

    def _more_parameters(self) -> list[str]:
        return ["start"] if self.parts else []

    def _emit(self, emit: Emit, builder: Any, arguments: list[Argument]) -> Any:
        self._start = number_of(builder, arguments[-1], I64)
        try:
            return emit(builder, *arguments[:-1])
        finally:
            self._start = None

    def _lane(self, builder: Any) -> Scalar:
        thread = register(builder, "tid.x")
        return thread & (self.threads - 1) if self.rows > 1 else thread

    def _row(self, builder: Any) -> Scalar:
        block = _unsigned(register(builder, "ctaid.x"))
        if self.rows == 1:
            return block
        return block * self.rows + self._group(builder)

    def _group(self, builder: Any) -> Scalar:
        thread = _unsigned(register(builder, "tid.x"))
        shift = self.threads.bit_length() - 1
        return Scalar(builder, builder.lshr(thread.value, ir.IntType(64)(shift)), I64)

    @property
    def _has_dead_rows(self) -> bool:
        return self.extent % self.rows != 0

    def places(self, builder: Any) -> list[Place]:
        position = _unsigned(self._lane(builder)) * self.length
        if self._start is not None:
            position = position + self._start
        places = []
        for chunk in range(self.chunks):
            exists = self._within(builder, chunk)
            if self._has_dead_rows:
                lives = self._row(builder) < self.extent
                exists = lives if exists is None else exists & lives
            places.append(Place(position, chunk * self.threads * self.length, exists))
        return places

    def _within(self, builder: Any, chunk: int) -> Scalar | None:
        """Whether this thread's vector of a chunk lies in the row; None where it surely does."""
        span = self.threads * self.length
        first = chunk * span
        if self._start is not None:
            if self.row_length % (self.chunks * span) == 0:
                return None
            column = _unsigned(self._lane(builder)) * self.length + self._start
            return column < self.row_length - first
        if first + span <= self.row_length:
            return None
        return self._lane(builder) * self.length < self.row_length - first

    def _make_row(self, name: str) -> Intrinsic:
        """This thread's row; in a dead group the last one, so that reading its values is safe."""

        def emit(builder: Any) -> Any:
            row = self._row(builder)
            if self._has_dead_rows:
                row = select(row < self.extent, row, self.extent - 1)
            return row.value

        return self._function(name, "", I64.numba, emit, placed=False)

    def _make_store_row(self, name: str, type_name: str) -> Intrinsic:
        """One value of the row, written by its first thread."""
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, index: Argument, value: Argument) -> None:
            writes = self._lane(builder).equals(0)
            if self._has_dead_rows:
                writes = writes & (self._row(builder) < self.extent)
            scalar = number_of(builder, value, storage.register)

            def write() -> None:
                address = self.address(builder, pointer, number_of(builder, index, I64), storage)
                words = memory.pack_words(builder, [scalar], storage)
                memory.store_words(builder, address, words, storage.size)

            when(builder, writes, write)

        return self._function(name, "pointer index value", VOID.numba, emit, placed=False)

    def _make_across(self, name: str, fold_name: str) -> Intrinsic:
        """`across_sum`: of one number of each thread of the row."""
        return _across(self, name, fold_name, self.threads)

    def _make_sum(self, name: str, count: str = "1") -> Intrinsic:
        return self._fold(name, "sum", int(count), in_turn=False)

    def _make_max(self, name: str, count: str = "1") -> Intrinsic:
        return self._fold(name, "max", int(count), in_turn=False)

    def _make_min(self, name: str, count: str = "1") -> Intrinsic:
        return self._fold(name, "min", int(count), in_turn=False)

    def _make_sum_in_turn(self, name: str, count: str = "1") -> Intrinsic:
        return self._fold(name, "sum", int(count), in_turn=True)

    def _make_max_in_turn(self, name: str, count: str = "1") -> Intrinsic:
        return self._fold(name, "max", int(count), in_turn=True)

    def _make_min_in_turn(self, name: str, count: str = "1") -> Intrinsic:
        return self._fold(name, "min", int(count), in_turn=True)

    def _fold(self, name: str, fold_name: str, count: int, *, in_turn: bool) -> Intrinsic:
        """Totals over the row of one tile (a number) or of `count` tiles (a tuple), one barrier."""
        fold = FOLDS[fold_name]

        def result(*arguments: Any) -> Any:
            kinds = {element_kind(name, argument) for argument in arguments[in_turn:]}
            if len(kinds) != 1:
                raise TypingError(f"{name} takes tiles of one kind")
            (kind,) = kinds
            return kind.numba if count == 1 else tile_type(kind, count)

        def emit(builder: Any, *arguments: Argument) -> Any:
            turn = number_of(builder, arguments[0]) if in_turn else None
            partial = [
                fold_registers(self._counted(name, builder, argument, fold.identity), fold)
                for argument in arguments[in_turn:]
            ]
            totals = fold_threads(partial, fold, self.threads, turn)
            return totals[0].value if count == 1 else pack(builder, totals)

        names = [f"values_{index}" for index in range(count)]
        return self._function(name, " ".join(["turn"] * in_turn + names), result, emit)

    def _counted(
        self, name: str, builder: Any, argument: Argument, identity: Callable[[Kind], int | float]
    ) -> list[Scalar]:
        """A tile's elements; those outside the row replaced by the fold's identity."""
        values = self._values(name, builder, *argument, None)
        for chunk in range(self.chunks):
            exists = self._within(builder, chunk)
            if exists is None:
                continue
            for index in range(chunk * self.length, (chunk + 1) * self.length):
                value = values[index]
                values[index] = select(exists, value, value.constant(identity(value.kind)))
        return values


class Block(Functions):
    """The threads of a block, and folds over them."""

    def __init__(self, *, threads: int) -> None:
        super().__init__(f"block of {threads}")
        self.threads = threads
        self.count = 1

    def _make_across(self, name: str, fold_name: str) -> Intrinsic:
        """`across_sum`: of one number of each thread."""
        return _across(self, name, fold_name, self.threads)

    def _make_columns(self, name: str, fold_name: str) -> Intrinsic:
        """`columns_sum`: for each lane, over the warps in their order."""
        fold = FOLDS[fold_name]

        def emit(builder: Any, value: Argument) -> Any:
            return fold_warps(number_of(builder, value), fold, self.threads).value

        return self._function(name, "value", lambda value: element_kind(name, value).numba, emit)


def _across(functions: Functions, name: str, fold_name: str, threads: int) -> Intrinsic:
    fold = FOLDS[fold_name]

    def emit(builder: Any, value: Argument) -> Any:
        return fold_threads([number_of(builder, value)], fold, threads, None)[0].value

    return functions._function(
        name, "value", lambda value: element_kind(name, value).numba, emit, placed=False
    )


def _unsigned(value: Scalar) -> Scalar:
    """A register that is never negative, as an i64."""
    return value.instruction("zext", I64)


def when(builder: Any, condition: Scalar | None, write: Callable[[], None]) -> None:
    if condition is None:
        write()
        return
    with builder.if_then(condition.value):
        write()


def _where(
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
