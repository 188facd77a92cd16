"""Text about a program: what runs, what is kept for backward, what memory it needs.

Input: a program. Output: lines for a person. Invariant: the same program gives the same text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rudagraph.ir.decision import Decision
from rudagraph.schedule.plan import Buffer, BufferKind, Entry, Launch, Moment, Plan, View
from rudagraph.schedule.program import Program

_BAR = 40
_WIDEST = 64  # characters of a column of a table


class MemoryReport:
    """Planned memory beyond the weights; `print(report)` draws its timeline."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.peak_bytes: int = plan.peak_bytes
        self.arena_bytes: int = plan.arena_bytes
        self.timeline: tuple[Moment, ...] = plan.timeline
        self.saved_bytes: int = sum(buffer.bytes for buffer in saved_buffers(plan))

    def __str__(self) -> str:
        lines = [
            f"planned peak beyond the weights: {size(self.peak_bytes)}",
            f"arena {size(self.arena_bytes)}, saved for backward {size(self.saved_bytes)}",
        ]
        moments = _thinned(self.timeline)
        for moment in moments:
            bar = "█" * max(1, round(_BAR * moment.bytes / max(self.peak_bytes, 1)))
            name = f"{moment.entry} {moment.launch}"
            mark = " ← peak" if moment.bytes == self.peak_bytes else ""
            lines.append(f"  {name:<14} {size(moment.bytes):>10} {bar}{mark}")
        return "\n".join(lines)

    __repr__ = __str__


def explain_program(program: Program, title: str) -> str:
    """Everything a person asks about one signature."""
    plan = program.plan
    lines = [f"signature {title}", *_notes(program)]
    for entry in (plan.forward, plan.backward):
        if entry is not None:
            lines += _entry(entry)
    saved = saved_buffers(plan)
    lines.append(f"saved for backward: {len(saved)} values, {size(sum(b.bytes for b in saved))}")
    lines += _decided(program.decisions, is_saved=True)
    again = [decision for decision in program.decisions if not decision.is_saved]
    if again:
        total = size(sum(decision.bytes for decision in again))
        lines.append(f"computed again in backward: {len(again)} values, {total}")
        lines.append("  (costs: bytes of memory traffic that take as long, for each value)")
        lines += _decided(program.decisions, is_saved=False)
    lines.append(
        f"memory beyond the weights: peak {size(plan.peak_bytes)}, arena {size(plan.arena_bytes)}"
    )
    return "\n".join(lines)


def _decided(decisions: Sequence[Decision], *, is_saved: bool) -> list[str]:
    """Values and why, largest first; those of equal layers in one line."""
    groups: dict[tuple[str, ...], list[Decision]] = {}
    for decision in decisions:
        if decision.is_saved is is_saved:
            origin = decision.location
            reason = re.sub(r"%[\w.]+", lambda match: _starred(match[0]), decision.reason)
            key = (_starred(decision.name), reason, _starred(origin.module))
            groups.setdefault((*key, origin.line, str(decision.bytes)), []).append(decision)
    rows = []
    for (name, reason, module, line, _), members in groups.items():
        first = members[0]
        many = len(members) > 1
        called = f"{name} ×{len(members)}" if many else first.name
        place = " ".join(part for part in (module if many else first.location.module, line) if part)
        row = (called, reason if many else first.reason, f"# {place}" if place else "")
        rows.append((sum(member.bytes for member in members), row))
    rows.sort(key=lambda row: -row[0])
    width = min(max((len(row[0]) for _, row in rows), default=0), _WIDEST)
    return [
        f"  {size(total):>10}  {called:<{width}}  {reason}  {place}".rstrip()
        for total, (called, reason, place) in rows
    ]


def _starred(name: str) -> str:
    """The same for equal layers: numbers of layers are stars, counters go."""
    return re.sub(r"(?<=\w)_\d+\b", "", re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name))


def _notes(program: Program) -> list[str]:
    """What each pass did, where it did something."""
    said = [stage for stage in program.stages if stage.note]
    if not said:
        return []
    width = max(len(stage.name) for stage in said)
    return ["passes:", *(f"  {s.entry:<8}  {s.name:<{width}}  {s.note}" for s in said)]


def _entry(entry: Entry) -> list[str]:
    kernels = [launch for launch in entry.launches if launch.kernel is not None]
    library = [launch for launch in entry.launches if launch.kernel is None]
    distinct = len({launch.kernel for launch in kernels})
    lines = [
        f"{entry.name}: {len(kernels)} kernel launches ({distinct} kernels), "
        f"{len(library)} library ops"
    ]
    counts = Counter(map(_name, library))
    if counts:
        ops = ", ".join(f"{name} ×{count}" for name, count in sorted(counts.items()))
        lines.append(f"  library ops: {ops}")
    return lines + _table([_row(launch) for launch in entry.launches])


def _row(launch: Launch) -> tuple[str, ...]:
    """What runs, what it makes, the bytes it reads and writes, where it comes from."""
    results = ", ".join(str(view.type) for view in launch.results)
    # A kernel's arguments name its results as well.
    touched = launch.arguments if launch.kernel else (*launch.arguments, *launch.results)
    moved = sum(view.type.bytes for view in {v for v in touched if isinstance(v, View)})
    form = dict(launch.attributes).get("form")
    how = f"kernel {launch.kernel}" if launch.kernel else f"library {_name(launch)}"
    how += f" ({form})" if form else ""
    place = " ".join(part for part in (launch.location.module, launch.location.line) if part)
    return how, f"{launch.label}: {results}", size(moved), f"# {place}" if place else ""


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [min(max((len(row[at]) for row in rows), default=0), _WIDEST) for at in range(3)]
    return [
        f"  {how:<{widths[0]}}  {made:<{widths[1]}}  {moved:>{widths[2]}}  {place}".rstrip()
        for how, made, moved, place in rows
    ]


def _name(launch: Launch) -> str:
    target = next((value for key, value in launch.attributes if key == "target"), None)
    return str(target) if launch.opcode == "library" and target else launch.opcode


def saved_buffers(plan: Plan) -> list[Buffer]:
    """Buffers made by forward that backward reads, the model's own and arguments left out."""
    if plan.backward is None:
        return []
    made = {view.buffer for launch in plan.forward.launches for view in launch.results}
    read = {
        view.buffer
        for launch in plan.backward.launches
        for view in launch.arguments
        if isinstance(view, View)
    }
    buffers = [plan.buffers[index] for index in sorted(made & read)]
    return [buffer for buffer in buffers if buffer.kind is not BufferKind.BOUND]


def size(count: int) -> str:
    """A number of bytes as a person reads it."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def _thinned(timeline: tuple[Moment, ...], most: int = 40) -> list[Moment]:
    """At most so many moments, each the largest of its stretch, so the peak is among them."""
    if len(timeline) <= most:
        return list(timeline)
    stretch = -(-len(timeline) // most)
    parts = [timeline[start : start + stretch] for start in range(0, len(timeline), stretch)]
    return [max(part, key=lambda moment: moment.bytes) for part in parts]
