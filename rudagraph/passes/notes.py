"""What each pass did to this model, in a line for `explain()`.

Input: a pass's name, the graph before and after it. Output: a sentence, or nothing where the pass
left the graph alone. A pass that has more to say than how many ops it leaves has a row here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rudagraph.ir.graph import Graph, Op, Role
from rudagraph.ir.ops import Tag, has


def note(name: str, before: Graph, after: Graph) -> str:
    """The line of one pass over one graph."""
    if after is before:
        return ""
    return NOTES.get(name, _counts)(before, after)


def _counts(before: Graph, after: Graph) -> str:
    if len(before.ops) == len(after.ops):
        return f"other ops, {len(after.ops)} as before"
    return f"{len(before.ops)} → {len(after.ops)} ops"


def _expand(before: Graph, after: Graph) -> str:
    composites = Counter(op.opcode for op in before.ops if has(op, Tag.COMPOSITE))
    listing = ", ".join(f"{name} ×{count}" for name, count in sorted(composites.items()))
    return f"{listing} became {len(after.ops) - len(before.ops) + composites.total()} ops"


def _fuse(before: Graph, after: Graph) -> str:
    kernels = [op for op in after.ops if op.body is not None]
    distinct = len({op.body for op in kernels})
    inside = len(before.ops) - len(after.ops) + len(kernels)
    return f"{inside} ops became {len(kernels)} kernels, {distinct} of them distinct"


def _recognise(before: Graph, after: Graph) -> str:
    forms = Counter(
        name for op in after.ops for name in str(op.get("form") or "").split(", ") if name
    )
    return ", ".join(f"{name} ×{count}" for name, count in sorted(forms.items()))


def _copies(before: Graph, after: Graph) -> str:
    made = _count(after, "copy") - _count(before, "copy")
    return f"{made} copies, {_counts(before, after)}" if made else _counts(before, after)


def _accumulate(before: Graph, after: Graph) -> str:
    made = _count(after, "addmm") - _count(before, "addmm")
    return f"{made} products add to what is there"


def _linear_cross_entropy(before: Graph, after: Graph) -> str:
    """One part a loss: its logits, its chunks, and where the gradient is made."""
    losses = {op.results[0]: op for op in before.ops if op.opcode == "cross_entropy"}
    kept = {op.results[0] for op in after.ops if op.opcode == "cross_entropy"}
    chunks: dict[str, list[Op]] = {}
    for op in after.ops:
        if op.opcode == "cross_entropy" and op.results[0] not in losses:
            chunks.setdefault(op.results[0].name.rpartition(".chunks.")[0], []).append(op)
    made = ""
    if any(op.get("again") for op in after.ops):
        made = ", computed again for their gradient"
    elif any(port.role is Role.RESIDUAL for port in after.outputs):
        made = ", their gradient made in forward"
    wholes = [op for result, op in losses.items() if result not in kept]
    parts = []
    for whole, (name, pieces) in zip(wholes, chunks.items(), strict=False):
        logits = whole.inputs[0].type
        rows = pieces[0].inputs[0].type.shape[0]
        parts.append(f"{name}: logits {logits} in {len(pieces)} chunks of {rows} rows{made}")
    return "; ".join(parts)


def _name_gradients(before: Graph, after: Graph) -> str:
    named = {value.name for value in after.values()} - {value.name for value in before.values()}
    return f"{len(named)} gradients called after what they are of"


def _order(before: Graph, after: Graph) -> str:
    one, other = ([op for op in g.ops if not has(op, Tag.VIEW)] for g in (before, after))
    return "views in front of their readers" if one == other else "an order of lower peak"


def _count(graph: Graph, opcode: str) -> int:
    return sum(op.opcode == opcode for op in graph.ops)


NOTES: dict[str, Callable[[Graph, Graph], str]] = {
    "linear_cross_entropy": _linear_cross_entropy,
    "expand": _expand,
    "accumulate": _accumulate,
    "materialise": _copies,
    "own_outputs": _copies,
    "fuse": _fuse,
    "recognise": _recognise,
    "name_gradients": _name_gradients,
    "order": _order,
}
