"""The few facts about an ELF object that build and runtime must know: its symbols.

Input: the bytes of a 64-bit little-endian relocatable object. Output: names of the symbols it
defines for others and of those it needs. Invariant: damaged bytes raise BuildError, nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rudagraph.errors import BuildError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_RELOCATABLE = 1
_LOCAL = 0


@dataclass(frozen=True, slots=True)
class Symbols:
    """Global symbols of one object."""

    defined: frozenset[str]
    undefined: frozenset[str]


def read_symbols(code: bytes, where: str = "") -> Symbols:
    """Global symbols of an ELF object."""
    try:
        return _read(code)
    except (struct.error, ValueError, IndexError, UnicodeDecodeError) as error:
        raise BuildError(
            f"these {len(code)} bytes are not a 64-bit ELF object: {error}",
            where,
            "build the kernel again on this machine",
        ) from error


def _read(code: bytes) -> Symbols:
    header = _HEADER.unpack_from(code)
    identity, kind, offset, size, count = header[0], header[1], header[6], header[11], header[12]
    if identity[:6] != b"\x7fELF\x02\x01" or kind != _RELOCATABLE or size != _SECTION.size:
        raise ValueError("wrong header")
    sections = [_SECTION.unpack_from(code, offset + index * size) for index in range(count)]
    defined: set[str] = set()
    undefined: set[str] = set()
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        table = _bytes(code, section)
        names = _bytes(code, sections[section[6]])
        for name, info, _, home, _, _ in _SYMBOL.iter_unpack(table):
            if info >> 4 == _LOCAL or not name:
                continue
            text = names[name : names.index(b"\0", name)].decode("ascii")
            (defined if home else undefined).add(text)
    return Symbols(frozenset(defined), frozenset(undefined))


def _bytes(code: bytes, section: tuple[int, ...]) -> bytes:
    start, length = section[4], section[5]
    if start + length > len(code):
        raise ValueError("cut short")
    return code[start : start + length]
