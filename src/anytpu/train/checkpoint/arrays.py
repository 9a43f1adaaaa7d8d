"""Write the arrays of a checkpoint as one stream of bytes, and check their digests when reading it.

Rule: a saved digest is computed from the array in memory, and checked on the returned array. No copy is made between
digest and use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

from anytpu.errors import DamageError
from anytpu.train.checkpoint.manifest import ArrayForm, CheckpointManifest, StoredArray, digest_of, is_number


class Sink(Protocol):
    """A stream that bytes are written to."""

    def write(self, content: memoryview, /) -> int | None:
        """Write the first bytes of `content`, at least one, and return their number."""
        ...


class ByteSource(Protocol):
    """A stream that bytes are read from."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the first bytes of `buffer`, and return their number; 0 at the end of the stream."""
        ...


def write_arrays(
    sink: Sink, arrays: Mapping[str, np.ndarray], trained: Collection[str], optimizer_state: Collection[str]
) -> tuple[StoredArray, ...]:
    """Write the bytes of all arrays, one after the other, and return their forms, offsets and digests.

    Raises:
        TypeError: an array has no numbers.
        OSError, FileError: the stream cannot be written.
    """
    stored, offset_bytes = [], 0
    for name, array in arrays.items():
        if not is_number(array.dtype):
            raise TypeError(f"{name!r} is an array of {array.dtype}, and a checkpoint holds numbers and booleans only")
        whole = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        digest = digest_of(whole)
        write_all(sink, whole.reshape(-1).view(np.uint8).data)
        form = ArrayForm(tuple(array.shape), array.dtype.name, name in trained, name in optimizer_state)
        stored.append(StoredArray(name, form, offset_bytes, digest))
        offset_bytes += whole.nbytes
    return tuple(stored)


def read_arrays(source: ByteSource, manifest: CheckpointManifest) -> dict[str, np.ndarray]:
    """Read all arrays.

    Raises:
        DamageError: an array was changed or cut off.
        OSError, FileError: the stream cannot be read.
    """
    arrays: dict[str, np.ndarray] = {}
    damaged: list[str] = []
    for stored in manifest.arrays:
        array = arrays[stored.name] = np.empty(stored.form.shape, stored.form.dtype)
        _read_all(source, array.reshape(-1).view(np.uint8).data)
        damaged += [] if digest_of(array) == stored.digest else [stored.name]
    if damaged:
        more = f" and {len(damaged) - 1} more arrays" if len(damaged) > 1 else ""
        raise DamageError(f"the digest of its array {damaged[0]!r}{more} is not the recorded one")
    return arrays


def write_all(sink: Sink, content: memoryview) -> None:
    """Write all bytes to a stream that may take some of them at a time."""
    while content:
        content = content[sink.write(content) :]


def _read_all(source: ByteSource, buffer: memoryview) -> None:
    while buffer:
        count = source.readinto(buffer)
        if not count:
            return  # The digest reports the missing bytes.
        buffer = buffer[count:]
