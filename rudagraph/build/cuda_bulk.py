"""A ring of rows that the copy engine fills: one thread asks for a row, no thread moves it.

Of each slot a barrier in shared memory counts the bytes that have arrived; `arrived` waits for it.
Copies by each thread (cuda_ring) wait in the same queue as its loads and stores, and these behind
them. Input: as for Ring; rows that are whole pieces of 16 bytes. Invariant: the text asks for a
slot again only after a barrier that every thread of its row passed when it had read the slot.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rudagraph.build.cpu_emit import I64, U32, VOID, Scalar
from rudagraph.build.cuda_emit import Intrinsic, raw_assembly
from rudagraph.build.cuda_functions import Argument, number_of, when
from rudagraph.build.cuda_memory import STORAGES, Storage
from rudagraph.build.cuda_reduce import barrier, cluster_rank, register, shared_array
from rudagraph.build.cuda_ring import Ring
from rudagraph.build.cuda_tile import Tile

_i32, _i64 = ir.IntType(32), ir.IntType(64)
_BARRIER_BYTES = 8
# A barrier's address, what is counted, and that other threads see it.
_OPEN = "mbarrier.init.shared::cta.b64 [$0], {count};"
_OPENED = "fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;"
_EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
_COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
_TRY = (
    "{\n\t.reg .pred done;\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [$1], $2;\n"
    "\tselp.u32 $0, 1, 0, done;\n\t}"
)


class BulkRing(Ring):
    """`slots` rows of operands with elements of the given sizes."""

    def __init__(self, *, tile: Tile, slots: int, sizes: tuple[int, ...]) -> None:
        super().__init__(tile=tile, slots=slots, sizes=sizes)
        self.sizes = sizes

    def _make_open(self, name: str) -> Intrinsic:
        """Before anything else: a barrier for each slot of each of the block's rows."""

        def emit(builder: Any) -> None:
            first = register(builder, "tid.x").equals(0)

            def begin() -> None:
                start = self._barrier_start(builder)
                for number in range(self.slots * self.tile.rows):
                    place = start + number * _BARRIER_BYTES
                    text = _OPEN.format(count=len(self.sizes))
                    raw_assembly(builder, text, "r,~{memory}", VOID.llvm, [place.value], True)
                raw_assembly(builder, _OPENED, "~{memory}", VOID.llvm, [], True)

            when(builder, first, begin)
            barrier(builder)

        return self.function(name, "", VOID.numba, emit)

    def _make_fetch(self, name: str, type_name: str) -> Intrinsic:
        """`fetch_bf16(slot, operand, pointer, offset)`: ask for the row; its first thread does."""
        storage = STORAGES[type_name]

        def emit(
            builder: Any, slot: Argument, operand: Argument, pointer: Argument, offset: Argument
        ) -> None:
            leads = self._in_row(builder).equals(0)

            def ask() -> None:
                arrival = self._barrier(builder, slot)
                target = self._row_start(builder, slot, operand, storage)
                runs = self._runs(builder, storage)
                total = runs[0][2]
                for _, _, size in runs[1:]:
                    total = total + size
                values = [arrival.value, total.value]
                raw_assembly(builder, _EXPECT, "r,r,~{memory}", VOID.llvm, values, True)
                for first, place, size in runs:
                    index = number_of(builder, offset, I64) + first.instruction("zext", I64)
                    source = self.tile.address(builder, pointer, index, storage)
                    address = builder.ptrtoint(source, _i64)
                    values = [(target + place).value, address, size.value, arrival.value]
                    is_any = size > 0 if len(runs) > 1 else None

                    def copy(values: list[Any] = values) -> None:
                        raw_assembly(builder, _COPY, "r,l,r,r,~{memory}", VOID.llvm, values, True)

                    when(builder, is_any, copy)

            when(builder, leads, ask)

        return self.function(name, "slot operand pointer offset", VOID.numba, emit)

    def _make_arrived(self, name: str) -> Intrinsic:
        """`arrived(slot, phase)`: wait for a slot; its phases are 0, 1, 0, … from fill to fill."""

        def emit(builder: Any, slot: Argument, phase: Argument) -> None:
            arrival = self._barrier(builder, slot)
            parity = number_of(builder, phase, I64).instruction("trunc", U32)
            again = builder.append_basic_block("arrived_again")
            done = builder.append_basic_block("arrived")
            builder.branch(again)
            builder.position_at_end(again)
            values = [arrival.value, parity.value]
            is_done = raw_assembly(builder, _TRY, "=r,r,r,~{memory}", _i32, values, True)
            builder.cbranch(builder.icmp_unsigned("!=", is_done, _i32(0)), done, again)
            builder.position_at_end(done)

        return self.function(name, "slot phase", VOID.numba, emit)

    # -- places: an operand's row as it lies in memory, row after row of the block

    def _runs(self, builder: Any, storage: Storage) -> list[tuple[Scalar, int, Scalar]]:
        """What of the row is the block's: first element, place in the slot, bytes; as u32."""
        tile, size = self.tile, storage.size
        zero = Scalar(builder, _i32(0), U32)
        if tile.cluster == 1:
            return [(zero, 0, zero.constant(tile.row_length * size))]
        part = tile.threads * tile.length
        rank = Scalar(builder, cluster_rank(builder, tile.cluster).value, U32)
        runs = []
        for chunk in range(tile.chunks):
            first = rank * part + chunk * tile.span
            left = tile.row_length - chunk * tile.span
            count = zero.constant(part)
            if left < tile.span:
                there = _smaller(rank * part, zero.constant(max(left, 0)))
                count = _smaller(zero.constant(max(left, 0)) - there, count)
            runs.append((first, chunk * part * size, count * size))
        return runs

    def _in_row(self, builder: Any) -> Scalar:
        """This thread's number among those of its row in this block."""
        thread = Scalar(builder, register(builder, "tid.x").value, U32)
        return thread & (self.tile.threads - 1) if self.tile.rows > 1 else thread

    def _group(self, builder: Any) -> Scalar:
        thread = register(builder, "tid.x").value
        shift = self.tile.threads.bit_length() - 1
        return Scalar(builder, builder.lshr(thread, _i32(shift)), U32)

    def _row_start(
        self, builder: Any, slot: Argument, operand: Argument, storage: Storage
    ) -> Scalar:
        start = self._start(builder, slot, operand)
        if self.tile.rows == 1:
            return start
        tile = self.tile
        return start + self._group(builder) * (
            tile.chunks * tile.threads * tile.length * storage.size
        )

    def _base(self, builder: Any, slot: Argument, operand: Argument, storage: Storage) -> Scalar:
        own = self._in_row(builder) * (self.tile.length * storage.size)
        return self._row_start(builder, slot, operand, storage) + own

    def _place(self, storage: Storage, chunk: int, piece: int) -> int:
        return chunk * self.tile.threads * self.tile.length * storage.size + 16 * piece

    def _barrier_start(self, builder: Any) -> Scalar:
        count = self.slots * self.tile.rows
        array = shared_array(builder.module, _i64, count, "arrivals", is_new=False)
        address = builder.ptrtoint(array, _i64)
        return Scalar(builder, builder.trunc(address, _i32), U32)

    def _barrier(self, builder: Any, slot: Argument) -> Scalar:
        number = number_of(builder, slot, I64).instruction("trunc", U32)
        if self.tile.rows > 1:
            number = number * self.tile.rows + self._group(builder)
        return self._barrier_start(builder) + number * _BARRIER_BYTES


def _smaller(x: Scalar, y: Scalar) -> Scalar:
    builder = x.builder
    smaller = builder.select(builder.icmp_unsigned("<", x.value, y.value), x.value, y.value)
    return Scalar(builder, smaller, x.kind)
