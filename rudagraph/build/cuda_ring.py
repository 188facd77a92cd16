"""Rows on their way: a ring of slots in shared memory that copies fill ahead of their use.

Each thread copies what it will read itself, 16 bytes at a time and past its registers, so no
barrier is needed: `wait_n` waits until all but the n newest groups of copies have arrived. Input: a
tile and the element sizes of the operands. Invariant: a slot is filled again only after its thread
has read it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rudagraph.build import cuda_memory as memory
from rudagraph.build.cpu_emit import I64, U32, VOID, Scalar
from rudagraph.build.cuda_emit import SHARED_SPACE, Intrinsic, pack, raw_assembly
from rudagraph.build.cuda_functions import Argument, Functions, number_of, tile_type, when
from rudagraph.build.cuda_memory import STORAGES, Storage
from rudagraph.build.cuda_reduce import register
from rudagraph.build.cuda_tile import Tile

_i8, _i32, _i64 = (ir.IntType(bits) for bits in (8, 32, 64))
_PIECE = 16


class Ring(Functions):
    """`slots` rows of operands with elements of the given sizes, which fill whole pieces."""

    def __init__(self, *, tile: Tile, slots: int, sizes: tuple[int, ...]) -> None:
        super().__init__(f"ring of {slots}")
        self.tile = tile
        self.slots = slots
        span = tile.chunks * tile.threads * tile.rows * tile.length
        self.starts = [span * sum(sizes[:index]) for index in range(len(sizes))]
        self.slot_bytes = span * sum(sizes)

    def _make_fetch(self, name: str, type_name: str) -> Intrinsic:
        """`fetch_bf16(slot, operand, pointer, offset)`: begin copying this thread's part."""
        storage = STORAGES[type_name]

        def emit(
            builder: Any, slot: Argument, operand: Argument, pointer: Argument, offset: Argument
        ) -> None:
            base = self._base(builder, slot, operand, storage)
            for index, place in enumerate(self.tile.places(builder)):
                first = self.tile.first(builder, offset, place, None)

                def copy(index: int = index, first: Scalar = first) -> None:
                    source = self.tile.address(builder, pointer, first, storage)
                    source = builder.ptrtoint(source, _i64)
                    for piece in range(self._pieces(storage)):
                        target = base + self._place(storage, index, piece)
                        more = builder.add(source, _i64(_PIECE * piece)) if piece else source
                        text = "cp.async.cg.shared.global [$0], [$1], 16;"
                        values = [target.value, more]
                        raw_assembly(builder, text, "r,l,~{memory}", VOID.llvm, values, True)

                when(builder, place.exists, copy)

        return self.function(name, "slot operand pointer offset", VOID.numba, emit)

    def _make_load_words(self, name: str, type_name: str) -> Intrinsic:
        """`load_words_bf16(slot, operand)`: what has arrived."""
        storage = STORAGES[type_name]
        words = self.tile.chunks * memory.word_count(storage, self.tile.length)

        def emit(builder: Any, slot: Argument, operand: Argument) -> Any:
            base = self._base(builder, slot, operand, storage)
            result: list[Scalar] = []
            for index in range(self.tile.chunks):
                for piece in range(self._pieces(storage)):
                    source = base + self._place(storage, index, piece)
                    quad = ir.LiteralStructType([_i32] * 4)
                    text = "ld.shared.v4.u32 {$0, $1, $2, $3}, [$4];"
                    constraints = "=r,=r,=r,=r,r,~{memory}"
                    value = raw_assembly(builder, text, constraints, quad, [source.value], True)
                    for lane in range(4):
                        result.append(Scalar(builder, builder.extract_value(value, lane), U32))
            return pack(builder, result)

        return self.function(name, "slot operand", tile_type(U32, words), emit)

    def _make_commit(self, name: str) -> Intrinsic:
        """Close the group of copies begun since the last one."""
        return self._statement(name, "cp.async.commit_group;")

    def _make_wait(self, name: str, newest: str) -> Intrinsic:
        return self._statement(name, f"cp.async.wait_group {int(newest)};")

    def _statement(self, name: str, text: str) -> Intrinsic:
        def emit(builder: Any) -> None:
            raw_assembly(builder, text, "~{memory}", VOID.llvm, [], True)

        return self.function(name, "", VOID.numba, emit)

    # -- places: pieces of all threads side by side, so that neighbours use different banks

    def _pieces(self, storage: Storage) -> int:
        return storage.size * self.tile.length // _PIECE

    def _place(self, storage: Storage, chunk: int, piece: int) -> int:
        return (chunk * self._pieces(storage) + piece) * self._block_threads * _PIECE

    @property
    def _block_threads(self) -> int:
        return self.tile.threads * self.tile.rows

    def _base(self, builder: Any, slot: Argument, operand: Argument, storage: Storage) -> Scalar:
        """Where this thread's first piece of an operand lies."""
        thread = Scalar(builder, register(builder, "tid.x").value, U32)
        return self._start(builder, slot, operand) + thread * _PIECE

    def _start(self, builder: Any, slot: Argument, operand: Argument) -> Scalar:
        """Where an operand begins in a slot; the operand is a constant."""
        number = number_of(builder, slot, I64).instruction("trunc", U32)
        address = builder.ptrtoint(self._memory(builder.module), _i64)
        start = Scalar(builder, builder.trunc(address, _i32), U32)
        index = number_of(builder, operand, I64)
        shift = index.constant(self.starts[0])
        for position, offset in enumerate(self.starts[1:], start=1):
            is_it = index.equals(position)
            value = builder.select(is_it.value, _i64(offset), shift.value)
            shift = Scalar(builder, value, I64)
        return start + number * self.slot_bytes + shift.instruction("trunc", U32)

    def _memory(self, module: ir.Module) -> Any:
        name = "rudagraph_dynamic"
        known = module.globals.get(name)
        if known is not None:
            return known
        array = ir.GlobalVariable(module, ir.ArrayType(_i8, 0), name, SHARED_SPACE)
        array.linkage = "external"
        array.align = _PIECE
        return array
