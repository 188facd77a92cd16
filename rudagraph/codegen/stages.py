"""A fused body cut into passes over a row: what each computes, loads again, keeps and stores.

A row reduction is complete only after a pass over the row, so its users wait for the next:

    pass 0   h = x + r, stored; sum of h         mean = sum / N           (between: once per row)
    pass 1   h again; sum of (h - mean)²         rstd = rsqrt(…)
    pass 2   h again; y = (h - mean) * rstd, stored

Where asked, a chain of two dear functions (GELU, then an exponential) is cut into two passes too.
A value that a later pass needs is loaded again (an operand, or a result stored before), computed
again where that is cheap, or kept in a scratch row. Invariant: every value keeps its exact bits
whichever way it comes, so the choice is one of time alone.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from rudagraph.codegen import expressions
from rudagraph.codegen.domain import (
    Nest,
    is_fold,
    is_sum,
    result_access,
    sum_access,
    sum_starts,
)
from rudagraph.errors import UnsupportedError
from rudagraph.ir.graph import Graph, Op, Value
from rudagraph.ir.ops import Tag, has

# Costs in units of one vector addition (0.02 ns per element and thread, Zen 4, rows in L1). Keeping
# a value is a store and a load, 0.06 ns; a value loaded again costs one load, and the conversion
# where it has 16 bits. So x - mean is computed again, exp, erf and quotients are kept.
LOAD = 1.0
LOAD_16 = 2.0
KEEP = 3.5
# Scratch rows that leave L2 (1 MiB on the machine measured) cost what memory costs, 0.5 ns.
KEEP_FAR = 25.0
NEAR_BYTES = 512 * 1024
# An op from which on a chain is long: exp, erf, GELU. Two of them after each other outlast the
# core's window, so that it waits instead of working (a block's backward takes a fifth longer).
DEAR = 15.0
# From here on a row's sum waits for the next pass: in its own it would allow two vectors at a time
# where four hide the latency (a block's forward takes a tenth less, with an exponential more).
DEAREST = 25.0


class Place(enum.IntEnum):
    """How often a value is computed."""

    ONCE = 0  # before the rows
    ROW = 1  # once per row
    ELEMENT = 2  # for each element of a row


class Source(enum.Enum):
    """Where a pass has an element's value from."""

    OPERAND = "operand"
    STORED = "stored"
    KEPT = "kept"
    WORDS = "words"
    COMPUTED = "computed"


@dataclass
class Pass:
    """One pass over a row. Lists of ops are in the body's order."""

    row_ops: list[Op] = field(default_factory=list)
    fills: list[Op] = field(default_factory=list)  # random words drawn before the pass
    sources: dict[Value, Source] = field(default_factory=dict)  # element values the pass uses
    folds: list[Op] = field(default_factory=list)  # row reductions
    sums: list[int] = field(default_factory=list)  # results summed element by element
    row_sums: list[int] = field(default_factory=list)  # results summed row by row
    stores: list[int] = field(default_factory=list)
    row_stores: list[int] = field(default_factory=list)
    keeps: list[Value] = field(default_factory=list)

    @property
    def has_loop(self) -> bool:
        return bool(self.sources or self.folds or self.sums or self.stores)


class Stages:
    """The passes of a body over a nest."""

    # A second dear op begins a pass of its own.
    cuts_chains = False

    def __init__(self, body: Graph, nest: Nest) -> None:
        self.body = body
        self.nest = nest
        self.results = tuple(port.value for port in body.outputs)
        self.producer = body.producers()
        self.place: dict[Value, Place] = {}
        self.stage: dict[Value, int] = {}
        self.once_ops: list[Op] = []
        self._needed: set[Value] = set()
        self._first: dict[Value, int] = {}
        self._kept: set[Value] = set()
        self._cuts: list[tuple[Op, int]] = []  # ops that begin a pass, and which
        self._locate(self.cuts_chains and any(is_fold(op) for op in body.ops))
        self._check_sums()
        last = max([self._store_stage(index) for index in range(len(self.results))], default=0)
        self.passes = [Pass() for _ in range(last + 1)]
        self._fill_passes()

    # -- places and stages

    def _locate(self, cuts_chains: bool) -> None:
        varies: dict[Value, tuple[bool, bool]] = {}
        after_dear: set[Value] = set()  # of the same stage, as the next
        after_dearest: set[Value] = set()
        starts = sum_starts(self.body) if cuts_chains else set()
        for port in self.body.inputs:
            varies[port.value] = self._variation(port.value.name)
            self.stage[port.value] = 0
        for op in self.body.ops:
            if is_sum(op):
                continue
            given = [varies[value] for value in op.inputs]
            outer, inner = any(pair[0] for pair in given), any(pair[1] for pair in given)
            stage = max((self.stage[value] for value in op.inputs), default=0)
            dearest = any(v in after_dearest and self.stage[v] == stage for v in op.inputs)
            if op.result in starts and dearest:
                stage, dearest = stage + 1, False
                self._cuts.append((op, stage))
            if is_fold(op):
                outer, inner, stage = True, False, stage + 1
            elif op.result.name in self.nest.strides:
                outer, inner = self._variation(op.result.name)
                outer |= has(op, Tag.RANDOM)
            if cuts_chains and inner:
                late = any(v in after_dear and self.stage[v] == stage for v in op.inputs)
                is_dear = expressions.cost(op) >= DEAR
                if is_dear and late:
                    stage, dearest = stage + 1, False
                    self._cuts.append((op, stage))
                if is_dear or late:
                    after_dear.add(op.result)
                if dearest or expressions.cost(op) >= DEAREST:
                    after_dearest.add(op.result)
            varies[op.result] = (outer, inner)
            self.stage[op.result] = stage
        for value, (outer, inner) in varies.items():
            self.place[value] = Place.ELEMENT if inner else Place.ROW if outer else Place.ONCE

    def _variation(self, access: str) -> tuple[bool, bool]:
        return any(self.nest.outer_strides(access)), self.nest.inner_stride(access) != 0

    def in_memory(self) -> list[tuple[str, Value]]:
        """Accesses of operands and results, with what lies there; a sum's place is another's."""
        accesses = [(port.value.name, port.value) for port in self.body.inputs]
        accesses += [
            (result_access(index), value)
            for index, value in enumerate(self.results)
            if self.sum_op(index) is None
        ]
        return accesses

    def sum_op(self, index: int) -> Op | None:
        """The sum over rows that gives result `index`, if one does."""
        op = self.producer.get(self.results[index])
        return op if op is not None and is_sum(op) else None

    def is_column(self, index: int) -> bool:
        """Whether sum `index` has a number for each element of the row; others are one number."""
        return self.nest.inner_stride(result_access(index)) != 0

    def _check_sums(self) -> None:
        """A sum counts each of its elements once, so it must step along all rows."""
        for index, value in enumerate(self.results):
            op = self.sum_op(index)
            if op is not None and 0 in self.nest.outer_strides(sum_access(index)):
                raise UnsupportedError(
                    f"{op.opcode} of {op.inputs[0].type} inside a body of more rows",
                    f"%{value.name}",
                )

    def _store_stage(self, index: int) -> int:
        op = self.sum_op(index)
        return self.stage[self.results[index] if op is None else op.inputs[0]]

    # -- passes

    def _fill_passes(self) -> None:
        for at in range(len(self.passes)):
            self._gather_roots(at)
        for at, current in enumerate(self.passes):
            order = {op.result: index for index, op in enumerate(self.body.ops)}
            current.row_ops.sort(key=lambda op: order[op.result])
            current.keeps = [v for v in self._kept if self._first[v] == at]
            current.keeps.sort(key=lambda value: order[value])
        self.once_ops = [
            op
            for op in self.body.ops
            if op.result in self._needed and self.place[op.result] is Place.ONCE
        ]

    def _gather_roots(self, at: int) -> None:
        current = self.passes[at]
        for index, result in enumerate(self.results):
            if self._store_stage(index) != at:
                continue
            op = self.sum_op(index)
            if op is not None:
                in_loop = self.nest.inner_stride(sum_access(index)) != 0
                (current.sums if in_loop else current.row_sums).append(index)
                self._require(op.inputs[0], at)
                continue
            in_loop = self.nest.inner_stride(result_access(index)) != 0
            (current.stores if in_loop else current.row_stores).append(index)
            self._require(result, at)
        for op in self.body.ops:
            if is_fold(op) and self.stage[op.result] == at + 1 and self._is_used(op.result):
                current.folds.append(op)
                self._require_fold(op, at)
        for op, begun in self._cuts:
            for operand in op.inputs if begun == at + 1 else ():
                if self.stage[operand] == at and operand in self.producer:
                    self._require(operand, at)

    def _require_fold(self, op: Op, at: int) -> None:
        """Make available what a row reduction is made of."""
        self._require(op.inputs[0], at)

    def _is_used(self, value: Value) -> bool:
        """Whether a result depends on the value; bodies have no dead ops after the passes."""
        return value in self.results or any(value in op.inputs for op in self.body.ops)

    def _require(self, value: Value, at: int) -> None:
        """Make the value available in pass `at`."""
        if self.place[value] is not Place.ELEMENT:
            self._require_row(value, at)
            return
        current = self.passes[at]
        if value in current.sources:
            return
        source = self._source(value, at)
        if source is Source.COMPUTED:
            op = self.producer[value]
            for operand in op.inputs:
                self._require(operand, at)
            self._first.setdefault(value, at)
        elif source is Source.WORDS:
            op = self.producer[value]
            self._require(op.inputs[0], at)
            if not any(op in earlier.fills for earlier in self.passes):
                current.fills.append(op)
        elif source is Source.KEPT:
            self._kept.add(value)
        current.sources[value] = source

    def _require_row(self, value: Value, at: int) -> None:
        op = self.producer.get(value)
        if value in self._needed:
            return
        self._needed.add(value)
        if op is None or is_fold(op):
            return
        for operand in op.inputs:
            self._require_row(operand, at)
        if self.place[value] is Place.ROW:
            self.passes[at].row_ops.append(op)

    def _source(self, value: Value, at: int) -> Source:
        op = self.producer.get(value)
        if op is None:
            return Source.OPERAND
        if has(op, Tag.RANDOM):
            return Source.WORDS
        if self._first.get(value, at) == at:
            return Source.COMPUTED
        if value in self.results and self.stage[value] < at:
            return Source.STORED
        if value in self._kept:
            return Source.KEPT
        again = self._cost_again(value, at, set())
        return Source.KEPT if again > self._keep_cost() else Source.COMPUTED

    def _cost_again(self, value: Value, at: int, seen: set[Value]) -> float:
        """Of computing the value in pass `at` once more, from what the pass has or can load."""
        if self.place[value] is not Place.ELEMENT or value in seen:
            return 0.0
        seen.add(value)
        if value in self.passes[at].sources:
            return 0.0
        op = self.producer.get(value)
        is_stored = value in self.results and self.stage[value] < at
        if op is None or is_stored or value in self._kept or has(op, Tag.RANDOM):
            return LOAD_16 if value.type.dtype in expressions.ROUNDED else LOAD
        cost = expressions.cost(op)
        return cost + sum(self._cost_again(operand, at, seen) for operand in op.inputs)

    def _keep_cost(self) -> float:
        near = (len(self._kept) + 1) * 4 * self.nest.inner <= NEAR_BYTES
        return KEEP if near else KEEP_FAR

    # -- queries

    def body_values(self) -> list[Value]:
        """Operands, then what ops compute."""
        operands = [port.value for port in self.body.inputs]
        return operands + [op.result for op in self.body.ops]

    def kept(self) -> list[Value]:
        """Values with a scratch row, in order of the pass that fills it."""
        return [value for current in self.passes for value in current.keeps]

    def scratch_bytes(self) -> int:
        """What a row needs for kept values and random words."""
        kept = sum(value.type.dtype.compute.size for value in self.kept())
        words = sum(4 for current in self.passes for op in current.fills)
        return self.nest.inner * (kept + words)

    def last_read(self, value: Value) -> int:
        """The last pass that loads an element operand from its own memory."""
        reads = [
            at
            for at, current in enumerate(self.passes)
            if current.sources.get(value) is Source.OPERAND
        ]
        return max(reads, default=-1)

    def element_cost(self) -> float:
        """Rough cost of one element over all passes, in additions."""
        total = 0.0
        for current in self.passes:
            for value, source in current.sources.items():
                computed = source is Source.COMPUTED
                total += expressions.cost(self.producer[value]) if computed else LOAD
            total += 8.0 * len(current.fills)
            total += 2.0 * (len(current.sums) + len(current.stores) + len(current.folds))
        return total
