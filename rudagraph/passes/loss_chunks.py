"""Writes one region of linear + cross-entropy as straight-line IR, a few rows at a time.

    %lm_head.chunks.0.x = slice(%x) [axis=0, start=0, stop=256, ...]
    %lm_head.chunks.0.logits = matmul(%lm_head.chunks.0.x, %w)
    %lm_head.chunks.0.loss, ... = cross_entropy(%lm_head.chunks.0.logits, ...) [reduction="sum"]
    %lm_head.chunks.0.dlogits = cross_entropy_backward(1, ..., %divisor)
    %lm_head.chunks.0.dx = matmul(%lm_head.chunks.0.dlogits, %w.t)
    %dw = matmul(transposed dlogits, x), then addmm(%dw, ...) for every further chunk
Input: a builder in which everything the region reads is defined. Output: the loss under its own
name, and for each reader of the logits' gradient what it gives for an upstream gradient of one.
Sums over rows are taken in the compute type whatever the logits are, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast as typed

from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import Attribute, Op, Operand, Value, make_attributes
from rudagraph.ir.infer import infer
from rudagraph.ir.types import DType
from rudagraph.passes.loss_regions import Reader, Region

# Ops between product and loss that rows of a chunk pass unchanged.
_STRUCTURE = frozenset(("reshape", "slice", "pad"))


@dataclass
class ChunkWriter:
    """Emits the chunks of one region, `rows` rows each but for the last."""

    builder: GraphBuilder
    region: Region
    rows: int
    prefix: str = ""
    _shaped: dict[tuple[Value, str], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefix = self.region.product.location.module or "loss"
        self.name = self.prefix
        loss = self.region.loss
        self.total_rows, self.classes = loss.inputs[0].type.shape
        self.target, self.weight = loss.inputs[1], loss.operands[2]
        self.wide = loss.inputs[0].type.dtype.compute
        self._made: list[list[Value]] = [[] for _ in self.region.readers]

    # -- the whole

    def write(self) -> list[Value]:
        """Loss and gradient: what each reader gives where the loss's upstream gradient is one."""
        self._leave()
        divisor = self._divisor()
        one = self.one("one", "full", dtype=self.wide, shape=(), value=1.0)
        losses: list[Value] = []
        for chunk in self._chunks():
            losses.append(chunk.loss())
            if self.region.backward is not None:
                self._read_all(chunk.gradient(one, divisor))
        self._loss(losses, divisor)
        return self._joined_all()

    def write_loss(self) -> Callable[[Value], list[Value]]:
        """The loss alone; and what then writes the gradient, from the logits computed again."""
        self._leave()
        divisor = self._divisor()
        chunks = list(self._chunks())
        self._loss([chunk.loss() for chunk in chunks], divisor)

        def write_gradient(upstream: Value) -> list[Value]:
            for chunk in self._chunks():
                chunk.logsumexp = chunks[chunk.number].logsumexp
                self._read_all(chunk.gradient(upstream, divisor, again=True))
            return self._joined_all()

        return write_gradient

    def _chunks(self) -> Iterator[_Chunk]:
        for number, start in enumerate(range(0, self.total_rows, self.rows)):
            yield _Chunk(self, number, start, min(start + self.rows, self.total_rows))

    def _read_all(self, chunk: _Chunk) -> None:
        for reader, made in zip(self.region.readers, self._made, strict=True):
            self._read(chunk, reader, made)

    def _joined_all(self) -> list[Value]:
        self._leave()
        readers = zip(self.region.readers, self._made, strict=True)
        return [self._joined(reader, made) for reader, made in readers]

    def _leave(self) -> None:
        """What is emitted from here on belongs to all chunks."""
        self.name, self.builder.location = self.prefix, self.region.loss.location

    def _loss(self, losses: list[Value], divisor: Value) -> None:
        """The loss of all rows, under the name it had."""
        loss = self.region.loss
        self._leave()
        total = self._sum(losses, "total")
        if loss["reduction"] == "mean":
            total = self.one("mean", "div", total, divisor)
        result = loss.results[0]
        self.cast(total, result.type.dtype)
        self.builder.ops[-1] = replace(self.builder.ops[-1], results=(result,))

    def _divisor(self) -> Value:
        """What the loss is divided by: from the targets alone, so before any logits."""
        if self.region.loss["reduction"] == "sum":
            return self.one("divisor", "full", dtype=self.wide, shape=(), value=1.0)
        ignored = typed(int, self.region.loss["ignore_index"])
        counted = self.one("counted", "ne", self.target, ignored)
        if not isinstance(self.weight, Value):
            weights = self.one("row_weight", "cast", counted, dtype=self.wide)
        else:
            inside = self.one("target.inside", "where", counted, self.target, 0)
            table = self.one("class_weight", "reshape", self.weight, shape=(self.classes, 1))
            found = self.one("target.weight", "embedding", table, inside)
            found = self.cast(found, self.wide)
            found = self.one("target.weights", "reshape", found, shape=(self.total_rows,))
            weights = self.one("row_weight", "where", counted, found, 0)
        return self.one("divisor", "sum", weights, axes=(0,), keepdim=False)

    # -- readers of the gradient

    def _read(self, chunk: _Chunk, reader: Reader, made: list[Value]) -> None:
        """What one chunk adds to a reader's result."""
        self.builder.location = reader.op.location
        gradient = chunk.values[reader.gradient]
        other = reader.other
        if reader.kind == "sum":
            wide = gradient.type.dtype.compute
            made.append(self.one("dbias", "sum", gradient, axes=(0,), keepdim=False, dtype=wide))
            return
        assert other is not None
        if reader.kind == "rows":
            made.append(self.one("dx", "matmul", gradient, other))
            return
        rows = self.slice(self.rows_of(other, turned=reader.kind == "turned"), chunk)
        rows, gradient = (self.cast(v, v.type.dtype.compute) for v in (rows, gradient))
        left, right = (rows, gradient) if reader.kind == "turned" else (gradient, rows)
        left = self.one(f"{left.name.rpartition('.')[2]}.t", "permute", left, axes=(1, 0))
        opcode = "addmm" if made else "matmul"
        stem = self.prefix if chunk.stop == self.total_rows else self.name
        made[:] = [self.builder.one(opcode, *made, left, right, name=f"{stem}.dweight")]

    def _joined(self, reader: Reader, made: list[Value]) -> Value:
        self.builder.location = reader.op.location
        if reader.kind == "rows":
            value = made[0] if len(made) == 1 else self.one("dx", "concatenate", *made, axis=0)
        else:
            value = self._sum(made, "dbias")
        return self.cast(value, reader.op.result.type.dtype)

    def _sum(self, values: list[Value], name: str) -> Value:
        total = values[0]
        for value in values[1:]:
            total = self.one(name, "add", total, value)
        return total

    # -- emitting

    def one(self, suffix: str, opcode: str, *operands: Operand, **attributes: Attribute) -> Value:
        return self.builder.one(opcode, *operands, name=f"{self.name}.{suffix}", **attributes)

    def many(
        self, names: tuple[str, ...], opcode: str, *operands: Operand, **attributes: Attribute
    ) -> tuple[Value, ...]:
        types = infer(opcode, operands, attributes)
        values = tuple(
            self.builder.fresh(f"{self.name}.{name}", type)
            for name, type in zip(names, types, strict=True)
        )
        canonical = make_attributes(**attributes)
        self.builder.add(Op(opcode, operands, values, canonical, self.builder.location))
        return values

    def cast(self, value: Value, dtype: DType) -> Value:
        if value.type.dtype is dtype:
            return value
        return self.one(f"{value.name.rpartition('.')[2]}.{dtype}", "cast", value, dtype=dtype)

    def slice(self, value: Value, chunk: _Chunk) -> Value:
        """The chunk's rows of a value that has all of the loss's rows, and as much of its name."""
        key = (value, f"{chunk.start}")
        if key not in self._shaped:
            name = "target" if value == self.target else "x"
            self._shaped[key] = self.one(
                name, "slice", value, axis=0, start=chunk.start, stop=chunk.stop, step=1
            )
        return self._shaped[key]

    def rows_of(self, value: Value, *, turned: bool = False) -> Value:
        """The loss's rows of a value that has all rows of the product, in its first axis."""
        key = (value, f"rows {turned}")
        if key not in self._shaped:
            name, self.name = self.name, self.prefix
            if turned:
                value = self.one("x.t", "permute", value, axes=(1, 0))
            self._shaped[key] = self._cut(value)
            self.name = name
        return self._shaped[key]

    def _cut(self, value: Value) -> Value:
        width = value.type.shape[1]
        for cut in self.region.cuts:
            value = self._reshape(value, (*cut.shape, width))
            value = self.one(
                "x.cut", "slice", value, axis=cut.axis, start=cut.start, stop=cut.stop, step=1
            )
        return self._reshape(value, (self.total_rows, width))

    def _reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.type.shape == shape:
            return value
        return self.one("x.rows", "reshape", value, shape=shape)

    def row_free(self, value: Value) -> Value:
        """One row for all, of a rank that chunks have."""
        if value.type.rank <= 2:
            return value
        key = (value, "row")
        if key not in self._shaped:
            shape = (1, value.type.shape[-1])
            self._shaped[key] = self.one("row", "reshape", value, shape=shape)
        return self._shaped[key]


class _Chunk:
    """The region's values for some rows."""

    def __init__(self, writer: ChunkWriter, number: int, start: int, stop: int) -> None:
        self.writer, self.region = writer, writer.region
        self.number, self.start, self.stop = number, start, stop
        self.values: dict[Value, Value] = {}
        self.logsumexp: Value | None = None

    def loss(self) -> Value:
        """The sum of the rows' losses."""
        self._enter()
        logits = self._logits(again=False)
        names = ("loss", "logsumexp", "unused")
        given = (logits, self.target, self.writer.weight)
        total, self.logsumexp, _ = self.writer.many(
            names, "cross_entropy", *given, **self._settings()
        )
        return total

    def gradient(self, upstream: Value, divisor: Value, *, again: bool = False) -> _Chunk:
        """The chunk, with the gradients of its logits; `again` computes the logits themselves."""
        writer, backward = self.writer, self.region.backward
        assert backward is not None
        self._enter()
        logits = self._logits(again=True) if again else self.logits
        writer.builder.location = backward.location
        given = (upstream, logits, self.target, writer.weight, self.logsumexp, divisor)
        slope = writer.one("dlogits", "cross_entropy_backward", *given, **self._settings())
        self.values[backward.result] = writer.cast(slope, backward.result.type.dtype)
        self._replay(self.region.slopes)
        return self

    def _enter(self) -> None:
        """What is emitted from here on bears the chunk's name."""
        self.writer.name = f"{self.writer.prefix}.chunks.{self.number}"
        self.writer.builder.location = self.region.loss.location
        self.target = self.writer.slice(self.writer.target, self)

    def _logits(self, *, again: bool) -> Value:
        """What the loss reads: the product and what follows it, in the type of arithmetic."""
        writer, product = self.writer, self.region.product
        writer.builder.location = product.location
        *bias, x, weight = product.operands
        assert isinstance(x, Value)
        rows = writer.slice(writer.rows_of(x), self)
        given = (*bias, rows, weight)
        once_more = {"again": True} if again else {}
        logits = writer.one("logits", product.opcode, *given, **once_more)
        self.values[product.result] = logits
        self._replay(self.region.forward)
        writer.builder.location = self.region.loss.location
        self.logits = writer.cast(self.values[self.region.loss.inputs[0]], writer.wide)
        return self.logits

    def _settings(self) -> dict[str, Attribute]:
        return {**dict(self.region.loss.attributes), "reduction": "sum"}

    def _replay(self, ops: list[Op]) -> None:
        """The ops on this chunk's rows; what only shapes rows passes them on."""
        for op in ops:
            if op.opcode in _STRUCTURE:
                self.values[op.result] = self.values[op.inputs[0]]
                continue
            self.writer.builder.location = op.location
            operands = tuple(
                self.values.get(operand) or self.writer.row_free(operand)
                if isinstance(operand, Value)
                else operand
                for operand in op.operands
            )
            name = op.result.name.rpartition(".")[2]
            self.values[op.result] = self.writer.one(
                name, op.opcode, *operands, **dict(op.attributes)
            )
