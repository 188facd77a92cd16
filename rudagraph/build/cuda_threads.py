"""Where a thread is, barriers, and values from one thread: what only CUDA's text says."""

from __future__ import annotations

from typing import Any

from rudagraph.build.cpu_emit import I64, VOID
from rudagraph.build.cuda_emit import Intrinsic
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


synchronise = Intrinsic("synchronise", [], _synchronise)
