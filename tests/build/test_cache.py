"""The kernel cache: whole entries or none, whatever happens to the directory."""

import os
from pathlib import Path

import pytest

from rudagraph.build.cache import KernelCache, digest, digest_files

KEY = digest(["a kernel"])


def entry(cache: KernelCache) -> Path:
    (path,) = [path for path in cache.directory.rglob("*") if path.is_file()]
    return path


def test_what_is_stored_comes_back(tmp_path):
    cache = KernelCache(tmp_path / "not" / "there" / "yet")
    assert cache.load(KEY) is None
    cache.store(KEY, b"machine code")
    assert cache.load(KEY) == b"machine code"
    assert cache.load(digest(["another"])) is None
    assert entry(cache).name == KEY[2:]  # and nothing temporary is left


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content + b"!",
        lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
        lambda content: b"another format\n" + content,
    ],
)
def test_a_damaged_entry_is_ignored_and_rewritten(tmp_path, damage):
    cache = KernelCache(tmp_path)
    cache.store(KEY, b"machine code")
    path = entry(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.load(KEY) is None
    cache.store(KEY, b"machine code")
    assert cache.load(KEY) == b"machine code"


def test_an_entry_moved_to_another_key_is_ignored(tmp_path):
    cache = KernelCache(tmp_path)
    cache.store(KEY, b"machine code")
    other = digest(["another"])
    path = tmp_path / other[:2] / other[2:]
    path.parent.mkdir(exist_ok=True)
    entry(cache).rename(path)
    assert cache.load(other) is None


def test_a_directory_that_cannot_be_used_is_survived_in_silence(tmp_path, caplog, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    cache = KernelCache(blocked)
    cache.store(KEY, b"machine code")
    assert cache.load(KEY) is None
    assert capsys.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into read-only directories")
def test_a_read_only_directory_still_serves(tmp_path):
    cache = KernelCache(tmp_path)
    cache.store(KEY, b"machine code")
    tmp_path.chmod(0o555)
    try:
        cache.store(digest(["another"]), b"more")
        assert cache.load(KEY) == b"machine code"
    finally:
        tmp_path.chmod(0o755)


def test_a_failing_rename_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "replace", fail)
    KernelCache(tmp_path).store(KEY, b"machine code")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_environment_names_the_place_or_switches_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv("RUDAGRAPH_CACHE", str(tmp_path))
    assert KernelCache.default().directory == tmp_path
    monkeypatch.setenv("RUDAGRAPH_CACHE", "off")
    cache = KernelCache.default()
    cache.store(KEY, b"machine code")
    assert cache.directory is None and cache.load(KEY) is None
    monkeypatch.delenv("RUDAGRAPH_CACHE")
    assert KernelCache.default().directory == Path("~/.cache/rudagraph").expanduser()


def test_keys_tell_texts_and_their_borders_apart(tmp_path):
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("one")
    second.write_text("two")
    before = digest_files([first, second])
    assert before == digest_files([second, first])
    second.write_text("three")
    assert before != digest_files([first, second])
