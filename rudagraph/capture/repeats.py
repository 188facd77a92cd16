"""Equal layers of forward: all but a few are left out before anything is traced.

    layers.0 … layers.47   ->   layers.0, layers.1 | layers.2, layers.3, layers.4 (45 to 47 before)

Input: the calls of a script. Output: fewer calls, the new names of what they read of modules, and
what brings the others back (LeftOut). Invariant: layers are left out that are the same, call by
call, as the one before: function, numbers, layouts, needs of gradients, operands, lines; and that
share nothing a gradient goes to. Otherwise it is NotRepeating, and they all stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from rudagraph.capture.script import Call
from rudagraph.capture.shapes import Traced
from rudagraph.ir.graph import Location
from rudagraph.ir.layers import (
    KEPT,
    KEPT_BEFORE,
    LEAST,
    MOST_KINDS,
    LayerNames,
    LeftOut,
    NotRepeating,
    Streams,
    numbered_rows,
)


@dataclass
class Shortened:
    """Forward with fewer layers.

    `targets` says what inputs, by index, that modules hold are called now; `instead` which tensor
    is to be read for another, by identity.
    """

    calls: list[Call]
    results: list[Traced]
    targets: dict[int, str]
    places: dict[Call, Location]
    instead: dict[int, Traced] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)


def leave_out(calls: list[Call], results: list[Traced], targets: dict[int, str]) -> Shortened:
    """The calls without most of their equal layers; `targets` names what modules hold."""
    short = Shortened(calls, results, targets, {call: call.location for call in calls})
    for prefix in numbered_rows(list(targets.values())):
        try:
            _Row(LayerNames(prefix), short).leave_out()
        except NotRepeating:
            continue
    return short


@dataclass(frozen=True)
class _Run:
    """Positions from `start` to `stop`, of which those `length` apart are the same."""

    start: int
    stop: int
    length: int

    @property
    def repeats(self) -> int:
        """How often all of `length` positions come."""
        return (self.stop - self.start) // self.length

    def since(self, start: int) -> _Run:
        """The part of the run from there on."""
        return _Run(start, self.stop, self.length)


class _Row:
    """One row of layers in forward."""

    def __init__(self, names: LayerNames, short: Shortened) -> None:
        self.names, self.short, self.calls = names, short, short.calls
        self.position = {call: position for position, call in enumerate(self.calls)}
        self.first_of: dict[int, int] = {}  # layer -> position of its first call
        for position, call in enumerate(self.calls):
            index = self.index(call)
            if index is not None:
                self.first_of.setdefault(index, position)

    def index(self, call: Call) -> int | None:
        """The layer that a call belongs to."""
        return self.names.index(self.short.places[call].module)

    def layer_of(self, tensor: Traced) -> int | None:
        """The layer that a tensor belongs to."""
        if tensor.maker is not None:
            return self.index(tensor.maker)
        target = self.short.targets.get(tensor.place)
        return None if target is None else self.names.index(target)

    def read(self, tensor: Traced) -> Traced:
        """What is really read, now that rows have left layers out."""
        return self.short.instead.get(id(tensor), tensor)

    def place(self, tensor: Traced) -> int:
        """The position of the call that makes a tensor, -1 for an input."""
        return -1 if tensor.maker is None else self.position[tensor.maker]

    def leave_out(self) -> None:
        """Take layers out of the middle of the row."""
        run, step = self._longest_run()
        count = run.repeats - KEPT
        if count < LEAST:
            raise NotRepeating(f"{self.names.prefix} has few layers")
        gap = run.start + KEPT_BEFORE * run.length
        removed = range(gap, gap + count * run.length)
        first = self.index(self.calls[gap])
        assert first is not None, "a repeat begins with a layer"
        self._refuse_what_is_not_put_back(run, gap, step)
        instead = self._instead(run, removed)
        moving = _Moving(self.names, first, count * step)
        kept = [*self.calls[:gap], *self.calls[removed.stop :]]
        targets = moving.targets(self.short.targets, kept)
        places = moving.places(self.short.places, kept)
        streams = self._streams(kept, moving)
        row = LeftOut(self.names.prefix, first, count * step, step, streams)
        short = self.short
        short.calls, short.targets, short.places = kept, targets, places
        short.instead.update(instead)
        short.left_out.insert(0, row)

    def _streams(self, kept: list[Call], moving: _Moving) -> Streams:
        """Who draws from which random stream once the others are left out."""
        drawn = accumulate((call.kind.draws for call in self.calls), initial=0)
        before = dict(zip(self.calls, drawn, strict=False))
        drawn_by: dict[int, int | None] = {}
        outside: dict[int, int] = {}
        now = 0
        for call in kept:
            index = self.names.index(moving.name(self.short.places[call].module))
            for stream in range(call.kind.draws):
                if index is None:
                    outside[now] = before[call] + stream
                else:
                    drawn_by[now] = index
                now += 1
        return Streams(drawn_by, outside)

    def _longest_run(self) -> tuple[_Run, int]:
        """The longest run from the beginning of a layer, and the layers of one repeat."""
        places = sorted(self.first_of.items(), key=lambda item: item[1])
        for kinds in range(1, MOST_KINDS + 1):
            distances = Counter(
                (there - here, later - layer)
                for (layer, here), (later, there) in zip(places, places[kinds:], strict=False)
                if later > layer
            )
            for (length, step), _ in distances.most_common(1):
                run = self._longest(length, step)
                starts = [p for p in self.first_of.values() if run.start <= p < run.stop - length]
                if starts and run.since(min(starts)).repeats >= KEPT + LEAST:
                    return run.since(min(starts)), step
        raise NotRepeating(f"{self.names.prefix} does not repeat")

    def _longest(self, length: int, step: int) -> _Run:
        begin = min(self.first_of.values())
        best = run = _Run(begin, begin, length)
        for position in range(begin, len(self.calls) - length):
            one, other = self.calls[position], self.calls[position + length]
            if not self._follows(one, other, run.start, length, step):
                run = _Run(position + 1, position + 1, length)
                continue
            run = _Run(run.start, position + 1 + length, length)
            if run.stop - run.start > best.stop - best.start:
                best = run
        return best

    def _follows(self, one: Call, other: Call, start: int, length: int, step: int) -> bool:
        """Whether the other is the same one repeat on; both may read what is before the run."""
        if one.kind is not other.kind:
            return False
        here, there = self.short.places[one], self.short.places[other]
        if here.line != there.line or self.names.later(here.module, step) != there.module:
            return False
        return all(
            self._is_later(self.read(a), self.read(b), start, length, step)
            for a, b in zip(one.operands, other.operands, strict=True)
        )

    def _is_later(self, one: Traced, other: Traced, start: int, length: int, step: int) -> bool:
        if one is other:
            return self.place(one) < start
        if one.maker is not None and other.maker is not None:
            return self.place(other) - self.place(one) == length and one.place == other.place
        if one.maker is not None or other.maker is not None:
            return False
        here, there = (self.short.targets.get(tensor.place) for tensor in (one, other))
        return here is not None and self.names.later(here, step) == there

    def _refuse_what_is_not_put_back(self, run: _Run, gap: int, step: int) -> None:
        """What `passes.fold` cannot put back, where that shows before backward is traced.

        A gradient with a part from every layer is a sum over all of them; and what the model does
        between its layers has names that do not tell for which.
        """
        streams = 0
        for position in range(gap, gap + run.length):
            call = self.calls[position]
            streams += call.kind.draws
            if self.index(call) is None and any(
                made is not None and made.requires_grad for made in call.results
            ):
                raise NotRepeating(f"something between layers of {self.names.prefix} is in none")
            later = self.calls[position + run.length].operands
            for one, other in zip(call.operands, later, strict=True):
                if self.read(one) is self.read(other) and one.requires_grad:
                    raise NotRepeating(f"layers of {self.names.prefix} share a gradient")
        if streams % step:
            raise NotRepeating(f"layers of {self.names.prefix} draw by turns")

    def _instead(self, run: _Run, removed: range) -> dict[int, Traced]:
        """For what is read beyond the gap of layers left out: the same of those before it."""
        found: dict[int, Traced] = {}
        directly: set[int] = set()
        reads = [call.operands for call in self.calls[removed.stop :]]
        for position, operands in enumerate([*reads, self.short.results], removed.stop):
            for operand in map(self.read, operands):
                place = self.place(operand)
                if place < removed.start:
                    directly.add(id(operand))
                    if position >= run.stop and self.layer_of(operand) is not None:
                        raise NotRepeating(f"{self.names.prefix} is read from beyond its end")
                if place not in removed:
                    continue
                near = place >= removed.stop - KEPT_BEFORE * run.length
                if not near or position >= run.stop:
                    raise NotRepeating(f"a layer of {self.names.prefix} is read from far")
                made = self.calls[place - len(removed)].results[operand.place]
                assert made is not None, "equal calls give the same"
                found[id(operand)] = made
        if not directly.isdisjoint(map(id, found.values())):
            raise NotRepeating(f"a layer of {self.names.prefix} is read from near and from far")
        return found


@dataclass(frozen=True)
class _Moving:
    """What layers beyond the gap are called: they move down into the place of those left out."""

    names: LayerNames
    first: int  # of the layers left out
    removed: int

    def targets(self, targets: dict[int, str], calls: list[Call]) -> dict[int, str]:
        """Of what modules hold."""
        gone = {index for index, target in targets.items() if self._is_gone(target)}
        inputs = (o for call in calls for o in call.operands if o.maker is None)
        if any(operand.place in gone for operand in inputs):
            raise NotRepeating(f"what a layer of {self.names.prefix} holds is read elsewhere")
        return {i: self.name(target) for i, target in targets.items() if i not in gone}

    def places(self, places: dict[Call, Location], calls: list[Call]) -> dict[Call, Location]:
        """Where calls are made."""
        if any(self._is_gone(places[call].module) for call in calls):
            raise NotRepeating(f"a layer of {self.names.prefix} runs apart from the others")
        return {c: Location(self.name(places[c].module), places[c].line) for c in calls}

    def _is_gone(self, name: str) -> bool:
        index = self.names.index(name)
        return index is not None and self.first <= index < self.first + self.removed

    def name(self, name: str) -> str:
        """The name of something that stays."""
        index = self.names.index(name)
        return self.names.later(name, -self.removed) if (index or 0) >= self.first else name
