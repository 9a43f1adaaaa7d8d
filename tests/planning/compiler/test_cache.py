from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from anytpu.planning.compiler import cache

HEADER, TEXT = {"peak_bytes": 7, "compiler": "libtpu 1"}, b"HloModule step\n" * 100


def test_what_was_written_is_read(cache_folder: Path):
    key = "0123abcd"
    assert cache.read(key) is None
    cache.write(key, HEADER, TEXT)
    assert cache.read(key) == (HEADER, TEXT)
    (entry,) = cache_folder.iterdir()
    assert entry.stat().st_size < len(TEXT) / 4


def test_an_entry_of_a_folder_that_is_only_read_from(monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    cache.write("key", HEADER, TEXT)
    monkeypatch.setattr(cache.os, "utime", refuse)
    assert cache.read("key") == (HEADER, TEXT)


@pytest.mark.parametrize("damage", ["cut", "altered", "empty", "other"])
def test_an_entry_that_is_damaged_is_none(cache_folder: Path, damage: str):
    cache.write("key", HEADER, TEXT)
    (entry,) = cache_folder.iterdir()
    content = entry.read_bytes()
    middle = len(content) // 2
    altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    entry.write_bytes({"cut": content[:middle], "altered": altered, "empty": b"", "other": b"x" * 99}[damage])
    assert cache.read("key") is None
    cache.write("key", HEADER, TEXT)
    assert cache.read("key") == (HEADER, TEXT)


def test_the_least_recently_used_make_room(cache_folder: Path, monkeypatch: pytest.MonkeyPatch):
    for number, key in enumerate(("a", "b", "c")):
        cache.write(key, HEADER, os.urandom(1000))
        os.utime(cache_folder / f"{key}.answer", (number, number))
    assert cache.read("a") is not None  # used just now
    monkeypatch.setattr(cache, "MAX_BYTES", 3500)
    cache.write("d", HEADER, os.urandom(1000))
    assert sorted(path.stem for path in cache_folder.iterdir()) == ["a", "c", "d"]


def test_what_a_killed_process_left_goes(cache_folder: Path):
    cache.write("a", HEADER, TEXT)
    for name, used_s in (("old.part", 0), ("new.part", None)):
        (cache_folder / name).write_bytes(b"half")
        os.utime(cache_folder / name, None if used_s is None else (used_s, used_s))
    cache.write("b", HEADER, TEXT)
    assert sorted(path.name for path in cache_folder.iterdir()) == ["a.answer", "b.answer", "new.part"]


def test_a_folder_that_cannot_be_used_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("in its place")
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning) as said:
        cache.write("key", HEADER, TEXT)
    assert [str(warning.message) for warning in said] == [
        f"What the TPU compiler answers is not kept for the next time: {str(tmp_path / 'file/plan')!r}: Not a "
        "directory. Make room there, or name another folder with the environment variable ANYTPU_CACHE_DIR."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write("key", HEADER, TEXT)
    assert cache.read("key") is None


def test_a_user_without_a_home_is_told_once(monkeypatch: pytest.MonkeyPatch):
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "ANYTPU_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.warns(UserWarning) as said:
        cache.write("key", HEADER, TEXT)
        cache.write("key", HEADER, TEXT)
    assert [str(warning.message) for warning in said] == [
        "What the TPU compiler answers is not kept for the next time: '/dev/null/no-home/.cache/anytpu/plan': Not a "
        "directory. Make room there, or name another folder with the environment variable ANYTPU_CACHE_DIR."
    ]
    assert cache.read("key") is None


FULL = """
import os, resource, signal, sys, warnings
from anytpu.planning.compiler import cache

# The limit on the size of files stands in for the disk: writing fails half way.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # Or Python cuts off what it compiles.
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    cache.write("key", {}, os.urandom(5000))
print(*[one.message for one in said], sep="\\n")
"""


def test_a_disk_that_is_full(cache_folder: Path):
    said = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True)
    assert said.stderr == ""
    assert said.stdout == (
        f"What the TPU compiler answers is not kept for the next time: {str(cache_folder)!r}: File too large. Make "
        "room there, or name another folder with the environment variable ANYTPU_CACHE_DIR.\n"
    )
    assert list(cache_folder.iterdir()) == []


WRITER = """
import sys
from anytpu.planning.compiler import cache

for number in range(40):
    cache.write(f"{number % 4}", {"writer": sys.argv[1]}, sys.argv[1].encode() * 50_000)
    header, text = cache.read(f"{number % 4}")
    assert text == header["writer"].encode() * 50_000, number
"""


def test_processes_share_the_folder():
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
