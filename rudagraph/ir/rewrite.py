"""The one rewriting engine: walk the ops, ask a rule for each, keep what it leaves alone.

    rule(rewriter, op) -> None           the op stays, its operands replaced as decided before
                       -> operand        what stands for the op's only result from here on
                       -> tuple          one operand a result, None for a result that has no users

Input: a graph and a rule. Output: the graph rewritten, or the same object where the rule never
fired. Ops that a rule emits go through the rule themselves, so one walk settles a graph. Invariant:
untouched ops keep names and locations; a new value has the type of the old one and its name too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rudagraph.errors import VerifyError
from rudagraph.ir.builder import GraphBuilder
from rudagraph.ir.graph import (
    Attribute,
    Graph,
    Number,
    Op,
    Operand,
    Port,
    Value,
    make_attributes,
)
from rudagraph.ir.infer import infer
from rudagraph.ir.types import TensorType

Replacement = Operand | tuple[Operand, ...]
Rule = Callable[["Rewriter", Op], Replacement]


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Apply the rule to every op, in order; later ops see what earlier ones became."""
    rewriter = Rewriter(graph, rule)
    for op in graph.ops:
        rewriter.visit(op)
    return rewriter.finish()


class Rewriter:
    """The graph built so far, and what stands for the values of the old one."""

    def __init__(self, graph: Graph, rule: Rule) -> None:
        self.graph = graph
        self.rule = rule
        self.name = ""  # of the result that the rule is asked to replace: for hints
        self.builder = GraphBuilder(graph.name, list(graph.inputs))
        self.builder.reserve(value.name for value in graph.values())
        self._substitution: dict[Value, Value] = {}
        self._producers: dict[Value, Op] = {}
        self._fired = False

    # -- for rules

    def producer(self, operand: Operand, opcode: str = "") -> Op | None:
        """The op that defines the operand in the new graph, if it is one of this opcode."""
        op = self._producers.get(operand) if isinstance(operand, Value) else None
        return op if op is not None and opcode in ("", op.opcode) else None

    def resolve(self, operand: Operand) -> Operand:
        """What stands for the operand by now."""
        return self._substitution.get(operand, operand) if isinstance(operand, Value) else operand

    def one(
        self, opcode: str, *operands: Operand, name: str = "", **attributes: Attribute
    ) -> Value:
        """A value that the op gives: emitted, or what the rule makes of it."""
        return self._emit(opcode, operands, name, make_attributes(**attributes))

    def like(self, op: Op, *operands: Operand, name: str = "") -> Value:
        """The op on other operands; its type is inferred anew."""
        return self._emit(op.opcode, operands, name, op.attributes)

    def number(self, number: Number, type: TensorType) -> Value:
        """A tensor of one number."""
        return self.one("full", dtype=type.dtype, shape=type.shape, value=number)

    def _emit(
        self,
        opcode: str,
        operands: tuple[Operand, ...],
        name: str,
        attributes: tuple[tuple[str, Attribute], ...],
    ) -> Value:
        (type,) = infer(opcode, operands, dict(attributes))
        value = self.builder.fresh(name or self.name, type)
        op = Op(opcode, operands, (value,), attributes, self.builder.location)
        replacement = self.rule(self, op)
        if replacement is None:
            self._add(op)
            return value
        (new,) = replacement if isinstance(replacement, tuple) else (replacement,)
        return self._tensor(op, value, new)

    # -- the walk

    def visit(self, op: Op) -> None:
        current = op.reading(self._substitution)
        self.name, self.builder.location = op.results[0].name, op.location
        emitted = len(self.builder.ops)
        replacement = self.rule(self, current)
        if replacement is None:
            self._add(current)
            return
        self._fired = True
        parts = replacement if isinstance(replacement, tuple) else (replacement,)
        for old, new in zip(op.results, parts, strict=True):
            if new is not None:
                self._substitution[old] = self._tensor(op, old, new)
        if len(self.builder.ops) > emitted and len(parts) == 1:
            self._rename_last(op.results[0])

    def _tensor(self, op: Op, old: Value, new: Operand) -> Value:
        if new is None:
            raise VerifyError(f"a rule gives nothing for {old} of {op.opcode}")
        value = new if isinstance(new, Value) else self.number(new, old.type)
        if value.type != old.type:
            raise VerifyError(f"a rule gives {value.type} for {old}: {old.type} of {op.opcode}")
        return value

    def _rename_last(self, old: Value) -> None:
        """Give the op just emitted the name of what it replaces.

        The name it had stays reserved: `resolve` answers for it.
        """
        last, emitted = self.builder.ops[-1], self._substitution[old]
        if last.results == (emitted,):
            self.builder.ops.pop()
            self._substitution[emitted] = self._substitution[old] = old
            self._add(replace(last, results=(old,)))

    def _add(self, op: Op) -> None:
        self.builder.ops.append(op)
        for value in op.results:
            self._producers[value] = op

    def finish(self) -> Graph:
        if not self._fired:
            return self.graph
        outputs = tuple(
            Port(self._substitution.get(port.value, port.value), port.role, port.target)
            for port in self.graph.outputs
        )
        return replace(self.graph, ops=tuple(self.builder.ops), outputs=outputs)


def remove_dead(graph: Graph) -> Graph:
    """Drop ops that no output depends on, and results that an op gives only on request.

    Attribute `needs` of a backward op says which of its results it computes.
    """
    live = set(graph.output_values())
    kept: list[Op] = []
    same = True
    for op in reversed(graph.ops):
        if live.isdisjoint(op.results):
            same = False
            continue
        trimmed = op if len(op.results) == 1 else _without_dead_results(op, live)
        same = same and trimmed is op
        kept.append(trimmed)
        live.update(op.inputs)
    return graph if same else graph.with_ops(tuple(reversed(kept)))


def _without_dead_results(op: Op, live: set[Value]) -> Op:
    needs = op.get("needs")
    if not isinstance(needs, tuple) or all(value in live for value in op.results):
        return op
    results = iter(op.results)
    wanted = tuple(bool(needed) and next(results) in live for needed in needs)
    attributes = make_attributes(**{**dict(op.attributes), "needs": wanted})
    used = tuple(value for value in op.results if value in live)
    return replace(op, results=used, attributes=attributes)
