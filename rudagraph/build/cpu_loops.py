"""Interleaving of a kernel's loops, as its text asks for by a line `INTERLEAVE = 4`.

Input: LLVM text. Output: the same with a hint on every loop. Two to four vectors in flight hide the
latency of long chains: the core's own window holds less than one polynomial and its rounding.
"""

from __future__ import annotations

import re

_REQUEST = re.compile(r"^INTERLEAVE = (\d+)$", re.MULTILINE)
_LABEL = re.compile(r'^"?([\w.$]+)"?:')
_JUMP = re.compile(r'^  br label %"?([\w.$]+)"?$')


def requested(text: str) -> int:
    """The count in a kernel's text; 0 leaves the choice to LLVM."""
    match = _REQUEST.search(text)
    return int(match[1]) if match else 0


def with_interleaving(text: str, count: int) -> str:
    """LLVM text whose jumps backwards ask for `count` iterations at a time."""
    if not count:
        return text
    lines: list[str] = []
    nodes: list[str] = []
    seen: set[str] = set()
    first = 1 + max((int(number) for number in re.findall(r"!(\d+)", text)), default=0)
    for line in text.splitlines():
        if line.startswith("define "):
            seen.clear()
        if label := _LABEL.match(line):
            seen.add(label[1])
        jump = _JUMP.match(line)
        if jump and jump[1] in seen:
            number = first + 1 + len(nodes)
            line += f", !llvm.loop !{number}"
            nodes.append(f"!{number} = distinct !{{!{number}, !{first}}}")
        lines.append(line)
    hint = f'!{first} = !{{!"llvm.loop.interleave.count", i32 {count}}}'
    return "\n".join([*lines, hint, *nodes]) + "\n"
