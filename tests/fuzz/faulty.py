"""Batteries whose readers have one fault each, to test what finds faults."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from anytpu.errors import DataError
from anytpu.files.memory import check_memory
from fuzz.battery import Battery

SAMPLE = b"the content"


def _other(path: Path) -> Any:
    return path.read_bytes()


def _foreign(path: Path) -> Any:
    if path.read_bytes() != SAMPLE:
        raise KeyError("x")


def _unclear(path: Path) -> Any:
    if path.read_bytes() != SAMPLE:
        raise DataError("it is damaged")


def _crash(path: Path) -> Any:
    if path.read_bytes() != SAMPLE:
        os.abort()


def _memory(path: Path) -> Any:
    if path.read_bytes() != SAMPLE:
        # The machine has it: a reader that looks, and that would not take it under a limit, is found too.
        check_memory(3 * 2**29)
        try:
            bytearray(3 * 2**29)
        except MemoryError as error:
            raise DataError(f"{path} is too large") from error


def _slow(path: Path) -> Any:
    while path.read_bytes() != SAMPLE:
        pass


def _clean(path: Path) -> Any:
    if path.read_bytes() != SAMPLE:
        raise DataError(f"{path} is damaged")


class _Content(bytes):
    """Content that the readers above take for a file."""

    def read_bytes(self) -> bytes:
        return bytes(self)


def _damaged(content: bytes, draw: Any) -> bytes:
    return content + b"!"


BATTERIES = tuple(
    Battery(name, lambda: [SAMPLE], read, damage=(_damaged,), is_checked=True, limit_s=0.5)
    for name, read in {
        "wrong": _other,
        "foreign": _foreign,
        "unclear": _unclear,
        "crash": _crash,
        "memory": _memory,
        "slow": _slow,
        "refused": _clean,
    }.items()
)

IN_BLOCKS = tuple(
    dataclasses.replace(
        battery,
        name=f"{battery.name} in blocks",
        is_checked=False,
        names_file=False,
        parse=lambda content, read=battery.read: read(_Content(content)),
    )
    for battery in BATTERIES
    if battery.name in ("foreign", "crash", "refused")
)
