"""Why each value that backward needs is saved, or computed again: for `explain()`.

    %up = matmul(...)           saved       a product is not computed twice
    %gate.silu = silu(%gate)    computed    costs 1.0 MiB of traffic, saving it 2.2 MiB

Input: the joint graph, what the policy would save, and both parts as they were cut. Output: one
Decision for each value that crosses the cut or is made on both sides of it. The costs are those
that the policy weighed (recompute.py); where a budget overruled it, that is the reason.
"""

from __future__ import annotations

from rudagraph.ir.dag import UNCUTTABLE
from rudagraph.ir.decision import Decision
from rudagraph.ir.graph import Graph, Op, Role, Value
from rudagraph.ir.ops import Tag, has
from rudagraph.passes.evict import is_repeatable
from rudagraph.passes.recompute import UNIT, Chooser, JointView, RecomputePolicy


def decide(
    joint: Graph,
    policy: RecomputePolicy,
    wanted: frozenset[Value],
    forward: Graph,
    backward: Graph | None,
    budget: int | None = None,
) -> tuple[Decision, ...]:
    """What is saved, then what is computed again, each in the order of the joint graph.

    Args:
        wanted: what the policy would save without a budget.
        forward, backward: the parts of the joint graph, just cut.
    """
    if backward is None:
        return ()
    account = _Account(joint, policy, wanted, backward, budget)
    made = {value for op in forward.ops for value in op.results}
    again = [op for op in backward.ops if not made.isdisjoint(op.results)]
    account.repeated = {value for op in again for value in op.results}
    account.overruled = budget is not None and not wanted.isdisjoint(account.repeated)
    saved = [port.value for port in backward.inputs if port.role is Role.RESIDUAL]
    return (
        *(account.saved(value) for value in saved),
        *(
            account.repeated_one(op)
            for op in again
            if not has(op, Tag.VIEW | Tag.CREATION) and op.results[0].type.numel > 1
        ),
    )


class _Account:
    """The prices of the policy, and who reads what in backward."""

    def __init__(
        self,
        joint: Graph,
        policy: RecomputePolicy,
        wanted: frozenset[Value],
        backward: Graph,
        budget: int | None,
    ) -> None:
        self.chooser = Chooser(JointView(joint), policy)
        self.wanted = wanted
        self.budget = budget
        self.repeated: set[Value] = set()
        self.overruled = False  # whether the budget has taken what the policy would save
        self.residuals = {port.value for port in backward.inputs if port.role is not Role.TANGENT}
        self.readers: dict[Value, Op] = {}
        views: dict[Value, Value] = {}
        for op in backward.ops:
            for value in op.inputs:
                root = views.get(value, value)
                if has(op, Tag.VIEW):
                    views[op.results[0]] = root
                else:
                    self.readers.setdefault(root, op)

    def saved(self, value: Value) -> Decision:
        """Why the value stays until backward."""
        view = self.chooser.view
        op = view.producers.get(value)
        again, obstacle = self._cone(value)
        keep = _traffic(self.chooser.save_price(value))
        if op is None:
            reason = "forward overwrites it, backward reads what it was"
        elif value in view.pinned:
            reason = "made in forward on purpose: it costs less there"
        elif value not in self.wanted:
            budget = _size(self.budget or 0)
            reason = f"what the budget of {budget} has no room for is computed from it"
        elif self.overruled and (obstacle is None or is_repeatable(obstacle)):
            reason = f"the budget of {_size(self.budget or 0)} has room for it"
        elif obstacle is op:
            reason = f"{_kind(op)} is not computed twice"
        elif obstacle is not None:
            reason = f"computing it again takes {obstacle.results[0]}, {_kind(obstacle)}"
        else:
            reason = f"computing it again costs {_size(again)}, keeping it {_size(keep)}"
        reason += self._reader(value)
        return Decision(
            value.name,
            value.type.bytes,
            True,
            reason,
            None if obstacle is not None or op is None else again,
            keep,
            *((op.location,) if op is not None else ()),
        )

    def repeated_one(self, op: Op) -> Decision:
        """Why the result is not there when backward wants it."""
        value = op.results[0]
        price = self.chooser.repeat_price(value)
        again = None if price >= UNCUTTABLE else _traffic(price)
        keep = _traffic(self.chooser.save_price(value))
        if value in self.wanted:
            reason = f"the budget of {_size(self.budget or 0)} has no room for it"
        elif again is None:
            reason = "what the budget has no room for is computed from it"
        else:
            reason = f"costs {_size(again)}, keeping it {_size(keep)}"
        reason += self._reader(value)
        size = sum(result.type.bytes for result in op.results)
        return Decision(value.name, size, False, reason, again, keep, op.location)

    def _reader(self, value: Value) -> str:
        reader = self.readers.get(value)
        return "" if reader is None else f"; read by {_called(reader)}"

    def _cone(self, value: Value) -> tuple[int, Op | None]:
        """The price of computing it from what is in memory, and the first op that forbids it."""
        total, seen, stack = 0, set[Value](), [value]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            op = self.chooser.view.producers.get(current)
            if op is None:
                continue
            price = self.chooser.repeat_price(current)
            if price >= UNCUTTABLE:
                return 0, op
            total += price
            stack += [v for v in op.inputs if v not in self.residuals]
        return _traffic(total), None


def _called(op: Op) -> str:
    target = op.get("target")
    return str(target) if isinstance(target, str) else op.opcode


def _kind(op: Op) -> str:
    """What sort of op is never repeated, as a person calls it."""
    if has(op, Tag.MATMUL):
        return "a product"
    if has(op, Tag.LIBRARY):
        return f"the library op {_called(op)}"
    if has(op, Tag.REDUCTION):
        return "a reduction"
    return op.opcode


def _traffic(price: int) -> int:
    return price // UNIT


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
