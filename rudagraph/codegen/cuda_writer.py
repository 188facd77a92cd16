"""What all CUDA loop shapes share: pointers, registers by value, ops as lines over tiles.

Input: the stages of a body. Output: lines; where a thread is, is the loop shape's business. A value
that steps along the row is a tile, any other a number: the functions of the language take both.
Invariant: all loads of an element come before its stores in the same thread, so a result may take
an operand's place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rudagraph.codegen.cuda_picks import is_index
from rudagraph.codegen.domain import is_fold, result_access
from rudagraph.codegen.expressions import (
    RESERVED,
    ROUNDED,
    accumulator_dtype,
    convert,
    literal,
    rounded,
)
from rudagraph.codegen.indexing import Indexing
from rudagraph.codegen.scalars import finished, folds_exactly, int_of, needs_rounding, register_text
from rudagraph.codegen.source import WAIT, Lines, Names, Parameters
from rudagraph.codegen.stages import Pass, Place, Source, Stages
from rudagraph.ir.graph import Graph, Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.types import DType
from rudagraph.schedule.lowered import KernelArgument

CUDA_PREAMBLE = "from rudagraph.build.cuda_language import *"
CUDA_RESERVED = RESERVED | frozenset(
    "tile vector ring block Tile Vector Ring Block thread_index block_index block_count synchronise"
    " sleep BulkRing random_u16 random_u32 kernel last exp_coarse reciprocal_coarse"
    " report_index".split()
)
# Types of which LLVM would keep the wide form alive between passes: see cuda_memory.unpack_words.
_PACKED = (*ROUNDED, DType.I8, DType.U8, DType.B8, DType.I16)
# Ops that magnify no relative error by more than the sums around them do.
_LINEAR = frozenset("cast mul div sub add multiply_add where neg".split())
FOLD_NAMES = {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min"}


class Coarse:
    """Which f32 values only ever reach 16-bit memory, or a sum: they need not be good to an ulp."""

    def __init__(self, body: Graph) -> None:
        self._users = body.users()
        self._outputs = body.output_values()
        self._known: dict[Value, bool] = {}

    def is_coarse(self, value: Value) -> bool:
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: Value) -> bool:
        if value.type.dtype in ROUNDED:
            return True
        if value.type.dtype is not DType.F32 or value in self._outputs:
            return False
        return all(self._is_coarse_use(user) for user in self._users[value])

    def _is_coarse_use(self, user: Op) -> bool:
        if user.opcode == "sum":
            return True
        return user.opcode in _LINEAR and self.is_coarse(user.result)


def _finished(op: Op, total: str) -> str:
    """A mean is a product with a reciprocal, as PyTorch's is on a GPU: all threads of a row divide,
    and a division takes ten instructions and a branch."""
    count = op.inputs[0].type.numel // max(op.result.type.numel, 1)
    dtype = accumulator_dtype(op)
    if op.opcode != "mean" or not count or not dtype.is_floating:
        return finished(op, total)
    text = f"mul({total}, {literal(1 / count, dtype)})"
    return convert(text, dtype, op.result.type.dtype)


@dataclass
class Writer:
    """Writes the lines of one kernel; `lanes` names the tile or vector that the text works with."""

    stages: Stages
    lanes: str
    lines: Lines = field(default_factory=lambda: Lines(depth=1))
    names: Names = field(default_factory=lambda: Names(CUDA_RESERVED))
    parameters: Parameters = field(default_factory=Parameters)
    # Blocks that come while the kernel before still runs; 0 on targets where none do.
    early_blocks: int = 0

    def __post_init__(self) -> None:
        self.nest = self.stages.nest
        self.register: dict[Value, str] = {}
        self.words: dict[Value, str] = {}  # packed elements held for later passes
        self.pointer: dict[str, str] = {}  # by access
        self.index: Indexing
        self.checks: list[Op] = []  # one error flag each
        self.coarse = Coarse(self.stages.body)
        self._loaded: set[Value] = set()  # operands once and per row

    def wait(self, blocks: int, asked: list[str]) -> None:
        """Ask for what is read first to come to L2, then wait for the kernel before.

        What that one still writes is not read so early: L2 is where all see the same.
        """
        if not self.early_blocks:
            return
        if blocks <= self.early_blocks:
            self.lines.add(*asked)
        elif asked:
            with self.lines.block(f"if block_index() < {self.early_blocks}:"):
                self.lines.add(*asked)
        self.lines.add(WAIT)

    # -- pointers

    def declare_operands(self) -> None:
        used = {value for op in self.stages.body.ops for value in op.inputs}
        used |= set(self.stages.results)
        for index, port in enumerate(self.stages.body.inputs):
            if port.value in used:
                name = self.names.fresh(f"{port.value.name}_pointer")
                argument = KernelArgument("operand", index)
                self.pointer[port.value.name] = self.parameters.add(name, argument, written=False)

    def declare_results(self, left_out: Iterable[int] = ()) -> None:
        """Pointers of the results that this kernel stores."""
        for index, value in enumerate(self.stages.results):
            if index in left_out:
                continue
            name = self.names.fresh(f"{value.name}_pointer")
            argument = KernelArgument("result", index)
            self.pointer[result_access(index)] = self.parameters.add(name, argument, written=True)

    def accesses(self) -> list[str]:
        """Everything whose place depends on the row."""
        counted = [
            op.result.name
            for op in self.stages.body.ops
            if op.opcode == "iota" or has(op, Tag.RANDOM)
        ]
        return [*self.pointer, *counted]

    # -- once per thread and per row

    def once(self) -> None:
        """Values that no row changes."""
        self.need([port.value for port in self.stages.body.inputs], Place.ONCE)
        for op in self.stages.once_ops:
            self.compute(op)

    def between(self, current: Pass) -> None:
        """What is computed and stored once per row, before a pass."""
        for op in current.row_ops:
            self.need(op.inputs)
            self.compute(op)
        for index in current.row_stores:
            self.store_row(index)

    def store_row(self, index: int) -> None:
        """Store a result that has one element a row; the loop shape says which thread does."""
        raise NotImplementedError

    def need(self, values: Iterable[Value], place: Place = Place.ROW) -> None:
        """Load the operands among the values that are read once per row (or once)."""
        for value in values:
            is_operand = value.name in self.pointer
            if is_operand and value not in self._loaded and self.is_at(value, place):
                self._loaded.add(value)
                at = self.index.at(value.name)
                self.assign(value, f"load_{value.type.dtype}({self.pointer[value.name]}, {at})")

    def forget_row(self) -> None:
        """Before the next row: its operands are loaded anew."""
        self._loaded = {value for value in self._loaded if self.is_at(value, Place.ONCE)}

    def need_before(self, current: Pass) -> None:
        """Everything read once per row that a pass uses."""
        for value, source in current.sources.items():
            if source is Source.COMPUTED:
                self.need(self.stages.producer[value].inputs)
        for op in (*current.folds, *(self.sum_op(index) for index in current.sums)):
            self.need(op.inputs)
        self.need(self.stages.results[index] for index in current.stores)

    # -- one pass over elements

    def elements(self, current: Pass) -> None:
        """All element values of a pass, each after its operands."""
        for value in self.ordered(current):
            source = current.sources[value]
            if source is Source.COMPUTED or (source is Source.WORDS and value not in self.register):
                self.compute(self.stages.producer[value], self._only_stored(value, current))
            elif source is Source.OPERAND:
                self.take_operand(value)
            elif source is Source.STORED:
                self.take_stored(value)

    def take_operand(self, value: Value) -> None:
        """An element operand as a tile."""
        self.assign(value, self.load_text(value.name, value.type.dtype))

    def take_stored(self, value: Value) -> None:
        """A result stored in a pass before: registers hold it still."""

    def ordered(self, current: Pass) -> list[Value]:
        """Values of the pass, each after its operands."""
        done: dict[Value, None] = {}

        def visit(value: Value) -> None:
            if value in done or value not in current.sources:
                return
            if current.sources[value] is Source.COMPUTED:
                for operand in self.stages.producer[value].inputs:
                    visit(operand)
            done[value] = None

        for op in self.stages.body.ops:
            visit(op.result)
        for port in self.stages.body.inputs:
            visit(port.value)
        return list(done)

    def store_elements(self, current: Pass) -> None:
        for index in current.stores:
            value, access = self.stages.results[index], result_access(index)
            self.lines.add(self.store_text(access, value))

    def load_text(self, access: str, dtype: DType) -> str:
        """A tile from memory; the step along the row is not 0."""
        step = self.nest.inner_stride(access)
        pointer, at = self.pointer[access], self.offset(access)
        if step == 1:
            return f"{self.lanes}.load_{dtype}({pointer}, {at})"
        return f"{self.lanes}.load_strided_{dtype}({pointer}, {at}, {step})"

    def store_text(self, access: str, value: Value) -> str:
        step = self.nest.inner_stride(access)
        pointer, at, dtype = self.pointer[access], self.offset(access), value.type.dtype
        if step == 1:
            return f"{self.lanes}.store_{dtype}({pointer}, {at}, {self.register[value]})"
        return (
            f"{self.lanes}.store_strided_{dtype}({pointer}, {at}, {step}, {self.register[value]})"
        )

    def offset(self, access: str) -> str:
        """Index of the element from which a tile's own places count."""
        return self.index.base(access)

    # -- reductions

    def fold_elements(self, ops: list[Op], in_turn: str = "") -> None:
        """Row reductions of one pass: those alike share a barrier."""
        groups: dict[tuple[str, DType], list[Op]] = {}
        for op in ops:
            groups.setdefault((FOLD_NAMES[op.opcode], accumulator_dtype(op)), []).append(op)
        for (name, _), members in groups.items():
            tiles = [self.folded_tile(op) for op in members]
            totals = [self.names.fresh(f"{op.result.name}_total") for op in members]
            function = f"{self.lanes}.{name}" + ("_in_turn" if in_turn else "")
            function += f"_{len(members)}" if len(members) > 1 else ""
            arguments = ", ".join([in_turn] * bool(in_turn) + tiles)
            self.lines.add(f"{', '.join(totals)} = {function}({arguments})")
            for op, total in zip(members, totals, strict=True):
                self.finish_fold(op, total)

    def finish_fold(self, op: Op, total: str) -> None:
        text = _finished(op, total)
        self.assign(op.result, text if folds_exactly(op) else rounded(text, op.result.type.dtype))

    def folded_tile(self, op: Op) -> str:
        """The operand of a reduction in its accumulator's type."""
        operand = op.inputs[0]
        return convert(self.register[operand], operand.type.dtype, accumulator_dtype(op))

    def within_text(self, op: Op) -> str:
        """The fold of this thread's elements."""
        return f"{self.lanes}.within_{FOLD_NAMES[op.opcode]}({self.folded_tile(op)})"

    def sum_op(self, index: int) -> Op:
        op = self.stages.sum_op(index)
        assert op is not None, f"result {index} is no sum"
        return op

    # -- registers

    def is_at(self, value: Value, place: Place) -> bool:
        return self.stages.place.get(value) is place

    def assign(self, value: Value, text: str) -> None:
        if value not in self.register:
            self.register[value] = self.names.fresh(value.name)
        if text != self.register[value]:
            self.lines.add(f"{self.register[value]} = {text}")

    def compute(self, op: Op, only_stored: bool = False) -> None:
        """One op; what is only stored is rounded by its store."""
        place = ""
        if op.opcode == "iota":
            place = self.positions(op.result)
        elif has(op, Tag.RANDOM):
            place = self.random_words(op)
        names = [self.register[value] for value in op.inputs]
        text = self._special(op) or register_text(op, names, place)
        if op.opcode == "check_index":
            self._check(op, text)
        if needs_rounding(op) and not only_stored:
            text = rounded(text, op.result.type.dtype)
        self.assign(op.result, text)

    def _special(self, op: Op) -> str:
        """Forms that cost less where the result allows it; empty where there is none."""
        if op.opcode == "exp" and self.coarse.is_coarse(op.result):
            return f"exp_coarse({self.register[op.inputs[0]]})"
        if op.opcode == "div" and len(op.inputs) == 2 and self._divides_softly(*op.inputs):
            top, bottom = (self.register[value] for value in op.inputs)
            function = "reciprocal_coarse" if self.coarse.is_coarse(op.result) else "reciprocal"
            return f"mul({top}, {function}({bottom}))"
        if op.opcode == "eq" and len(op.inputs) == 2 and self.is_at(op.result, Place.ELEMENT):
            return self._position_test(*op.inputs)
        return ""

    def _divides_softly(self, top: Value, bottom: Value) -> bool:
        """Whether a quotient is a softmax's: one reciprocal a row is a rounding more, and cheap.

        The order of the sum below has moved the quotient by as much already.
        """
        total, exponential = self.stages.producer.get(bottom), self.stages.producer.get(top)
        if total is None or exponential is None or total.opcode != "sum":
            return False
        return is_fold(total) and exponential.opcode == "exp" and total.inputs[0] == top

    def _position_test(self, first: Value, second: Value) -> str:
        """A comparison of each element's index with one number a row."""
        for counted, wanted in ((first, second), (second, first)):
            if not is_index(self.stages, counted) or self.is_at(wanted, Place.ELEMENT):
                continue
            if wanted.type.dtype not in (DType.I64, DType.I32):
                continue
            at = self.offset(counted.name)
            number = f"int64({self.register[wanted]})" + ("" if at == "0" else f" - ({at})")
            return f"{self.lanes}.at_position({number})"
        return ""

    def _check(self, op: Op, index: str) -> None:
        """Report an index outside its table."""
        error = KernelArgument("error", len(self.checks))
        self.checks.append(op)
        name = self.parameters.add(self.names.fresh("error"), error, written=True)
        ignored = op.get("ignore")
        valid = 0 if ignored is None else ignored
        extent = int_of(op, "extent")
        self.lines.add(f"report_index({name}, int64({index}), {extent}, {valid})")

    def positions(self, value: Value) -> str:
        """The index of each element of a counted value."""
        if not self.is_at(value, Place.ELEMENT):
            return self.index.at(value.name)
        text, step = f"{self.lanes}.positions()", self.nest.inner_stride(value.name)
        if step != 1:
            text = f"mul({text}, int64({step}))"
        at = self.offset(value.name)
        return text if at == "0" else f"add({text}, int64({at}))"

    def random_words(self, op: Op) -> str:
        bits, key, stream = int_of(op, "bits"), self.register[op.inputs[0]], self._stream(op)
        if not self.is_at(op.result, Place.ELEMENT):
            at = self.index.at(op.result.name)
            return f"random_u{bits}({key}, {key} >> 32, {stream}, {at})"
        return f"{self.lanes}.random_{bits}({key}, {stream}, {self.offset(op.result.name)})"

    def _stream(self, op: Op) -> str:
        """Parameter of the random op's stream: equal layers differ in nothing else."""
        argument = KernelArgument("number", int_of(op, "stream"))
        known = argument in self.parameters.arguments
        name = "" if known else self.names.fresh(f"{op.result.name}_stream")
        return self.parameters.add(name, argument, written=False)

    def _only_stored(self, value: Value, current: Pass) -> bool:
        """Whether all that is done with the value is one store, which rounds by itself."""
        stored = sum(self.stages.results[index] == value for index in current.stores)
        if stored != 1 or value in current.keeps or self.is_taken_later(value, current):
            return False
        computed = (v for v, source in current.sources.items() if source is Source.COMPUTED)
        readers = [self.stages.producer[v] for v in computed]
        readers += [*current.folds, *(self.sum_op(index) for index in current.sums)]
        return not any(value in op.inputs for op in readers)

    def is_taken_later(self, value: Value, current: Pass) -> bool:
        """Whether a later pass takes the value from registers."""
        at = self.stages.passes.index(current)
        return any(value in later.sources for later in self.stages.passes[at + 1 :])

    def is_packed(self, value: Value) -> bool:
        return value.type.dtype in _PACKED
