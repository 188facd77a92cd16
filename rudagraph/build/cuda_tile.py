"""Tiles: a thread's part of a row, and folds over the threads that share the row.

A tile is `chunks` vectors of `vector` elements, `threads` threads side by side, so that a warp's
accesses are contiguous. Kernel text makes one at its top and uses its functions:
`tile.load_bf16(x, at)` and the like. Invariant: elements outside the row are never read, never
written, and count for nothing in folds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core.errors import TypingError

from rudagraph.build import cuda_memory as memory
from rudagraph.build.cpu_emit import I32, I64, VOID, Kind, Scalar, select
from rudagraph.build.cuda_emit import Intrinsic, element_kind, elements, is_tile, pack, raw_assembly
from rudagraph.build.cuda_functions import (
    Argument,
    Functions,
    Place,
    across,
    number_of,
    tile_type,
    unsigned,
    when,
)
from rudagraph.build.cuda_memory import STORAGES
from rudagraph.build.cuda_reduce import (
    FOLDS,
    cluster_rank,
    fold_groups,
    fold_registers,
    fold_threads,
    fold_warps,
    low_word,
    meet_cluster,
    register,
    shared_array,
)
from rudagraph.build.cuda_vector import Vector

_PIECE = 16


class Tile(Vector):
    """A thread's part of a row of `length` elements; a block holds `rows` rows of `extent`.

    Threads, vector and cluster are powers of two; `vector` divides the length. With a cluster, so
    many blocks share each row, `threads` of each side by side.
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
        cluster: int = 1,
    ) -> None:
        super().__init__(vector)
        self.__name__ = f"tile of {chunks} × {vector}"
        self.count = vector * chunks
        self.row_length = length
        self.chunks = chunks
        self.threads = threads
        self.rows = rows
        self.extent = extent
        self.cluster = cluster
        # Elements of a row that its threads hold in one vector each.
        self.span = cluster * threads * vector

    def _lane(self, builder: Any) -> Scalar:
        """This thread's number among those of its row."""
        thread = register(builder, "tid.x")
        if self.cluster > 1:
            return thread + cluster_rank(builder, self.cluster) * self.threads
        return thread & (self.threads - 1) if self.rows > 1 else thread

    def _row(self, builder: Any) -> Scalar:
        block = register(builder, "ctaid.x")
        if self.cluster > 1:
            shift = ir.IntType(32)(self.cluster.bit_length() - 1)
            block = Scalar(builder, builder.lshr(block.value, shift), block.kind)
        block = unsigned(block)
        if self.rows == 1:
            return block
        return block * self.rows + self._group(builder)

    def _group(self, builder: Any) -> Scalar:
        thread = unsigned(register(builder, "tid.x"))
        shift = self.threads.bit_length() - 1
        return Scalar(builder, builder.lshr(thread.value, ir.IntType(64)(shift)), I64)

    @property
    def _has_dead_rows(self) -> bool:
        return self.extent % self.rows != 0

    def places(self, builder: Any) -> list[Place]:
        position = unsigned(self._lane(builder)) * self.length
        places = []
        for chunk in range(self.chunks):
            exists = self._within(builder, chunk)
            if self._has_dead_rows:
                lives = self._row(builder) < self.extent
                exists = lives if exists is None else exists & lives
            places.append(Place(position, chunk * self.span, exists))
        return places

    def _within(self, builder: Any, chunk: int) -> Scalar | None:
        """Whether this thread's vector of a chunk lies in the row; None where it surely does."""
        first = chunk * self.span
        if first + self.span <= self.row_length:
            return None
        return self._lane(builder) * self.length < self.row_length - first

    def _make_row(self, name: str) -> Intrinsic:
        """This thread's row; in a dead group the last one, so that reading its values is safe."""

        def emit(builder: Any) -> Any:
            row = self._row(builder)
            if self._has_dead_rows:
                row = select(row < self.extent, row, self.extent - 1)
            return row.value

        return self.function(name, "", I64.numba, emit)

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

        return self.function(name, "pointer index value", VOID.numba, emit)

    def _make_meet(self, name: str) -> Intrinsic:
        """The blocks of a cluster meet: from then on each may write to the others."""
        return self.function(name, "", VOID.numba, meet_cluster)

    def _make_settle(self, name: str, count: str = "1") -> Intrinsic:
        """`settle_3(a, b, c)`: what has been loaded arrives here.

        The assembler counts loads under way by few counters. One that is first used inside a loop
        makes that use wait, in every turn, for whatever the loop itself has begun to load before:
        LayerNorm backward of f32 4096 took 127 µs so. A store to shared memory is a use; of
        several to one place the assembler keeps the last.
        """

        def emit(builder: Any, *arguments: Argument) -> None:
            words = [
                low_word(value)
                for argument in arguments
                for value in elements(builder, *argument, element_kind(name, argument[1]), None)
            ]
            word = words[0]
            for other in words[1:]:
                word = builder.xor(word, other)
            threads = self.threads * self.rows
            module = builder.module
            settled = shared_array(module, word.type, threads, "settled", is_new=False)
            place = builder.gep(
                settled, [ir.IntType(32)(0), register(builder, "tid.x").value], inbounds=True
            )
            address = builder.trunc(builder.ptrtoint(place, ir.IntType(64)), ir.IntType(32))
            text = "st.shared.u32 [$0], $1;"
            raw_assembly(builder, text, "r,r,~{memory}", VOID.llvm, [address, word], True)

        names = " ".join(f"values_{index}" for index in range(int(count)))
        return self.function(name, names, VOID.numba, emit)

    def _make_prefetch(self, name: str, type_name: str) -> Intrinsic:
        """`prefetch_bf16(pointer, offset)`: the row's first thread asks for it to come to L2.

        Whole pieces of 16 bytes, which begin and end where memory can be read.
        """
        size = STORAGES[type_name].size

        def emit(builder: Any, pointer: Argument, offset: Argument) -> None:
            def ask() -> None:
                first = number_of(builder, offset, I64)
                address = self.address(builder, pointer, first, STORAGES[type_name])
                start = Scalar(builder, builder.ptrtoint(address, ir.IntType(64)), I64)
                aligned = start & -_PIECE
                end = (start + (self.row_length * size + _PIECE - 1)) & -_PIECE
                bytes = (end - aligned).instruction("trunc", I32)
                text = "cp.async.bulk.prefetch.L2.global [$0], $1;"
                values = [aligned.value, bytes.value]
                raw_assembly(builder, text, "l,r,~{memory}", VOID.llvm, values, True)

            when(builder, self._lane(builder).equals(0), ask)

        return self.function(name, "pointer offset", VOID.numba, emit)

    def _make_group(self, name: str) -> Intrinsic:
        """Which of the block's rows this thread's is."""
        return self.function(name, "", I64.numba, lambda builder: self._group(builder).value)

    def _make_rows_sum(self, name: str, number: str) -> Intrinsic:
        return self._fold_rows(name, "sum", number)

    def _make_rows_max(self, name: str, number: str) -> Intrinsic:
        return self._fold_rows(name, "max", number)

    def _make_rows_min(self, name: str, number: str) -> Intrinsic:
        return self._fold_rows(name, "min", number)

    def _fold_rows(self, name: str, fold_name: str, number: str) -> Intrinsic:
        """`rows_sum_0`: each element over the block's rows, right in the threads of the first.

        Calls take turns between two buffers, 0 and 1.
        """

        def emit(builder: Any, argument: Argument) -> Any:
            values = self.values_of(name, builder, *argument, None)
            fold = FOLDS[fold_name]
            return pack(builder, fold_groups(values, fold, self.threads, self.rows, number))

        def result(argument: Any) -> Any:
            return tile_type(element_kind(name, argument), self.count)

        return self.function(name, "values", result, emit)

    def _make_across(self, name: str, fold_name: str) -> Intrinsic:
        """`across_sum`: of one number of each thread of the row."""
        return across(self, name, fold_name, self.threads, self.rows, self.cluster)

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
            totals = fold_threads(partial, fold, self.threads, turn, self.rows, self.cluster)
            return totals[0].value if count == 1 else pack(builder, totals)

        names = [f"values_{index}" for index in range(count)]
        return self.function(name, " ".join(["turn"] * in_turn + names), result, emit)

    def _counted(
        self, name: str, builder: Any, argument: Argument, identity: Callable[[Kind], int | float]
    ) -> list[Scalar]:
        """A tile's elements; those outside the row replaced by the fold's identity."""
        values = self.values_of(name, builder, *argument, None)
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
        return across(self, name, fold_name, self.threads)

    def _make_columns(self, name: str, fold_name: str) -> Intrinsic:
        """`columns_sum`: for each lane, over the warps in their order; of a number or a tile."""
        fold = FOLDS[fold_name]

        def emit(builder: Any, value: Argument) -> Any:
            kind = element_kind(name, value[1])
            totals = fold_warps(elements(builder, *value, kind, None), fold, self.threads)
            return pack(builder, totals) if is_tile(value[1]) else totals[0].value

        def result(value: Any) -> Any:
            return value if is_tile(value) else element_kind(name, value).numba

        return self.function(name, "value", result, emit)
