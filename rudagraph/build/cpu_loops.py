"""Hints on a kernel's loops: how many vectors are in flight, and the one tree of every sum.

Input: LLVM text. Output: the same with metadata on its jumps backwards.
A kernel's text may ask for interleaving by a line `INTERLEAVE = 4`: two to four vectors in flight
hide the latency of long chains, since the core's own window holds less than one polynomial.
A loop that adds up (its addition may be reassociated) is always cut the same way, `SUM_VECTORS`
vectors of the CPU's full width: left to itself LLVM chooses by what else the loop does, and one sum
would have other bits in another kernel, under another memory budget.
"""

from __future__ import annotations

import re

SUM_VECTORS = 4

_REQUEST = re.compile(r"^INTERLEAVE = (\d+)$", re.MULTILINE)
_LABEL = re.compile(r'^"?([\w.$]+)"?:')
_JUMP = re.compile(r'^  br label %"?([\w.$]+)"?$')
_SUM = re.compile(r" = fadd (?:\w+ )*reassoc (?:\w+ )*(float|double) ")
_ELEMENT_BYTES = {"float": 4, "double": 8}


def requested(text: str) -> int:
    """The count in a kernel's text; 0 leaves the choice to LLVM."""
    match = _REQUEST.search(text)
    return int(match[1]) if match else 0


def with_loop_hints(text: str, count: int, register_bytes: int) -> str:
    """LLVM text whose innermost sums have one tree, and whose other loops run `count` at a time."""
    hints = _Hints(1 + max((int(n) for n in re.findall(r"!(\d+)", text)), default=0))
    lines: list[str] = []
    labels: dict[str, int] = {}
    last_jump = -1  # index of the latest jump backwards: a loop around it is not innermost
    for line in text.splitlines():
        if line.startswith("define "):
            labels.clear()
            last_jump = -1
        if label := _LABEL.match(line):
            labels[label[1]] = len(lines)
        jump = _JUMP.match(line)
        if jump and jump[1] in labels:
            start = labels[jump[1]]
            sums = [match[1] for inner in lines[start:] if (match := _SUM.search(inner))]
            if sums and last_jump < start:
                lanes = register_bytes // max(map(_ELEMENT_BYTES.__getitem__, sums))
                line += hints.loop(_sum_hints(lanes))
            elif count:
                line += hints.loop([f'"llvm.loop.interleave.count", i32 {count}'])
            last_jump = len(lines)
        lines.append(line)
    return "\n".join([*lines, *hints.nodes]) + "\n"


def _sum_hints(lanes: int) -> list[str]:
    return [
        '"llvm.loop.vectorize.enable", i1 true',
        f'"llvm.loop.vectorize.width", i32 {lanes}',
        f'"llvm.loop.interleave.count", i32 {SUM_VECTORS}',
        # Unrolled whole before the vectoriser sees it, a short sum would be another tree.
        '"llvm.loop.unroll.disable"',
    ]


class _Hints:
    """Metadata nodes, numbered after those the text has."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.nodes: list[str] = []
        self.known: dict[str, int] = {}

    def loop(self, hints: list[str]) -> str:
        """Text after a jump: a loop node of its own that points at the hints."""
        numbers = [self._node(hint) for hint in hints]
        loop = self._number()
        listing = ", ".join(f"!{number}" for number in (loop, *numbers))
        self.nodes.append(f"!{loop} = distinct !{{{listing}}}")
        return f", !llvm.loop !{loop}"

    def _node(self, hint: str) -> int:
        if hint not in self.known:
            self.known[hint] = self._number()
            self.nodes.append(f"!{self.known[hint]} = !{{!{hint}}}")
        return self.known[hint]

    def _number(self) -> int:
        self.next += 1
        return self.next - 1
