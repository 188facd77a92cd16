"""Built kernels on disk: bytes under a key of all that they were made from.

Input: a key (SHA-256 of source, versions, target). Output: the bytes stored under it, or None.
Invariant: an entry is whole or absent. It is written beside its place and renamed, carries its own
checksum, and whatever cannot be read or written is only logged: the cache changes no result.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rudagraph.options import environment

_LOG = logging.getLogger(__name__)
_MAGIC = b"rudagraph kernel 1\n"
_CHECKSUM_LENGTH = 32


@dataclass(frozen=True, slots=True)
class KernelCache:
    """A directory of entries; `directory` None is a cache that holds nothing."""

    directory: Path | None

    @classmethod
    def default(cls) -> KernelCache:
        """The cache that RUDAGRAPH_CACHE names; `off` or an empty text switches it off."""
        place = environment("RUDAGRAPH_CACHE").strip()
        if place.lower() in ("", "off"):
            return cls(None)
        try:
            return cls(Path(place).expanduser())
        except RuntimeError as error:  # there is no home
            _LOG.debug("no kernel cache: %s", error)
            return cls(None)

    def load(self, key: str) -> bytes | None:
        """What is stored under the key, if it is whole."""
        path = self._path(key)
        if path is None:
            return None
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _LOG.debug("cannot read %s: %s", path, error)
            return None
        start = len(_MAGIC) + _CHECKSUM_LENGTH
        payload = content[start:]
        if content[:start] != _MAGIC + hashlib.sha256(key.encode() + payload).digest():
            _LOG.debug("ignoring damaged entry %s", path)
            return None
        return payload

    def store(self, key: str, payload: bytes) -> None:
        """Writes an entry; another process may write the same one at the same time."""
        path = self._path(key)
        if path is None:
            return
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(key.encode() + payload).digest() + payload)
            os.replace(temporary, path)
        except OSError as error:
            _LOG.debug("cannot write %s: %s", path, error)
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def _path(self, key: str) -> Path | None:
        return None if self.directory is None else self.directory / key[:2] / key[2:]


def digest(parts: Iterable[str]) -> str:
    """A key of texts, each in its place: ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        state.update(len(encoded).to_bytes(8, "little"))
        state.update(encoded)
    return state.hexdigest()


def digest_files(paths: Iterable[Path]) -> str:
    """A key of the contents of source files, in order of name."""
    return digest(
        text for path in sorted(paths) for text in (path.name, path.read_text(encoding="utf-8"))
    )
