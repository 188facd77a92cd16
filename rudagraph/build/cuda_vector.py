"""Vectors: neighbouring elements that a thread loads, holds in registers and stores at once.

Input: an address that the text computes, a multiple of the vector's length. Output: tiles, tuples
of that many numbers. Invariant: a 16-bit element that is held packed costs half a register, and
unpacking it gives the same bits each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from rudagraph.build import cuda_memory as memory
from rudagraph.build import cuda_random as random
from rudagraph.build.cpu_emit import B8, I32, I64, U32, VOID, Kind, Scalar, select
from rudagraph.build.cuda_emit import Intrinsic, element_kind, pack, raw_assembly, unpack
from rudagraph.build.cuda_functions import (
    Argument,
    Functions,
    Place,
    number_of,
    read_where,
    tile_type,
    when,
)
from rudagraph.build.cuda_memory import STORAGES, Storage
from rudagraph.build.cuda_reduce import FOLDS, fold_registers

Read = Callable[[Any, Any, int], list[Any]]
Write = Callable[[Any, Any, Sequence[Any], int], None]


class Vector(Functions):
    """`length` neighbouring elements at an offset the text gives; the text guards them."""

    def __init__(self, length: int) -> None:
        super().__init__(f"vector of {length}")
        self.length = length
        self.count = length

    def places(self, builder: Any) -> list[Place]:
        return [Place(None, 0, None)]

    def _make_load(self, name: str, type_name: str) -> Intrinsic:
        return self._loader(name, STORAGES[type_name], memory.load_words)

    def _make_load_kept(self, name: str, type_name: str) -> Intrinsic:
        """As `load`, of what others read too: L2 gives up everything else before."""
        return self._loader(name, STORAGES[type_name], memory.load_kept_words)

    def _make_load_streamed(self, name: str, type_name: str) -> Intrinsic:
        """As `load`, of what L2 may give up first."""
        return self._loader(name, STORAGES[type_name], memory.load_streamed_words)

    def _loader(self, name: str, storage: Storage, read: Read) -> Intrinsic:
        def emit(builder: Any, pointer: Argument, offset: Argument) -> Any:
            words = self._load(builder, pointer, offset, storage, read)
            return pack(builder, self._unpack(builder, words, storage, again=False))

        return self.function(name, "pointer offset", tile_type(storage.register, self.count), emit)

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
                words = read_where(builder, place.exists, read, self.length * per_element)
                for index in range(self.length):
                    part = words[index * per_element : (index + 1) * per_element]
                    values += memory.unpack_words(builder, part, storage, 1)
            return pack(builder, values)

        return self.function(
            name, "pointer offset stride", tile_type(storage.register, self.count), emit
        )

    def _make_store(self, name: str, type_name: str) -> Intrinsic:
        return self._storer(name, STORAGES[type_name], memory.store_words)

    def _make_store_streamed(self, name: str, type_name: str) -> Intrinsic:
        """As `store`, of what L2 may give up first."""
        return self._storer(name, STORAGES[type_name], memory.store_streamed_words)

    def _storer(self, name: str, storage: Storage, write: Write) -> Intrinsic:
        def emit(builder: Any, pointer: Argument, offset: Argument, values: Argument) -> None:
            scalars = self.values_of(name, builder, *values, storage.register)
            words: list[Any] = []
            for first in range(0, self.count, self.length):
                part = scalars[first : first + self.length]
                words += memory.pack_words(builder, part, storage)
            self._store(builder, pointer, offset, words, storage, write)

        return self.function(name, "pointer offset values", VOID.numba, emit)

    def _make_prefetch(self, name: str, type_name: str) -> Intrinsic:
        """`prefetch_bf16(pointer, offset)`: have the elements come to L2."""
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, offset: Argument) -> None:
            for place in self.places(builder):
                first = self.first(builder, offset, place, None)
                address = self.address(builder, pointer, first, storage)
                values = [builder.ptrtoint(address, ir.IntType(64))]
                text = "prefetch.global.L2 [$0];"
                raw_assembly(builder, text, "l,~{memory}", VOID.llvm, values, True)

        return self.function(name, "pointer offset", VOID.numba, emit)

    def _make_store_strided(self, name: str, type_name: str) -> Intrinsic:
        storage = STORAGES[type_name]

        def emit(
            builder: Any, pointer: Argument, offset: Argument, stride: Argument, values: Argument
        ) -> None:
            step = number_of(builder, stride, I64)
            scalars = self.values_of(name, builder, *values, storage.register)
            for index, place in enumerate(self.places(builder)):
                part = scalars[index * self.length : (index + 1) * self.length]
                first = self.first(builder, offset, place, step)

                def write(first: Scalar = first, part: list[Scalar] = part) -> None:
                    for position, value in enumerate(part):
                        address = self.address(builder, pointer, first + step * position, storage)
                        words = memory.pack_words(builder, [value], storage)
                        memory.store_words(builder, address, words, storage.size)

                when(builder, place.exists, write)

        return self.function(name, "pointer offset stride values", VOID.numba, emit)

    def _make_load_words(self, name: str, type_name: str) -> Intrinsic:
        """Elements as they lie in memory: what is held across a barrier, at half the registers."""
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, offset: Argument) -> Any:
            words = self._load(builder, pointer, offset, storage)
            return pack(builder, [Scalar(builder, word, U32) for word in words])

        return self.function(name, "pointer offset", tile_type(U32, self._words(storage)), emit)

    def _make_pack(self, name: str, type_name: str) -> Intrinsic:
        """Elements rounded to how they lie in memory."""
        storage = STORAGES[type_name]

        def emit(builder: Any, values: Argument) -> Any:
            scalars = self.values_of(name, builder, *values, storage.register)
            words: list[Any] = []
            for first in range(0, self.count, self.length):
                part = scalars[first : first + self.length]
                words += memory.pack_words(builder, part, storage)
            return pack(builder, [Scalar(builder, word, U32) for word in words])

        words_type = tile_type(U32, self._words(storage))
        return self.function(name, "values", words_type, emit)

    def _make_store_words(self, name: str, type_name: str) -> Intrinsic:
        storage = STORAGES[type_name]

        def emit(builder: Any, pointer: Argument, offset: Argument, words: Argument) -> None:
            parts = [scalar.value for scalar in unpack(builder, words[0], U32)]
            self._store(builder, pointer, offset, parts, storage)

        return self.function(name, "pointer offset words", VOID.numba, emit)

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
        return self.function(name, "words", elements_type, emit)

    def _make_within(self, name: str, fold_name: str) -> Intrinsic:
        """`within_sum`: of this thread's elements."""
        fold = FOLDS[fold_name]

        def emit(builder: Any, values: Argument) -> Any:
            counted = self._counted(name, builder, values, fold.identity)
            return fold_registers(counted, fold).value

        return self.function(name, "values", lambda values: element_kind(name, values).numba, emit)

    def _counted(
        self, name: str, builder: Any, argument: Argument, identity: Callable[[Kind], int | float]
    ) -> list[Scalar]:
        """The elements that a fold counts."""
        return self.values_of(name, builder, *argument, None)

    def _make_full(self, name: str) -> Intrinsic:
        """A tile of one number."""

        def result(value: Any) -> Any:
            return tile_type(element_kind(name, value), self.count)

        def emit(builder: Any, value: Argument) -> Any:
            return pack(builder, self.values_of(name, builder, *value, None))

        return self.function(name, "value", result, emit)

    def _make_positions(self, name: str) -> Intrinsic:
        """The column of each element, i64; for a Vector 0, 1, 2, …"""

        def emit(builder: Any) -> Any:
            values = []
            for place in self.places(builder):
                for index in range(self.length):
                    constant = Scalar(builder, None, I64).constant(place.constant + index)
                    values.append(constant if place.position is None else place.position + constant)
            return pack(builder, values)

        return self.function(name, "", tile_type(I64, self.count), emit)

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

        return self.function(name, "number", tile_type(B8, self.count), emit)

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

        return self.function(name, "key stream offset", tile_type(kind, self.count), emit)

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
        self,
        builder: Any,
        pointer: Argument,
        offset: Argument,
        storage: Storage,
        load: Read = memory.load_words,
    ) -> list[Any]:
        words: list[Any] = []
        size = storage.size * self.length
        for place in self.places(builder):
            first = self.first(builder, offset, place, None)

            def read(first: Scalar = first) -> list[Any]:
                address = self.address(builder, pointer, first, storage)
                return load(builder, address, size)

            count = memory.word_count(storage, self.length)
            words += read_where(builder, place.exists, read, count)
        return words

    def _store(
        self,
        builder: Any,
        pointer: Argument,
        offset: Argument,
        words: Sequence[Any],
        storage: Storage,
        store: Write = memory.store_words,
    ) -> None:
        count = memory.word_count(storage, self.length)
        for index, place in enumerate(self.places(builder)):
            part = words[index * count : (index + 1) * count]
            first = self.first(builder, offset, place, None)

            def write(first: Scalar = first, part: Sequence[Any] = part) -> None:
                address = self.address(builder, pointer, first, storage)
                store(builder, address, part, storage.size * self.length)

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
