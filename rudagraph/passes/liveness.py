"""Which ops the outputs need: the one dead-code rule, shared by passes that leave ops behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rudagraph.ir.graph import Op, Value


def needed_ops(
    ops: Sequence[Op], outputs: Iterable[Value], given: Collection[Value] = ()
) -> tuple[Op, ...]:
    """The ops that `outputs` depend on, in order; `given` values need no op."""
    wanted = set(outputs)
    kept: list[Op] = []
    for op in reversed(ops):
        if any(value in wanted and value not in given for value in op.results):
            kept.append(op)
            wanted.update(op.inputs)
    return tuple(reversed(kept))
