"""The loop shape of fused bodies on a CPU: rows, and passes over each row.

    for row in range(begin, end):
        at = row * 1024
        mean_so_far = float32(0.0)
        for j in range(1024): …            one loop per pass of stages.py
        mean = …                           once per row, between passes

Input: the stages of a body. Output: lines and pointers of its kernel. Invariant: all loads of an
element come before its stores, so a result may take an operand's place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rudagraph.codegen import expressions
from rudagraph.codegen.block_sums import BlockSums, folded
from rudagraph.codegen.domain import result_access
from rudagraph.codegen.expressions import (
    RESERVED,
    ROUNDED,
    accumulator_dtype,
    fold,
    literal,
)
from rudagraph.codegen.launch import Cut
from rudagraph.codegen.long_folds import fold_in_parts, is_long
from rudagraph.codegen.memory import Partial, Scratch
from rudagraph.codegen.row_stages import RowStages
from rudagraph.codegen.scalars import finished, folds_exactly, int_of, needs_rounding, register_text
from rudagraph.codegen.source import Lines, Names, Parameters
from rudagraph.codegen.stages import Pass, Place, Source
from rudagraph.codegen.streams import Streams
from rudagraph.codegen.walks import Walk
from rudagraph.ir.graph import Op, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.ir.types import DType
from rudagraph.schedule.lowered import KernelArgument


@dataclass
class RowsKernel:
    """Writes the lines of one kernel over the rows of a body."""

    stages: RowStages
    cut: Cut
    shared: dict[int, int]  # operand -> result in the same memory
    scratch: Scratch
    partials: dict[int, Partial]  # by result
    lines: Lines = field(default_factory=lambda: Lines(depth=1))
    names: Names = field(default_factory=lambda: Names(RESERVED))
    parameters: Parameters = field(default_factory=Parameters)
    checks: list[Op] = field(default_factory=list)  # one error flag each

    def __post_init__(self) -> None:
        self._register: dict[Value, str] = {}
        self._pointer: dict[str, str] = {}  # by access
        self._kept: dict[Value, str] = {}  # scratch row of a kept value or of random words
        self._loaded: set[Value] = set()  # operands once and per row
        self._unrounded: set[Value] = set()
        # Rounding to bf16 takes for granted that no NaN has set bits in its lower half.
        self._settles = any(v.type.dtype is DType.BF16 for v in self.stages.body.values())
        self.walk = Walk(self.stages.nest, self.cut, self.lines, self.names)
        self.index = self.walk.index
        self.streams = Streams(self.stages, self.cut, self.shared.values())
        self.sums = BlockSums(
            self.stages,
            self.partials,
            self.walk,
            self.lines,
            self.names,
            self.parameters,
            self.scratch,
            self._pointer,
            self._register.__getitem__,
        )

    def write(self) -> None:
        """All lines of the kernel."""
        self._declare_operands()
        self._declare_results()
        self._declare_scratch()
        self._need(tuple(port.value for port in self.stages.body.inputs), Place.ONCE)
        for op in self.stages.once_ops:
            self._compute(op)
        self.sums.start()
        with self.walk.pieces():
            self.sums.start_columns()
            groups = (self.sums.start_group, self.sums.finish_group)
            with self.walk.rows(self._accesses(), *groups):
                for current in self.stages.passes:
                    self._between(current)
                    if current.has_loop:
                        self._loop(current)
            self.sums.finish_columns()
        self.sums.finish()
        if self.streams:
            self.lines.add(f"finish_streams({self.parameters.names[0]})")

    @property
    def has_kept(self) -> bool:
        """Whether a loop leaves values in scratch for a later one."""
        return bool(self.stages.kept())

    # -- pointers

    def _declare_operands(self) -> None:
        used = {value for op in self.stages.body.ops for value in op.inputs}
        used |= set(self.stages.results)
        for index, port in enumerate(self.stages.body.inputs):
            if port.value not in used:
                continue
            argument = KernelArgument("operand", index)
            if index in self.shared:
                argument = KernelArgument("result", self.shared[index])
            name = self.names.fresh(f"{port.value.name}_pointer")
            self._pointer[port.value.name] = self.parameters.add(
                name, argument, written=index in self.shared
            )

    def _declare_results(self) -> None:
        for index, value in enumerate(self.stages.results):
            if index in self.partials and not self.sums.is_finished_here(index):
                continue
            argument = KernelArgument("result", index)
            known = argument in self.parameters.arguments
            name = "" if known else self.names.fresh(f"{value.name}_pointer")
            self._pointer[result_access(index)] = self.parameters.add(name, argument, written=True)

    def _declare_scratch(self) -> None:
        for value in self.stages.kept():
            self._kept[value] = self.names.fresh(f"kept_{value.name}")
            self.scratch.add(self._kept[value], self.cut.length * kept_dtype(value).size)
        for op in (op for current in self.stages.passes for op in current.fills):
            self._kept[op.result] = self.names.fresh(f"words_of_{op.result.name}")
            self.scratch.add(self._kept[op.result], self.cut.length * int_of(op, "bits") // 8)
        self.sums.declare()
        self.streams.declare(self.scratch, self.names)
        self.scratch.declare(self.lines, self.names, self.parameters)

    def _accesses(self) -> list[str]:
        counted = [
            op.result.name
            for op in self.stages.body.ops
            if op.opcode == "iota" or has(op, Tag.RANDOM)
        ]
        return [*self._pointer, *counted]

    # -- once per row

    def _between(self, current: Pass) -> None:
        for op in current.row_ops:
            self._need(op.inputs)
            self._compute(op)
        for op in current.fills:
            self._fill(op)
        for index in current.row_sums:
            self._need(self.sums.op(index).inputs)
            self.sums.add_row(index)
        for index in current.row_stores:
            value, access = self.stages.results[index], result_access(index)
            self._need((value,))
            store = self._store_text(value, self._pointer[access], self.index.at(access))
            guard = self.index.guard(access)
            if not guard:
                self.lines.add(store)
                continue
            with self.lines.block(f"if {guard}:"):
                self.lines.add(store)

    def _fill(self, op: Op) -> None:
        """Draw the random words of this row."""
        draw = "philox_row" if op["bits"] == 16 else "philox_row_32"
        row, first = self._kept[op.result], self.index.base(op.result.name)
        key = self._register[op.inputs[0]]
        arguments = f"{row}, {first}, {self.walk.count}, {key}, {key} >> 32, {self._stream(op)}"
        self.lines.add(f"{draw}({arguments})")

    def _stream(self, op: Op) -> str:
        """Parameter of the random op's stream: equal layers differ in nothing else."""
        argument = KernelArgument("number", int_of(op, "stream"))
        known = argument in self.parameters.arguments
        name = "" if known else self.names.fresh(f"{op.result.name}_stream")
        return self.parameters.add(name, argument, written=False)

    def _need(self, values: tuple[Value, ...], place: Place = Place.ROW) -> None:
        """Load the operands among the values that are read once per row (or once)."""
        for value in values:
            is_operand = value.name in self._pointer
            if is_operand and value not in self._loaded and self._is(value, place):
                self._loaded.add(value)
                self._load(value, value.name)

    # -- one pass

    def _loop(self, current: Pass) -> None:
        self._need_before(current)
        folds = [op for op in current.folds if op.result not in self.stages.picks]
        accumulators = {op.result: self._accumulator(op) for op in folds}
        parts = {index: self.sums.part(index) for index in current.sums}

        def element_loop(range_text: str) -> None:
            with self.lines.block(f"for {self.index.element} in range({range_text}):"):
                for value in self._ordered(current):
                    self._element(value, current)
                for op in folds:
                    name = accumulators[op.result]
                    self.lines.add(f"{name} = {folded(op, name, self._register.__getitem__)}")
                for index in current.sums:
                    self.sums.add_element(index, parts[index])
                for value in current.keeps:
                    dtype, row = kept_dtype(value), self._kept[value]
                    register = self._register[value]
                    self.lines.add(f"store_{dtype}({row}, {self.index.element}, {register})")
                for index in current.stores:
                    self._store_element(index)

        if folds and is_long(self.walk.count):
            totals = [(op, accumulators[op.result]) for op in folds]
            fold_in_parts(self.lines, self.names, self.walk.count, totals, element_loop)
        else:
            element_loop(self.walk.count)
        for index in current.stores:
            self._send_row(index)
        for op in current.folds:
            if op.result in self.stages.picks:
                accumulators[op.result] = self._pick(op, current)
            text = finished(op, accumulators[op.result])
            is_exact = folds_exactly(op)
            self._assign(op.result, text if is_exact else _rounded(text, op.result.type.dtype))
        for index, part in parts.items():
            if part is not None:
                self.sums.add_part(index, part)

    def _store_element(self, index: int) -> None:
        """Into its place, or into the row of scratch that goes there as a whole."""
        value, access, row = (
            self.stages.results[index],
            result_access(index),
            self.streams.row(index),
        )
        if row is None:
            at = self.index.at(access)
            self.lines.add(self._store_text(value, self._pointer[access], at))
        elif not self.streams.is_copy(index):
            self.lines.add(self._store_text(value, row, self.index.element))

    def _send_row(self, index: int) -> None:
        """After the loop: what it made in scratch goes to its place."""
        row, access = self.streams.row(index), result_access(index)
        if row is None:
            return
        size, base = self.stages.results[index].type.dtype.size, self.index.base(access)
        place = f"({base}) * {size}" if " " in base else f"{base} * {size}"
        place_and_size = f"{place}, {row}, {self.walk.count} * {size}"
        self.lines.add(f"stream({self._pointer[access]}, {place_and_size})")

    def _pick(self, op: Op, current: Pass) -> str:
        """The accumulator of a sum with one element: a comparison a row instead of one each."""
        pick, j = self.stages.picks[op.result], self.index.element
        name, target = self._accumulator(op), self._register[pick.target]
        with self.lines.block(f"if {target} >= 0 and {target} < {self.stages.nest.inner}:"):
            self.lines.add(f"{j} = int64({target})")
            for value in self._ordered(current, pick.value):
                self._element(value, current)
            of_value = replace(op, operands=(pick.value,))
            self.lines.add(f"{name} = {folded(of_value, name, self._register.__getitem__)}")
        return name

    def _need_before(self, current: Pass) -> None:
        """Everything read once per row that the loop uses must be there before it."""
        for value, source in current.sources.items():
            if source is Source.COMPUTED:
                self._need(self.stages.producer[value].inputs)
        for op in (*current.folds, *(self.sums.op(index) for index in current.sums)):
            pick = self.stages.picks.get(op.result)
            self._need(op.inputs if pick is None else (pick.target, pick.value))
        self._need(tuple(self.stages.results[index] for index in current.stores))

    def _ordered(self, current: Pass, wanted: Value | None = None) -> list[Value]:
        """Values of the pass, or those one is made of, each after its operands.

        Loads come just before their first use.
        """
        done: dict[Value, None] = {}

        def visit(value: Value) -> None:
            if value in done or value not in current.sources:
                return
            if current.sources[value] is Source.COMPUTED:
                for operand in self.stages.producer[value].inputs:
                    visit(operand)
            done[value] = None

        if wanted is not None:
            visit(wanted)
            return list(done)
        for op in self.stages.body.ops:
            visit(op.result)
        for port in self.stages.body.inputs:
            visit(port.value)
        return list(done)

    def _element(self, value: Value, current: Pass) -> None:
        match current.sources[value]:
            case Source.OPERAND:
                self._load(value, value.name)
            case Source.STORED:
                self._load(value, result_access(self.stages.results.index(value)))
            case Source.KEPT:
                row = self._kept[value]
                self._assign(value, f"load_{kept_dtype(value)}({row}, {self.index.element})")
            case Source.WORDS | Source.COMPUTED:
                self._compute(self.stages.producer[value], self._only_stored(value, current))

    def _only_stored(self, value: Value, current: Pass) -> bool:
        """Whether all this pass does with the value is one store, which rounds by itself."""
        stored = sum(self.stages.results[index] == value for index in current.stores)
        if stored != 1 or value in current.keeps:
            return False
        computed = (v for v, source in current.sources.items() if source is Source.COMPUTED)
        readers = [self.stages.producer[v] for v in computed]
        readers += [*current.folds, *(self.sums.op(index) for index in current.sums)]
        return not any(value in op.inputs for op in readers)

    def _accumulator(self, op: Op) -> str:
        name = self.names.fresh(f"{op.result.name}_so_far")
        self.lines.add(f"{name} = {literal(fold(op).start, accumulator_dtype(op))}")
        return name

    # -- registers

    def _is(self, value: Value, place: Place) -> bool:
        return self.stages.place.get(value) is place

    def _assign(self, value: Value, text: str) -> None:
        if value not in self._register:
            self._register[value] = self.names.fresh(value.name)
        self.lines.add(f"{self._register[value]} = {text}")

    def _load(self, value: Value, access: str) -> None:
        dtype = value.type.dtype
        text = f"load_{dtype}({self._pointer[access]}, {self.index.at(access)})"
        is_known = not dtype.is_floating or dtype is DType.BF16 or access != value.name
        self._assign(value, text if is_known or not self._settles else f"settled({text})")

    def _compute(self, op: Op, only_stored: bool = False) -> None:
        place = ""
        if op.opcode == "iota":
            place = self.index.at(op.result.name)
        elif has(op, Tag.RANDOM):
            place = self._word(op)
        text = register_text(op, [self._register[value] for value in op.inputs], place)
        if op.opcode == "check_index":
            self._check(op, text)
        if needs_rounding(op) and only_stored:
            self._unrounded.add(op.result)
        elif needs_rounding(op):
            self._unrounded.discard(op.result)
            text = _rounded(text, op.result.type.dtype)
        self._assign(op.result, text)

    def _check(self, op: Op, index: str) -> None:
        """Report an index outside its table; a flag is set after the index it is about."""
        error = KernelArgument("error", len(self.checks))
        self.checks.append(op)
        name = self.parameters.add(self.names.fresh("error"), error, written=True)
        wrong, ignored = f"{index} < 0 or {index} >= {int_of(op, 'extent')}", op.get("ignore")
        condition = wrong if ignored is None else f"({wrong}) and {index} != {ignored}"
        with self.lines.block(f"if {condition}:"):
            self.lines.add(f"store_i64({name}, 1, int64({index}))", f"store_i64({name}, 0, 1)")

    def _word(self, op: Op) -> str:
        """The random word of an element, drawn for the row before, or of the row itself."""
        bits = "u16" if op["bits"] == 16 else "u32"
        if self._is(op.result, Place.ELEMENT):
            return f"load_{bits}({self._kept[op.result]}, {self.index.element})"
        key, at = self._register[op.inputs[0]], self.index.at(op.result.name)
        return f"random_{bits}({key}, {key} >> 32, {self._stream(op)}, {at})"

    def _store_text(self, value: Value, pointer: str, at: str) -> str:
        dtype = value.type.dtype
        is_rounded = dtype in ROUNDED and value not in self._unrounded
        suffix = "_rounded" if is_rounded else "_nearest" if dtype is DType.BF16 else ""
        return f"store_{dtype}{suffix}({pointer}, {at}, {self._register[value]})"


def _rounded(text: str, dtype: DType) -> str:
    """The expression rounded to a 16-bit type; every NaN is settled where it was loaded."""
    return f"nearest_bf16({text})" if dtype is DType.BF16 else expressions.rounded(text, dtype)


def kept_dtype(value: Value) -> DType:
    """The memory type of a kept value: its register's, so that nothing converts."""
    return value.type.dtype.compute
