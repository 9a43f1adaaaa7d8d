"""The compiler's earlier answers, on the disk, by content.

Idea: the key is a digest of everything that the answer depends on, so no entry is ever out of date. When all entries
take too much, the least recently used are deleted.

Rule: the cache never prevents a plan. An unreadable entry is compiled again; an unwritable folder is reported once and
then ignored. Entries are replaced at once, so processes may share the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

from anytpu import _env
from anytpu.files.json_text import read_json
from anytpu.files.replacing import replaced

MAX_BYTES = 2 * 2**30
"""Maximum size of all entries together."""

_MAGIC = b"anytpu plan 2\n"
_SUFFIX = ".answer"
_LEFT_OVER_S = 3600.0
_told: set[str] = set()


def read(key: str) -> tuple[dict[str, Any], bytes] | None:
    """Return the entry of a key, header and text, or None if there is no usable one."""
    path = _env.cache_folder() / "plan" / f"{key}{_SUFFIX}"
    try:
        entry = _unpack(path.read_bytes())
    except (OSError, ValueError, zlib.error):
        return None
    with contextlib.suppress(OSError):  # A read-only folder is still useful.
        os.utime(path)
    return entry


def write(key: str, header: dict[str, Any], text: bytes) -> None:
    """Store an answer, and delete the least recently used entries if all take too much."""
    folder = _env.cache_folder() / "plan"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replaced(folder / f"{key}{_SUFFIX}", ".part") as unfinished:
            unfinished.write_bytes(_pack(header, text))
        _make_room(folder)
    except OSError as error:
        _say_once(folder, error.strerror or str(error))


def _pack(header: dict[str, Any], text: bytes) -> bytes:
    load = zlib.compress(json.dumps(header).encode() + b"\n" + text, 1)
    return _MAGIC + hashlib.sha256(load).digest() + load


def _unpack(content: bytes) -> tuple[dict[str, Any], bytes]:
    start = len(_MAGIC) + hashlib.sha256().digest_size
    load = content[start:]
    if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : start] != hashlib.sha256(load).digest():
        raise ValueError("not an answer, or not a whole one")
    head, _, text = zlib.decompress(load).partition(b"\n")
    return read_json(head), text


def _make_room(folder: Path) -> None:
    entries = []
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # Another process makes room too.
            entries.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    total_bytes = sum(size_bytes for _, size_bytes, _ in entries)
    # The least recently used come first, because `read` sets an entry's time.
    for used, size_bytes, path in sorted(entries):
        # A part file of this age belongs to a process that was ended while it wrote.
        left_over = path.endswith(".part") and time.time() - used > _LEFT_OVER_S
        if left_over or (total_bytes > MAX_BYTES and path.endswith(_SUFFIX)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total_bytes -= size_bytes


def _say_once(folder: Path, why: str) -> None:
    if str(folder) not in _told:
        _told.add(str(folder))
        warnings.warn(
            f"What the TPU compiler answers is not kept for the next time: {str(folder)!r}: {why}. Make room there, or "
            "name another folder with the environment variable ANYTPU_CACHE_DIR.",
            stacklevel=2,
        )
