"""Operands under a reshaped domain: the same elements meet, or the answer is None."""

from __future__ import annotations

import itertools

import pytest
import torch

from rudagraph.passes.translate_shapes import translate


@pytest.mark.parametrize(
    ("shape", "domain", "new", "expected"),
    [
        ((6, 1), (6, 4), (2, 3, 4), (2, 3, 1)),
        ((4,), (6, 4), (2, 3, 4), (4,)),
        ((6, 4), (6, 4), (2, 3, 4), (2, 3, 4)),
        ((2, 1, 4), (2, 3, 4), (6, 4), None),
        ((2, 1, 1), (2, 3, 4), (2, 12), (2, 1)),
        ((), (6, 4), (24,), ()),
        ((2, 3), (2, 3), (2, 3, 1), (2, 3, 1)),
        ((1, 3), (2, 3), (2, 3, 1), (3, 1)),
        ((4,), (6, 4), (24,), None),
        ((3,), (3,), (4,), None),
        ((0, 4), (0, 4), (0, 2, 2), None),
    ],
)
def test_cases(
    shape: tuple[int, ...],
    domain: tuple[int, ...],
    new: tuple[int, ...],
    expected: tuple[int, ...] | None,
) -> None:
    assert translate(shape, domain, new) == expected


DOMAINS = ((2, 3, 4), (6, 4), (24,), (2, 12), (2, 3, 4, 1), (1, 6, 4), (2, 3, 2, 2), (6, 1, 4))


@pytest.mark.parametrize(("domain", "new"), list(itertools.permutations(DOMAINS, 2)))
def test_broadcasting_commutes_with_the_reshape(
    domain: tuple[int, ...], new: tuple[int, ...]
) -> None:
    for ones in itertools.product((False, True), repeat=len(domain)):
        shape = tuple(1 if one else extent for one, extent in zip(ones, domain, strict=True))
        found = translate(shape, domain, new)
        if found is None:
            continue
        x = torch.randn(shape)
        wanted = x.expand(domain).reshape(new)
        assert torch.equal(x.reshape(found).expand(new), wanted)
