"""PTX as text: made acceptable to the driver, and asked what a kernel does.

Input: PTX that NVVM wrote. Output: PTX with one named entry and an ISA version the oldest supported
driver reads; or facts counted in it. Invariant: instructions are only counted, never changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rudagraph.errors import BuildError

# What driver 580 (CUDA 13.0) reads. NVVM of newer wheels writes newer headers over the same
# instructions.
LATEST_VERSION = (9, 0)
_VERSION = re.compile(r"\.version (\d+)\.(\d+)")
_ENTRY = re.compile(r"\.entry (\S+?)\(")


@dataclass(frozen=True, slots=True)
class Facts:
    """How often something stands in a kernel's PTX."""

    vector_loads: int  # from global memory, two elements or more at once
    vector_stores: int
    widest_load: int  # bytes of the widest access
    widest_store: int
    scalar_loads: int
    scalar_stores: int
    local: int  # accesses to local memory: an array or a spill that is not in registers
    fused: int  # fma, in f32 and f64
    contractable: int  # sums and products without a rounding of their own, which ptxas may fuse
    double: int  # arithmetic in f64
    barriers: int
    shuffles: int
    calls: int


def normalise(text: str, entry: str, cluster: int = 1) -> str:
    """The PTX with its kernel named `entry`, in clusters of blocks, for the drivers supported."""
    match = _ENTRY.search(text)
    if match is None:
        raise BuildError("the compiled text holds no kernel entry")
    text = text.replace(match[1], entry)
    if cluster > 1:
        bounds = f".explicitcluster\n.reqnctapercluster {cluster}, 1, 1\n.maxntid"
        text = text.replace(".maxntid", bounds, 1)
    text = re.sub(r"\.common \.global[^\n]*NumbaEnv[^\n]*\n", "", text)
    version = _VERSION.search(text)
    if version is not None and (int(version[1]), int(version[2])) > LATEST_VERSION:
        text = text.replace(version[0], ".version {}.{}".format(*LATEST_VERSION), 1)
    return text


def facts(text: str) -> Facts:
    """Counts over the whole text."""

    def count(pattern: str) -> int:
        return len(re.findall(pattern, text))

    loads, stores = _widths(text, "ld"), _widths(text, "st")
    return Facts(
        vector_loads=sum(lanes > 1 for lanes, _ in loads),
        vector_stores=sum(lanes > 1 for lanes, _ in stores),
        widest_load=max((width for _, width in loads), default=0),
        widest_store=max((width for _, width in stores), default=0),
        scalar_loads=sum(lanes == 1 for lanes, _ in loads),
        scalar_stores=sum(lanes == 1 for lanes, _ in stores),
        local=count(r"\.local\b"),
        fused=count(r"\bfma\.\S*f(?:32|64)\b") + count(r"\bmad\.\S*f(?:32|64)\b"),
        contractable=count(r"\b(?:add|sub|mul)\.(?:ftz\.)?f(?:32|64)\b"),
        double=count(r"\b(?:add|sub|mul|div|fma)\.\S*f64\b"),
        barriers=count(r"\bbar(?:rier)?\.(?:cta\.)?sync"),
        shuffles=count(r"\bshfl\.sync"),
        calls=count(r"\bcall\b"),
    )


def _widths(text: str, verb: str) -> list[tuple[int, int]]:
    """(lanes, bytes) of each access to global memory."""
    pattern = rf"\b{verb}\.(?:\w+\.)*global(?:\.[\w:]+)*?(?:\.v(\d))?\.[bfsu](\d+)\s"
    return [
        (int(lanes or 1), int(lanes or 1) * int(bits) // 8)
        for lanes, bits in re.findall(pattern, text)
    ]
