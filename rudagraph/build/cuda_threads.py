"""Where a thread is, barriers, and values from one thread: what only CUDA's text says."""

from __future__ import annotations

from typing import Any

from rudagraph.build.cpu_emit import I64, U32, VOID
from rudagraph.build.cuda_emit import Intrinsic, raw_assembly
from rudagraph.build.cuda_reduce import barrier, register


def _position(name: str, special: str) -> Intrinsic:
    def lower() -> Any:
        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return register(builder, special).instruction("zext", I64).value

        return I64.numba(), emit

    return Intrinsic(name, [], lower)


thread_index = _position("thread_index", "tid.x")
block_index = _position("block_index", "ctaid.x")
block_count = _position("block_count", "nctaid.x")


def _synchronise() -> Any:
    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        barrier(builder)
        return context.get_dummy_value()

    return VOID.numba(), emit


def _wait_for_previous() -> Any:
    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        # First the next kernel's blocks may come, as this one's leave; then wait for the one
        # before: its end includes the end of all before it, since every kernel waits.
        for text in ("griddepcontrol.launch_dependents;", "griddepcontrol.wait;"):
            raw_assembly(builder, text, "~{memory}", VOID.llvm, [], True)
        return context.get_dummy_value()

    return VOID.numba(), emit


def _sleep(nanoseconds: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = builder.trunc(values[0], U32.llvm)
        raw_assembly(builder, "nanosleep.u32 $0;", "r,~{memory}", VOID.llvm, [word], True)
        return context.get_dummy_value()

    return VOID.numba(I64.numba), emit


sleep = Intrinsic("sleep", ["nanoseconds"], _sleep)
wait_for_previous = Intrinsic("wait_for_previous", [], _wait_for_previous)
synchronise = Intrinsic("synchronise", [], _synchronise)
