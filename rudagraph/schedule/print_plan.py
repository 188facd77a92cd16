"""A plan as text: buffers with lifetimes and offsets, then the launches of each entry."""

from __future__ import annotations

from rudagraph.ir.graph import Number
from rudagraph.schedule.plan import BufferKind, Entry, ErrorFlag, Plan, View


def print_plan(plan: Plan) -> str:
    """The whole plan, one buffer or launch a line, ending in a newline."""
    lines = [
        f"plan: arena {plan.arena_bytes} bytes, peak {plan.peak_bytes} bytes beyond the weights",
        "buffers",
    ]
    for index, buffer in enumerate(plan.buffers):
        place = f" at {buffer.offset}" if buffer.kind is BufferKind.ARENA else ""
        alive = "" if buffer.kind is BufferKind.BOUND else f", alive {buffer.first}..{buffer.last}"
        lines.append(
            f"  {index}: {buffer.name} ({buffer.kind.value}{place}, {buffer.bytes} bytes{alive})"
        )
    for entry in (plan.forward, plan.backward):
        if entry is not None:
            lines += _print_entry(plan, entry)
    return "\n".join(lines) + "\n"


def _print_entry(plan: Plan, entry: Entry) -> list[str]:
    lines = [f"{entry.name}"]
    for number, launch in enumerate(entry.launches):
        arguments = ", ".join(_print_argument(plan, argument) for argument in launch.arguments)
        results = ", ".join(_print_argument(plan, view) for view in launch.results)
        what = f"kernel {launch.kernel}" if launch.kernel else launch.opcode
        where = " ".join(filter(None, (launch.location.line, launch.location.module)))
        comment = f"  # {where}" if where else ""
        lines.append(f"  {number}: {results} = {what}({arguments}){comment}")
    lines += [
        f"  {result.port.role.value} {result.port.target!r} = {_print_argument(plan, result.view)}"
        for result in entry.results
    ]
    return lines


def _print_argument(plan: Plan, argument: View | Number | ErrorFlag | None) -> str:
    match argument:
        case View(buffer, type, strides, offset):
            start = f"+{offset}" if offset else ""
            return f"{plan.buffers[buffer].name}{start}:{type}/{','.join(map(str, strides))}"
        case ErrorFlag(index):
            return f"error flag {index}"
        case None:
            return "none"
    return repr(argument)
