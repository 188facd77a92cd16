"""Runs PTX on NumPy: all threads of many blocks at once, one basic block of instructions at a time.

It knows the instructions that our kernels compile to, checks alignment and bounds of every access,
and that shuffles and barriers are met by all threads; so kernels are tested where there is no GPU.
Approximate instructions give correctly rounded results here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_TYPES = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    **{
        f"{kind}{bits}": f"{kind.replace('b', 'u').replace('s', 'i')}{bits // 8}"
        for kind in "sub"
        for bits in (8, 16, 32, 64)
    },
}
_TYPES = {name: np.dtype(kind) for name, kind in _TYPES.items()}
_WARP = 32
_LANES = 1 << 16


class EmulationError(Exception):
    """The kernel did what a GPU would punish."""


@dataclass
class _Instruction:
    opcode: str
    operands: list[str]
    guard: str
    text: str

    @property
    def parts(self) -> list[str]:
        return self.opcode.split(".")


class Memory:
    """One address space of the arrays given to a kernel; a guard zone lies around each."""

    def __init__(self) -> None:
        self.bytes = np.zeros(4096, np.uint8)
        self.valid = np.zeros(4096, bool)
        self._arrays: list[tuple[np.ndarray, int]] = []

    def add(self, array: np.ndarray, offset: int = 0) -> int:
        """The address of a copy of the array; `offset` bytes behind an alignment of 256."""
        for known, address in self._arrays:
            if known is array:
                return address
        raw = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
        start = -(-self.bytes.size // 256) * 256 + offset
        pad = np.zeros(start - self.bytes.size, np.uint8)
        self.bytes = np.concatenate([self.bytes, pad, raw, np.zeros(4096, np.uint8)])
        inside = np.ones(raw.size, bool)
        self.valid = np.concatenate([self.valid, pad.astype(bool), inside, np.zeros(4096, bool)])
        self._arrays.append((array, start))
        return start

    def copy_back(self) -> None:
        for array, start in self._arrays:
            if array.size:
                raw = array.reshape(-1).view(np.uint8)
                raw[:] = self.bytes[start : start + raw.size]


# What mapa adds to an address, times one more than the block's number in the cluster.
_NEIGHBOUR = 1 << 24


class Program:
    """One kernel of a PTX text."""

    def __init__(self, text: str) -> None:
        self.blocks: list[list[_Instruction]] = [[]]
        self.labels: dict[str, int] = {}
        self.shared: dict[str, int] = {}
        self.shared_bytes = 0
        for bits, name, count in re.findall(r"\.shared[^;]*?\.[bsuf](\d+) (\w+)\[?(\d*)\]?", text):
            self.shared[name] = self.shared_bytes
            size = int(bits) // 8 * int(count or 1)
            self.shared_bytes += -(-size // 16) * 16
        for name in re.findall(r"\.extern \.shared [^;]*? (\w+)\[\]", text):
            self.shared[name] = self.shared_bytes
        local = re.search(r"\.local [^;]*?(__local_depot\w+)\[(\d+)\]", text)
        self.local_bytes = int(local[2]) if local else 0
        self.constants = _constants(text)
        header = text.index(".entry")
        body = text[text.index("{", header) + 1 : text.rindex("}")]
        self.parameters = re.findall(r"\.param \.u64 (\w+)", text[header:])
        for line in body.split("\n"):
            self._add(re.sub(r"//.*", "", line).strip())

    def _add(self, line: str) -> None:
        if (
            not line
            or line in "{}"
            or line.startswith((".reg", ".param", ".shared", ".local", ".pragma"))
        ):
            return
        if line.startswith("$") and line.endswith(":"):
            self.blocks.append([])
            self.labels[line[:-1]] = len(self.blocks) - 1
            return
        for part in line.split(";"):
            part = part.strip()
            if not part:
                continue
            match = re.match(r"(?:@(!?%p\d+)\s+)?(\S+)\s*(.*)", part, re.DOTALL)
            assert match, part
            operands = [
                each.strip() for each in re.split(r",(?![^{]*\})", match[3]) if each.strip()
            ]
            self.blocks[-1].append(_Instruction(match[2], operands, match[1] or "", part))
            if match[2].startswith(("bra", "bar", "ret")):
                self.blocks.append([])


def _constants(text: str) -> dict[str, np.ndarray]:
    """Initialised arrays outside the kernel."""
    found = {}
    for size, name, values in re.findall(
        r"\.(?:global|const)[^;]*?\.b(\d+) (\w+)\[\d*\] = \{([^}]*)\}", text
    ):
        numbers = [int(value) for value in values.split(",")]
        found[name] = np.array(numbers, f"u{int(size) // 8}").view(np.uint8)
    return found


def run(
    text: str,
    blocks: int,
    threads: int,
    addresses: Sequence[int],
    memory: Memory,
    shared_bytes: int = 0,
    cluster: int = 1,
) -> None:
    """Runs all blocks of a kernel over the memory."""
    program = Program(text)
    program.shared_bytes += shared_bytes
    constants = {name: memory.add(array) for name, array in program.constants.items()}
    per_batch = max(1, _LANES // (threads * cluster)) * cluster
    for first in range(0, blocks, per_batch):
        count = min(per_batch, blocks - first)
        batch = _Batch(program, first, count, blocks, threads, addresses, memory, constants)
        batch.cluster = cluster
        batch.run()


@dataclass
class _Arrival:
    """A barrier in shared memory: what is still to come in this phase."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def arrive(self, threads: int, size: int) -> None:
        self.pending -= threads
        self.bytes += size
        if self.pending < 0:
            raise EmulationError("more arrivals at a barrier than it counts")
        if not self.pending and not self.bytes:
            self.pending, self.phase = self.count, self.phase + 1


class _Batch:
    """The registers of the threads of some blocks."""

    def __init__(
        self,
        program: Program,
        first: int,
        count: int,
        blocks: int,
        threads: int,
        addresses: Sequence[int],
        memory: Memory,
        constants: dict[str, int],
    ) -> None:
        self.program, self.memory, self.threads = program, memory, threads
        self.cluster = 1
        self.size = count * threads
        lane = np.arange(self.size)
        self.local_block = lane // threads
        self.special = {
            "%tid.x": (lane % threads).astype(np.uint32),
            "%ctaid.x": (lane // threads + first).astype(np.uint32),
            "%ntid.x": np.full(self.size, threads, np.uint32),
            "%nctaid.x": np.full(self.size, blocks, np.uint32),
        }
        self.registers: dict[str, np.ndarray] = {}
        self.parameters = dict(zip(program.parameters, addresses, strict=True))
        self.constants = constants
        self.local = np.zeros(self.size * max(program.local_bytes, 1), np.uint8)
        self.shared = np.zeros(count * max(program.shared_bytes, 1), np.uint8)
        self.arrivals: dict[tuple[int, int], _Arrival] = {}

    def run(self) -> None:
        size = self.size
        place = np.zeros(size, np.int64)
        waiting, gone = np.zeros(size, bool), np.zeros(size, bool)
        span = np.zeros(size, np.int64)  # threads that meet at the barrier where one waits
        while not gone.all():
            free = ~gone & ~waiting
            if not free.any():
                raise EmulationError("threads wait at a barrier that others never meet")
            current = int(place[free].min())
            mask = free & (place == current)
            place[mask] = current + 1
            for instruction in self.program.blocks[current]:
                kind = instruction.parts[0]
                if kind == "bra":
                    taken = self._guarded(instruction, mask)
                    place[taken] = self.program.labels[instruction.operands[0]]
                elif kind == "ret":
                    gone |= self._guarded(instruction, mask)
                elif kind in ("griddepcontrol", "fence", "nanosleep"):
                    continue
                elif kind == "barrier":
                    span[mask] = self.threads * self.cluster
                    waiting |= mask & (instruction.parts[2] == "wait")
                elif kind == "bar":
                    named = len(instruction.operands) > 1
                    span[mask] = int(instruction.operands[1]) if named else self.threads
                    waiting |= mask
                else:
                    self._execute(instruction, self._guarded(instruction, mask))
            if current + 1 >= len(self.program.blocks):
                gone |= mask
            self._release(waiting, gone, span)

    def _release(self, waiting: np.ndarray, gone: np.ndarray, span: np.ndarray) -> None:
        """Let go on who waits for neighbours that all wait or are gone."""
        for width in np.unique(span[waiting]):
            met = (waiting & (span == width) | gone).reshape(-1, width).all(axis=1)
            waiting[np.repeat(met, width)] = False

    def _guarded(self, instruction: _Instruction, mask: np.ndarray) -> np.ndarray:
        if not instruction.guard:
            return mask
        predicate = self.registers[instruction.guard.lstrip("!")]
        return mask & (~predicate if instruction.guard.startswith("!") else predicate)

    # -- operands

    def _value(self, operand: str, kind: np.dtype) -> np.ndarray:
        negated = operand.startswith("-%")
        operand = operand.lstrip("-") if negated else operand
        if operand in self.special:
            return self.special[operand].astype(kind)
        if operand.startswith("%"):
            held = self.registers.get(operand)
            if held is None:
                held = np.zeros(self.size, kind)
            if "b" in (held.dtype.kind, kind.kind):
                return held
            if held.itemsize == kind.itemsize:
                return held.view(kind)
            unsigned = held.view(f"u{held.itemsize}")
            return unsigned.astype(f"u{kind.itemsize}").view(kind)
        return np.full(self.size, _literal(operand, kind, self), kind)

    def _set(self, name: str, value: np.ndarray, mask: np.ndarray) -> None:
        if name in ("_", "%temp"):
            return
        value = np.asarray(value)
        old = self.registers.get(name)
        if mask.all() or old is None:
            self.registers[name] = np.array(np.broadcast_to(value, (self.size,)))
            return
        if old.dtype != value.dtype:
            value = (
                value.view(old.dtype) if value.itemsize == old.itemsize else value.astype(old.dtype)
            )
        self.registers[name] = np.where(mask, value, old)

    # -- instructions

    def _execute(self, instruction: _Instruction, mask: np.ndarray) -> None:
        parts, operands = instruction.parts, instruction.operands
        kind = parts[0]
        if not mask.any():
            return
        with np.errstate(all="ignore"):
            if "prefetch" in parts:
                self._ask(operands, mask)
            elif kind == "createpolicy":
                self._set(operands[0], np.zeros(self.size, np.uint64), mask)
            elif instruction.opcode.startswith("cp.async.bulk."):
                self._copy_in_bulk(operands, mask)
            elif kind == "cp":
                self._copy(parts, operands, mask)
            elif kind == "mbarrier":
                self._arrival(parts[1], operands, mask)
            elif kind in ("ld", "st"):
                self._access(parts, operands, mask)
            elif kind == "mov":
                self._move(parts[-1], operands, mask)
            elif kind == "cvta":
                self._set(operands[0], self._value(operands[1], np.dtype("u8")), mask)
            elif kind == "cvt":
                self._convert(parts, operands, mask)
            elif kind == "setp":
                self._compare(parts, operands, mask)
            elif kind == "selp":
                dtype = _TYPES[parts[-1]]
                first, second = (self._value(operand, dtype) for operand in operands[1:3])
                chosen = self.registers[operands[3]]
                self._set(operands[0], np.where(chosen, first, second), mask)
            elif kind == "mapa":
                place, rank = (self._value(operand, np.dtype("u4")) for operand in operands[1:3])
                if (rank[mask] >= self.cluster).any():
                    raise EmulationError("a block outside the cluster")
                self._set(operands[0], place + (rank + 1) * np.uint32(_NEIGHBOUR), mask)
            elif kind == "shfl":
                self._shuffle(operands, mask)
            elif kind == "mul" and parts[1] in ("wide", "hi"):
                self._wide(parts, operands, mask)
            elif kind == "mad" and parts[1] in ("wide", "lo"):
                self._multiply_add(parts, operands, mask)
            elif parts[-1] == "pred":
                values = [self._value(operand, np.dtype(bool)) for operand in operands[1:]]
                self._set(operands[0], _LOGIC[kind](*values), mask)
            else:
                dtype = _TYPES[parts[-1]]
                values = [self._value(operand, dtype) for operand in operands[1:]]
                function = _ARITHMETIC.get(kind)
                if function is None:
                    raise EmulationError(f"unknown instruction: {instruction.text}")
                result = function(parts, dtype, *values)
                self._set(operands[0], result.astype(dtype, copy=False), mask)

    def _access(self, parts: list[str], operands: list[str], mask: np.ndarray) -> None:
        dtype = _TYPES[parts[-1]]
        lanes = int(parts[-2][1:]) if re.fullmatch(r"v\d", parts[-2]) else 1
        is_load = parts[0] == "ld"
        place = operands[1] if is_load else operands[0]
        data = operands[0] if is_load else operands[1]
        names = [name.strip() for name in data.strip("{}").split(",")]
        if parts[1] == "param":
            value = np.uint64(self.parameters[place.strip("[]")])
            self._set(names[0], np.full(self.size, value, np.uint64), mask)
            return
        base, _, offset = place.strip("[]").partition("+")
        address = self._value(base, np.dtype("i8")) + int(offset or 0)
        address = address[mask]
        width = dtype.itemsize * lanes
        if (address % width).any():
            raise EmulationError(f"misaligned access of {width} bytes: {' '.join(operands)}")
        if parts[1] == "local":
            store = self.local
            if (address < 0).any() or (address + width > self.program.local_bytes).any():
                raise EmulationError("access outside local memory")
            address = address + np.flatnonzero(mask) * self.program.local_bytes
        elif parts[1].startswith("shared"):
            store = self.shared
            block = self.local_block[mask]
            if parts[1] == "shared::cluster":
                block = block - block % self.cluster + (address // _NEIGHBOUR - 1)
                address = address % _NEIGHBOUR
            if (address < 0).any() or (address + width > self.program.shared_bytes).any():
                raise EmulationError("access outside shared memory")
            address = address + block * self.program.shared_bytes
        else:
            store = self.memory.bytes
            inside = (address >= 0) & (address + width <= store.size)
            if (
                not inside.all()
                or not (self.memory.valid[address] & self.memory.valid[address + width - 1]).all()
            ):
                raise EmulationError(f"access outside the arrays: {' '.join(operands)}")
        index = address[:, None] + np.arange(width)
        if is_load:
            values = np.ascontiguousarray(store[index]).view(dtype)
            for lane, name in enumerate(names):
                register = np.zeros(self.size, dtype)
                register[mask] = values[:, lane]
                self._set(name, register, mask)
            return
        columns = [_narrow(self._value(name, dtype), dtype)[mask] for name in names]
        store[index] = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)

    def _copy(self, parts: list[str], operands: list[str], mask: np.ndarray) -> None:
        """cp.async; what it copies is there at once."""
        if parts[2] in ("commit_group", "wait_group"):
            return
        names = "{%copied.0, %copied.1, %copied.2, %copied.3}"
        self._access(["ld", "global", "v4", "u32"], [names, operands[1]], mask)
        self._access(["st", "shared", "v4", "u32"], [operands[0], names], mask)

    def _copy_in_bulk(self, operands: list[str], mask: np.ndarray) -> None:
        """Global to shared memory, by few threads; what it copies is there at once."""
        target, source, size, arrival = (operand.strip("[]") for operand in operands)
        starts, sizes = self._value(target, np.dtype("i8")), self._value(size, np.dtype("i8"))
        sources = self._value(source, np.dtype("i8"))
        for thread in np.flatnonzero(mask):
            start, count, origin = int(starts[thread]), int(sizes[thread]), int(sources[thread])
            if start % 16 or count % 16 or origin % 16:
                raise EmulationError(f"a bulk copy of {count} bytes is misaligned")
            if not self.memory.valid[origin : origin + count].all():
                raise EmulationError("a bulk copy reads outside the arrays")
            if not 0 <= start <= start + count <= self.program.shared_bytes:
                raise EmulationError("a bulk copy writes outside shared memory")
            start += int(self.local_block[thread]) * self.program.shared_bytes
            self.shared[start : start + count] = self.memory.bytes[origin : origin + count]
            place = int(self._value(arrival, np.dtype("i8"))[thread])
            self._counts(thread, place).arrive(0, -count)

    def _ask(self, operands: list[str], mask: np.ndarray) -> None:
        """What is to come to L2: pieces of 16 bytes, each of which holds something of an array."""
        starts = self._value(operands[0].strip("[]"), np.dtype("i8"))[mask]
        sizes = np.ones_like(starts)
        if len(operands) > 1:
            sizes = self._value(operands[1], np.dtype("i8"))[mask]
            if (starts % 16).any() or (sizes % 16).any():
                raise EmulationError("a prefetch in bulk is misaligned")
        for start, size in zip(starts, sizes, strict=True):
            pieces = self.memory.valid[start : start + size]
            if not pieces[: pieces.size // 16 * 16].reshape(-1, 16).any(axis=1).all():
                raise EmulationError("a prefetch reads outside the arrays")

    def _arrival(self, verb: str, operands: list[str], mask: np.ndarray) -> None:
        """A barrier in shared memory that counts arrivals and bytes."""
        place = operands[0 if verb == "init" else 1].strip("[]")
        places = self._value(operands[0].strip("[]") if verb == "init" else place, np.dtype("i8"))
        numbers = self._value(operands[-1], np.dtype("i8"))
        done = np.zeros(self.size, bool)
        for thread in np.flatnonzero(mask):
            number = int(numbers[thread])
            if verb == "init":
                key = int(self.local_block[thread]), int(places[thread])
                self.arrivals[key] = _Arrival(number, number)
                continue
            counts = self._counts(thread, int(places[thread]))
            if verb == "arrive":
                counts.arrive(1, number)
            else:
                done[thread] = counts.phase % 2 != number
        if verb == "try_wait":
            if not done[mask].all():
                raise EmulationError("waits for a copy that nobody has asked for")
            self._set(operands[0], done, mask)

    def _counts(self, thread: int, place: int) -> _Arrival:
        found = self.arrivals.get((int(self.local_block[thread]), place))
        if found is None:
            raise EmulationError("a barrier that was never begun")
        return found

    def _move(self, kind: str, operands: list[str], mask: np.ndarray) -> None:
        target, source = operands
        if target.startswith("{"):
            names = [name.strip() for name in target.strip("{}").split(",")]
            bits = int(kind[1:]) // len(names)
            value = self._value(source, np.dtype(f"u{int(kind[1:]) // 8}"))
            for index, name in enumerate(names):
                part = (value >> np.uint64(bits * index)).astype(f"u{bits // 8}")
                self._set(name, part, mask)
            return
        if source.startswith("{"):
            names = [name.strip() for name in source.strip("{}").split(",")]
            bits = int(kind[1:]) // len(names)
            total = np.zeros(self.size, np.uint64)
            for index, name in enumerate(names):
                part = self._value(name, np.dtype(f"u{bits // 8}")).astype(np.uint64)
                total |= part << np.uint64(bits * index)
            self._set(target, total.astype(f"u{int(kind[1:]) // 8}"), mask)
            return
        dtype = np.dtype(bool) if kind == "pred" else _TYPES[kind]
        self._set(target, self._value(source, dtype), mask)

    def _convert(self, parts: list[str], operands: list[str], mask: np.ndarray) -> None:
        target, source = parts[-2], parts[-1]
        if target.startswith("bf16"):
            words = [_bf16(self._value(operand, _TYPES["f32"])) for operand in operands[1:]]
            value = (
                words[0]
                if len(words) == 1
                else (words[0].astype(np.uint32) << 16 | words[1].astype(np.uint32))
            )
            self._set(operands[0], value, mask)
            return
        value = self._value(operands[1], _TYPES[source])
        dtype = _TYPES[target]
        rounding = next((p for p in parts[1:-2] if p in _ROUNDINGS), "")
        if rounding:
            value = _ROUNDINGS[rounding](value)
        if "sat" in parts:
            value = np.where(np.isnan(value), 0, np.clip(value, 0, 1))
        if value.dtype.kind == "f" and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            wide = np.trunc(value.astype(np.longdouble))
            wide = np.where(np.isnan(wide), 0, wide)
            value = np.clip(wide, limits.min, limits.max).astype(dtype)
        self._set(operands[0], value.astype(dtype), mask)

    def _compare(self, parts: list[str], operands: list[str], mask: np.ndarray) -> None:
        name, dtype = parts[1], _TYPES[parts[-1]]
        first, second = (self._value(operand, dtype) for operand in operands[1:3])
        is_float = dtype.kind == "f"
        unordered = (np.isnan(first) | np.isnan(second)) if is_float else False
        if name == "nan":
            result = unordered
        elif name == "num":
            result = ~unordered
        else:
            base = name if name in _COMPARISONS else name.removesuffix("u")
            result = _COMPARISONS[base](first, second)
            if is_float:
                result = result | unordered if name.endswith("u") else result & ~unordered
        self._set(operands[0], np.asarray(result), mask)

    def _shuffle(self, operands: list[str], mask: np.ndarray) -> None:
        if not (mask.reshape(-1, _WARP).all(axis=1) | ~mask.reshape(-1, _WARP).any(axis=1)).all():
            raise EmulationError("a shuffle that part of a warp does not meet")
        value = self._value(operands[1], np.dtype("u4")).reshape(-1, _WARP)
        partner = np.arange(_WARP) ^ int(operands[2])
        self._set(operands[0], value[:, partner].reshape(-1), mask)

    def _wide(self, parts: list[str], operands: list[str], mask: np.ndarray) -> None:
        dtype = _TYPES[parts[-1]]
        bits = dtype.itemsize * 8
        first, second = (self._value(operand, dtype) for operand in operands[1:3])
        if parts[1] == "wide":
            double = np.dtype(f"{dtype.kind}{dtype.itemsize * 2}")
            self._set(operands[0], first.astype(double) * second.astype(double), mask)
            return
        if bits <= 32:
            double = np.dtype(f"{dtype.kind}8")
            high = (first.astype(double) * second.astype(double)) >> np.array(bits, double)
            self._set(operands[0], high.astype(dtype), mask)
            return
        self._set(operands[0], _high_half(first, second).view(dtype), mask)

    def _multiply_add(self, parts: list[str], operands: list[str], mask: np.ndarray) -> None:
        dtype = _TYPES[parts[-1]]
        wide = np.dtype(f"{dtype.kind}{dtype.itemsize * 2}") if parts[1] == "wide" else dtype
        first, second = (self._value(operand, dtype).astype(wide) for operand in operands[1:3])
        self._set(operands[0], first * second + self._value(operands[3], wide), mask)


def _high_half(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The upper 64 bits of 64-bit products, from products of halves."""
    a, b, shift, low = first.view("u8"), second.view("u8"), np.uint64(32), np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & low, a >> shift, b & low, b >> shift
    middle = a_high * b_low + ((a_low * b_low) >> shift)
    other = a_low * b_high + (middle & low)
    high = a_high * b_high + (middle >> shift) + (other >> shift)
    if first.dtype.kind == "i":
        high = (
            high - np.where(first < 0, b, 0).astype("u8") - np.where(second < 0, a, 0).astype("u8")
        )
    return high


def _literal(text: str, kind: np.dtype, batch: _Batch) -> object:
    if text.startswith(("0f", "0F")):
        return np.array(int(text[2:], 16), np.uint32).view(np.float32).astype(kind)
    if text.startswith(("0d", "0D")):
        return np.array(int(text[2:], 16), np.uint64).view(np.float64)
    if text.startswith("__local_depot"):
        return 0
    if text in batch.program.shared:
        return batch.program.shared[text]
    if text in batch.constants:
        return batch.constants[text]
    number = int(text, 0)
    bits = kind.itemsize * 8
    number &= (1 << bits) - 1
    return np.array(number, f"u{kind.itemsize}").view(kind)


def _narrow(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return value if value.dtype == dtype else value.astype(dtype)


def _bf16(value: np.ndarray) -> np.ndarray:
    bits = value.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(value), 0x7FFF, rounded).astype(np.uint16)


def _fma(parts: list[str], dtype: np.dtype, a: np.ndarray, b: np.ndarray, c: np.ndarray):
    wide = np.float64 if dtype == np.float32 else np.longdouble
    exact = a.astype(wide) * b.astype(wide) + c.astype(wide)
    if "rm" in parts:
        result = exact.astype(dtype)
        return np.where(result > exact, np.nextafter(result, dtype.type(-np.inf)), result)
    return exact.astype(dtype)


def _shift(parts: list[str], dtype: np.dtype, value: np.ndarray, count: np.ndarray):
    amount = count.view(f"u{count.itemsize}")
    bits = dtype.itemsize * 8
    inside = np.minimum(amount, bits - 1).astype(dtype)
    if parts[0] == "shl":
        return np.where(amount < bits, value << inside, 0)
    shifted = value >> inside
    return np.where((amount < bits) | (dtype.kind == "i"), shifted, 0)


def _permute(parts: list[str], dtype: np.dtype, a: np.ndarray, b: np.ndarray, c: np.ndarray):
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros_like(both)
    for position in range(4):
        selector = (c.astype(np.uint64) >> np.uint64(4 * position)) & np.uint64(7)
        byte = (both >> (selector * np.uint64(8))) & np.uint64(0xFF)
        result |= byte << np.uint64(8 * position)
    return result.astype(np.uint32)


def _insert(parts, dtype, source, target, start, length):
    start, length = start.astype(np.uint64), length.astype(np.uint64)
    field = ((np.uint64(1) << length) - np.uint64(1)) << start
    wide = (target.astype(np.uint64) & ~field) | (source.astype(np.uint64) << start & field)
    return wide.astype(dtype)


def _dot(parts, dtype, a, b, c):
    """dp2a: two halves of a with two bytes of b."""
    first = 2 if "hi" in parts else 0
    a, b = a.astype(np.uint64), b.astype(np.uint64)
    total = c.astype(np.uint64)
    for index in range(2):
        half = a >> np.uint64(16 * index) & np.uint64(0xFFFF)
        total += half * (b >> np.uint64(8 * (first + index)) & np.uint64(0xFF))
    return total.astype(np.uint32)


def _dot4(parts, dtype, a, b, c):
    """dp4a: four bytes with four bytes."""
    total = c.astype(np.uint64)
    for index in range(4):
        shift = np.uint64(8 * index)
        first = a.astype(np.uint64) >> shift & np.uint64(0xFF)
        total += first * (b.astype(np.uint64) >> shift & np.uint64(0xFF))
    return total.astype(np.uint32)


def _extreme(parts: list[str], dtype: np.dtype, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if dtype.kind != "f":
        return np.maximum(a, b) if parts[0] == "max" else np.minimum(a, b)
    if "NaN" in parts:
        return np.maximum(a, b) if parts[0] == "max" else np.minimum(a, b)
    return np.fmax(a, b) if parts[0] == "max" else np.fmin(a, b)


def _whole(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda parts, dtype, *values: function(*values)


def _in_double(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def apply(parts: list[str], dtype: np.dtype, *values: np.ndarray) -> np.ndarray:
        result = function(*(value.astype(np.float64) for value in values)).astype(dtype)
        if "ftz" in parts:
            return np.where(np.abs(result) < 2.0**-126, np.copysign(dtype.type(0), result), result)
        return result

    return apply


_LOGIC = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_LOGIC["not"] = np.logical_not
_COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_ROUNDINGS = {"rni": np.rint, "rmi": np.floor, "rpi": np.ceil, "rzi": np.trunc}
_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "add": _whole(np.add),
    "sub": _whole(np.subtract),
    "mul": _whole(np.multiply),
    "div": lambda parts, dtype, a, b: (
        a / b if dtype.kind == "f" else np.trunc(a / np.where(b == 0, 1, b)).astype(dtype)
    ),
    "rem": lambda parts, dtype, a, b: np.fmod(a, np.where(b == 0, 1, b)),
    "neg": _whole(np.negative),
    "abs": _whole(np.abs),
    "and": _whole(np.bitwise_and),
    "or": _whole(np.bitwise_or),
    "xor": _whole(np.bitwise_xor),
    "not": _whole(np.invert),
    "max": _extreme,
    "min": _extreme,
    "fma": _fma,
    "shl": _shift,
    "shr": _shift,
    "prmt": _permute,
    "bfi": _insert,
    "dp2a": _dot,
    "dp4a": _dot4,
    "ex2": _in_double(np.exp2),
    "lg2": _in_double(np.log2),
    "rcp": _in_double(lambda x: 1 / x),
    "sqrt": _in_double(np.sqrt),
    "rsqrt": _in_double(lambda x: 1 / np.sqrt(x)),
    "copysign": lambda parts, dtype, sign, size: np.copysign(size, sign),
    "testp": _whole(np.isinf),
}
