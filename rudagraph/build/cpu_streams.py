"""Stores of the kernel language that pass by the caches.

Input: a row in scratch and its place in memory. Output: the same bytes there. Invariant: other
threads see them after `finish_streams`, as such stores wait for nothing and nothing for them.
"""

from __future__ import annotations

from llvmlite import ir

from rudagraph.build.cpu_emit import I64, POINTER, VOID, Scalar, exactly, operation, select

_VECTOR = ir.VectorType(ir.IntType(64), 4)
_VECTOR_BYTES = 32
_STEP = 4 * _VECTOR_BYTES
_I64 = ir.IntType(64)


@operation(exactly(VOID, POINTER, I64, POINTER, I64))
def stream(target: Scalar, place: Scalar, source: Scalar, size: Scalar) -> None:
    """Copies `size` bytes to byte `place` of the target, by memcpy where that is not aligned."""
    builder = target.builder
    start = builder.gep(target.value, [place.value], inbounds=True)
    address = Scalar(builder, builder.ptrtoint(start, _I64), I64)
    is_aligned = (address & (_VECTOR_BYTES - 1)).equals(0)
    whole = select(is_aligned, size & -_STEP, 0)

    before = builder.block
    test, body, rest, copy, done = (
        builder.function.append_basic_block(name)
        for name in ("test", "step", "rest", "copy", "done")
    )
    builder.branch(test)
    builder.position_at_end(test)
    position_value = builder.phi(_I64)
    position_value.add_incoming(ir.Constant(_I64, 0), before)
    position = Scalar(builder, position_value, I64)
    builder.cbranch((position < whole).value, body, rest)

    builder.position_at_end(body)
    nontemporal = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
    for part in range(0, _STEP, _VECTOR_BYTES):
        here = (position + part).value
        wide = builder.load(_vector(builder, source.value, here), align=1)
        store = builder.store(wide, _vector(builder, start, here), align=_VECTOR_BYTES)
        store.set_metadata("nontemporal", nontemporal)
    position_value.add_incoming((position + _STEP).value, body)
    builder.branch(test)

    builder.position_at_end(rest)
    left = size - whole
    builder.cbranch((left > 0).value, copy, done)
    builder.position_at_end(copy)
    arguments = [builder.gep(pointer, [whole.value]) for pointer in (start, source.value)]
    memcpy = builder.module.declare_intrinsic(
        "llvm.memcpy", [pointer.type for pointer in arguments] + [_I64]
    )
    builder.call(memcpy, [*arguments, left.value, ir.Constant(ir.IntType(1), 0)])
    builder.branch(done)
    builder.position_at_end(done)


@operation(exactly(VOID, POINTER), small=True)
def finish_streams(target: Scalar) -> None:
    """What was streamed before is in memory for whoever is told after it."""
    target.builder.fence("seq_cst")


def _vector(builder: ir.IRBuilder, pointer: ir.Value, place: ir.Value) -> ir.Value:
    address = builder.gep(pointer, [place], inbounds=True)
    return builder.bitcast(address, _VECTOR.as_pointer())
