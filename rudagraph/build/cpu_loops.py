"""Hints on a kernel's innermost loops: vectors in flight, and the one tree of every sum.

Input: LLVM text, and what the kernel's text says in lines of its own: `LENGTH = 1024`, the most
iterations of an innermost loop, and `INTERLEAVE = 4`, the vectors in flight that hide the latency
of long chains. Output: the same text with metadata on jumps backwards.
Invariant: a loop that adds up (its addition may be reassociated) is cut by its length alone. Left
to itself LLVM chooses by what else the loop does, and one sum would have other bits in another
kernel, under another memory budget.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Vectors a long sum is added up in. Four spill where AVX2's sixteen registers hold two sums and two
# rows of column sums (LayerNorm backward 0.60 ms, with two 0.35); softmax and loss lose 5 % by two.
SUM_VECTORS = 2

_REQUEST = re.compile(r"^(INTERLEAVE|LENGTH) = (\d+)$", re.MULTILINE)
_LABEL = re.compile(r'^"?([\w.$]+)"?:')
_JUMP = re.compile(r'^  br label %"?([\w.$]+)"?$')
_SUM = re.compile(r" = fadd (?:\w+ )*reassoc (?:\w+ )*(float|double) ")
_ELEMENT_BYTES = {"float": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class Request:
    """What a kernel's text asks for; 0 where it says nothing."""

    interleave: int = 0
    length: int = 0


def requested(text: str) -> Request:
    """The lines `INTERLEAVE` and `LENGTH` of a kernel's text."""
    return Request(**{name.lower(): int(number) for name, number in _REQUEST.findall(text)})


def with_loop_hints(text: str, request: Request, register_bytes: int) -> str:
    """LLVM text whose sums have one tree, and whose other loops run as the kernel asks."""
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
            if last_jump < start:
                sums = [match[1] for inner in lines[start:] if (match := _SUM.search(inner))]
                size = max(map(_ELEMENT_BYTES.__getitem__, sums), default=0)
                if size:
                    line += hints.loop(_sum_hints(register_bytes // size, request.length))
                else:
                    line += hints.loop(_other_hints(request, register_bytes // 4))
            last_jump = len(lines)
        lines.append(line)
    return "\n".join([*lines, *hints.nodes]) + "\n"


def _sum_hints(lanes: int, length: int) -> list[str]:
    """As many vectors as a short sum fills, then as many lanes; one lane adds in order.

    No `vectorize.enable`: it would let LLVM reorder sums that must stay in order.
    """
    vectors = SUM_VECTORS
    while length and vectors * lanes > length and vectors > 1:
        vectors //= 2
    while length and lanes > length and lanes > 1:
        lanes //= 2
    return [
        f'"llvm.loop.vectorize.width", i32 {lanes}',
        f'"llvm.loop.interleave.count", i32 {vectors}',
        # Unrolled whole before the vectoriser sees it, a short sum would be another tree.
        '"llvm.loop.unroll.disable"',
    ]


def _other_hints(request: Request, lanes: int) -> list[str]:
    """Short loops stay loops until they are vectorised: unrolled before, they would stay scalar."""
    hints = ['"llvm.loop.unroll.disable"'] if lanes <= request.length < 8 * lanes else []
    if request.interleave:
        hints.append(f'"llvm.loop.interleave.count", i32 {request.interleave}')
    return hints


class _Hints:
    """Metadata nodes, numbered after those the text has."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.nodes: list[str] = []
        self.known: dict[str, int] = {}

    def loop(self, hints: list[str]) -> str:
        """Text after a jump: a loop node of its own that points at the hints."""
        if not hints:
            return ""
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
