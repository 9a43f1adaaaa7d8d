"""`Store`: the files of checkpoints, in a folder of this machine or in a bucket.

Idea: a checkpoint is a manifest and the bytes of its arrays. A folder has renames, so half a checkpoint never has its
step's name. A bucket has none, so there the manifest is written last and deleted first, and decides alone.

Rule: a store knows files and steps. It does not know the content of a manifest, digests, or which checkpoints are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from anytpu.train.checkpoint.arrays import ByteSource, Sink

ARRAYS = "arrays.bin"
"""The file of the arrays in a folder."""

_PART = re.compile(r"arrays(-\d{5,})?\.bin")


class Store(Protocol):
    """The files of the checkpoints of one run. Methods raise OSError or FileError if a file cannot be used.

    Attributes:
        name: path or URL.
    """

    name: str

    def writing(self) -> AbstractContextManager[Any]:
        """Lock the store against other writers, and delete the remains of killed writers."""
        ...

    def free_bytes(self) -> int | None:
        """Return the room for checkpoints, in bytes; None: no limit is known."""
        ...

    def steps(self) -> dict[int, bool]:
        """Return the steps of the checkpoints, oldest first, each with whether it has a manifest."""
        ...

    def is_taken(self, step: int) -> bool:
        """Return whether there are files under the name of a step."""
        ...

    def write(self, step: int, write: Callable[[Sink], bytes]) -> None:
        """Write a checkpoint. After an error, no files remain.

        Args:
            step: the step, whose name is free.
            write: writes the arrays and returns the manifest.
        """
        ...

    def read_manifest(self, step: int) -> bytes:
        """Return the manifest of a checkpoint.

        Raises:
            DamageError: it is missing.
        """
        ...

    def arrays(self, step: int) -> AbstractContextManager[tuple[ByteSource, int]]:
        """Return a context with the bytes of the arrays and their number.

        Raises:
            DamageError: they are missing, or cannot be read any more.
        """
        ...

    def set_aside(self, step: int) -> str:
        """Rename a checkpoint, so that its step's name is free; return its new path or URL."""
        ...

    def delete(self, step: int) -> None:
        """Delete a checkpoint. If this is interrupted, no damaged one remains."""
        ...

    def saved(self, step: int) -> tuple[float, int]:
        """Return the time of the last change of a checkpoint, in seconds since 1970, and its size in bytes."""
        ...

    def empty_steps(self) -> list[int]:
        """Return the steps whose folders are empty."""
        ...


def number_of(name: str) -> int | None:
    """Return the step that a name is, or None."""
    return int(name) if name.isascii() and name.isdecimal() and str(int(name)) == name else None


def part_name(index: int) -> str:
    """Return the name of a part of the arrays in a bucket, such as "arrays-00000.bin"."""
    return f"arrays-{index:05}.bin"


def parts_in(names: Iterable[str]) -> list[str]:
    """Return the names that are the file of the arrays or its parts, in order: a bucket may be copied to a folder."""
    return sorted(filter(_PART.fullmatch, names), key=lambda name: (len(name), name))
