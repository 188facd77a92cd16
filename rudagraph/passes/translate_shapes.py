"""How an operand that broadcasts looks after its op's domain is reshaped.

domain [512,256] -> [4,128,256]:  [512,1] becomes [4,128,1], [256] stays, [512,256] becomes all
domain [4,128,256] -> [512,256]:  [4,1,256] has no form: half of an axis cannot broadcast
"""

from __future__ import annotations

import math
from collections.abc import Iterator

Shape = tuple[int, ...]


def translate(shape: Shape, domain: Shape, new_domain: Shape) -> Shape | None:
    """The operand's shape over the new domain; None where it has none."""
    if domain == new_domain or not shape:
        return shape
    if math.prod(domain) != math.prod(new_domain) or 0 in domain:
        return None
    padded = (1,) * (len(domain) - len(shape)) + shape
    result: list[int] = []
    for start, end, new_start, new_end in _aligned(domain, new_domain):
        given, old, new = padded[start:end], domain[start:end], new_domain[new_start:new_end]
        if given == old:
            result += new
        elif all(extent == 1 for extent in given):
            result += [1] * len(new)
        elif old == new:
            result += given
        else:
            return None
    return _without_leading_ones(tuple(result), new_domain)


def splits(domain: Shape, new_domain: Shape) -> bool:
    """Whether the new domain holds the same elements and merges no two axes of the old one."""
    if math.prod(domain) != math.prod(new_domain) or 0 in domain:
        return False
    return all(
        sum(extent != 1 for extent in domain[start:end]) <= 1
        for start, end, _, _ in _aligned(domain, new_domain)
    )


def _aligned(old: Shape, new: Shape) -> Iterator[tuple[int, int, int, int]]:
    """Smallest stretches of axes of both shapes that hold equally many elements."""
    i = j = 0
    while i < len(old) or j < len(new):
        start, new_start = i, j
        left, right = 1, 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        yield start, i, new_start, j


def _without_leading_ones(shape: Shape, domain: Shape) -> Shape:
    """Broadcasting adds them; only a shape that is the domain itself keeps its own."""
    if shape == domain:
        return shape
    first = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]
