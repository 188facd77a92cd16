"""Linear + cross-entropy a few rows at a time: the logits are never there as a whole.

    %logits = matmul(%x, %w)                      for each chunk of rows (see loss_chunks.py):
    %loss = cross_entropy(%logits, %target)           its logits, its loss, its logits' gradient,
    %g = cross_entropy_backward(%tangent, ...)        its part of dx, its addition to dw
    %dx = matmul(%g, %w.t)                        %loss = div(add(...), %divisor)
    %dw = matmul(permute(%g), %x)                 %dx = mul(%dx.unit, %tangent)
                                                  %dw = mul(%dw.unit, %tangent)
                                                  output residual "dx.unit" = %dx.unit ...
The gradient is made in forward, where the logits are, for an upstream gradient of one; backward
multiplies by the true one, in the compute type. The joint graph says so by outputs of role
residual: the cut puts what they need into forward and saves them. The gradient of f16 logits
underflows without the loss scale, which only backward knows: it is made there, in chunks as well,
from logits that are computed again.

Chunks depend on shapes alone, so bits do not depend on a budget. A region is left alone where
chunks, or what is saved instead of the logits, would not be smaller than they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Graph, Op, Role, Value
from rudagraph.ir.types import DType
from rudagraph.passes.loss_chunks import ChunkWriter
from rudagraph.passes.loss_regions import Cut, Reader, Region, find_regions


@dataclass(frozen=True)
class Chunking:
    """How many rows a chunk has: `bytes` of logits as the loss computes them, within bounds.

    count = ceil(rows / max(least, bytes / row)), at most `most`; each chunk ceil(rows / count).
    Measured on 2 cores, 1024 rows of width 256, forward and backward against whole logits: of 4096
    classes, 2 chunks (8 MiB) take 2 % longer, 4 chunks 8 %; of 32000, 4 chunks (31 MiB) nothing, 8
    chunks 13 %. Eager takes 17 % and 58 % longer.
    """

    bytes: int = 8 << 20
    least: int = 256
    most: int = 16

    def rows(self, rows: int, classes: int, dtype: DType) -> int:
        fitting = max(self.bytes // max(classes * dtype.compute.size, 1), self.least, 1)
        count = min(math.ceil(rows / fitting), self.most)
        return math.ceil(rows / max(count, 1))


CHUNKING = Chunking()
# On an H200 adding to a weight gradient in f32 costs a pass over it for each chunk, 0.5 ms of 2.4
# at 128256 x 2048: sixteen chunks of the 8192 rows of a step of 115 ms cost 8 ms and saved 0.4 GiB.
GPU_CHUNKING = Chunking(bytes=1 << 30, least=1024)


def linear_cross_entropy(graph: Graph, chunking: Chunking | None = None) -> Graph:
    """The graph with its losses over large vocabularies in chunks."""
    chunking = chunking or CHUNKING
    regions = [region for region in find_regions(graph) if _pays(region, chunking)]
    if not regions:
        return graph
    writer = _Writer(graph, regions, chunking)
    for op in graph.ops:
        writer.visit(op)
    return writer.builder.finish()


def _pays(region: Region, chunking: Chunking) -> bool:
    """Whether the step is smaller with chunks: where the gradient is made, and after forward."""
    rows, classes = region.loss.inputs[0].type.shape
    logits = region.product.result.type
    each = chunking.rows(rows, classes, logits.dtype)
    if logits.numel == 0 or each >= rows:
        return False
    results = sum(reader.op.result.type.bytes for reader in region.readers)
    working = each * classes * logits.dtype.size
    sums = [reader.op for reader in region.readers if reader.kind in ("columns", "turned")]
    if sums and logits.dtype.compute is not logits.dtype:
        # Products that sum over rows are made in the compute type, from operands in it.
        elements = each * classes + sum(op.result.type.numel for op in sums)
        working += elements * logits.dtype.compute.size
    # Without chunks the results are made while the logits are there, and saved are the logits.
    saved = 0 if _underflows(region) else results
    return working < logits.bytes and saved < logits.bytes


def _underflows(region: Region) -> bool:
    """Whether some gradient between loss and product is f16: made by the true factor only."""
    return any(value.type.dtype is DType.F16 for value in region.paths)


class _Writer:
    """Copies the graph; chunks come where a loss was, factors where its gradient was read."""

    def __init__(self, graph: Graph, regions: list[Region], chunking: Chunking) -> None:
        self.chunking = chunking
        self.builder = GraphBuilder(graph.name, list(graph.inputs), [], list(graph.outputs))
        self.builder.reserve(value.name for value in graph.values())
        self.producers = graph.producers()
        self.done = {port.value for port in graph.inputs}
        self.starts = {id(region.loss): region for region in regions}
        self.inside = {id(op) for region in regions for op in region.ops}
        self.later: dict[int, tuple[Region, Callable[[Value], list[Value]]]] = {}
        self.ends: dict[int, tuple[Region, Reader, Value]] = {}

    def visit(self, op: Op) -> None:
        if id(op) in self.starts:
            self._chunks(self.starts[id(op)])
        elif id(op) in self.later:
            self._gradient(*self.later[id(op)])
        elif op.results[0] in self.done:
            return
        elif id(op) in self.ends:
            self._end(*self.ends[id(op)])
        elif id(op) not in self.inside:
            self._add(op)

    def _add(self, op: Op) -> None:
        self.builder.add(op)
        self.done.update(op.results)

    def _chunks(self, region: Region) -> None:
        made = {value for op in region.ops for value in op.results}
        read = [op for op in region.ops if op is not region.backward]
        self._define(value for op in read for value in op.inputs if value not in made)
        rows, classes = region.loss.inputs[0].type.shape
        each = self.chunking.rows(rows, classes, region.product.result.type.dtype)
        writer = ChunkWriter(self.builder, region, each)
        self.done.add(region.loss.results[0])
        if region.backward is not None and _underflows(region):
            self.later[id(region.backward)] = (region, writer.write_loss())
            return
        for reader, value in zip(region.readers, writer.write(), strict=True):
            self.ends[id(reader.op)] = (region, reader, value)
            self.builder.output(value, Role.RESIDUAL, value.name)

    def _gradient(self, region: Region, write_gradient: Callable[[Value], list[Value]]) -> None:
        """The gradient in backward, by the true upstream gradient."""
        assert region.backward is not None
        self._define(reader.other for reader in region.readers if reader.other is not None)
        values = write_gradient(region.backward.inputs[0])
        for reader, value in zip(region.readers, values, strict=True):
            self._end(region, reader, value)

    def _define(self, values: Iterable[Value]) -> None:
        """Bring forward what chunks read and the graph defines later."""
        stack = [value for value in values if value not in self.done]
        while stack:
            value = stack[-1]
            op = self.producers[value]
            missing = [operand for operand in op.inputs if operand not in self.done]
            stack += missing
            if missing:
                continue
            stack.pop()
            if value not in self.done:
                self._add(op)

    def _end(self, region: Region, reader: Reader, value: Value) -> None:
        """The reader's own result: what chunks gave, times the upstream gradient if need be."""
        assert region.backward is not None
        factor, result = region.backward.inputs[0], reader.op.result
        self.builder.location = reader.op.location
        if not _underflows(region):
            wide = result.type.dtype.compute
            operands = (self._cast(value, wide), self._cast(factor, wide))
            value = self.builder.one("mul", *operands, name=f"{result.name}.scaled")
        value = self._cast(value, result.type.dtype)
        for cut in reversed(region.cuts if reader.kind == "rows" else ()):
            value = self._uncut(value, cut)
        self._rename(self._reshape(value, result.type.shape), result)

    def _rename(self, value: Value, result: Value) -> None:
        """Let the op that gives `value`, which nobody reads, give `result`."""
        ops = self.builder.ops
        at = next(at for at in reversed(range(len(ops))) if ops[at].results == (value,))
        ops[at] = replace(ops[at], results=(result,))
        self.done.add(result)

    def _uncut(self, value: Value, cut: Cut) -> Value:
        """Zeros for the rows that were dropped."""
        width = value.type.shape[1]
        low = [0] * (len(cut.shape) + 1)
        high = list(low)
        low[cut.axis], high[cut.axis] = cut.start, cut.shape[cut.axis] - cut.stop
        shape = [*cut.shape, width]
        shape[cut.axis] = cut.stop - cut.start
        value = self._reshape(value, tuple(shape))
        value = self.builder.one(
            "pad", value, name=f"{value.name}.padded", low=tuple(low), high=tuple(high), value=0
        )
        return self._reshape(value, (math.prod(cut.shape), width))

    def _reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.type.shape == shape:
            return value
        return self.builder.one("reshape", value, name=f"{value.name}.shaped", shape=shape)

    def _cast(self, value: Value, dtype: DType) -> Value:
        if value.type.dtype is dtype:
            return value
        return self.builder.one("cast", value, name=f"{value.name}.{dtype}", dtype=dtype)
