"""Write the folder of one checkpoint atomically, and detect damage when reading it.

Idea: `arrays.bin` holds the bytes of all arrays, one after the other. `manifest.json` holds the offset and a digest of
each. Both are written to a folder of a temporary name, the manifest last. The folder is renamed when both are on the
disk.

Rule: a saved digest is computed from the array in memory, and checked on the returned array. No copy is made between
digest and use.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from anytpu.errors import DamageError, FileError
from anytpu.train.checkpoint.manifest import (
    NAME,
    ArrayForm,
    CheckpointManifest,
    Json,
    StoredArray,
    digest_of,
    from_json,
    is_number,
    to_json,
)

ARRAYS = "arrays.bin"
"""The file of the arrays."""

UNFINISHED, DISCARDED = ".unfinished-", ".discarded-"
"""Prefixes of folders that are being written or deleted. The step and a process ID follow."""

_DAMAGED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}
"""Read errors that show a damaged file. Other errors may be temporary, such as a missing permission."""

_NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def number_of(path: Path) -> int | None:
    """Return the step in the name of a path, or None if the name is not a step."""
    name = path.name
    return int(name) if name.isascii() and name.isdecimal() and str(int(name)) == name else None


def step_at(path: Path) -> int | None:
    """Return the step of the checkpoint in a folder, whole or damaged; None if the folder is not a checkpoint.

    A checkpoint's folder gets its number only after its files are written. So a numbered folder without any of these
    files is not a checkpoint.

    Raises:
        OSError: the parent folder cannot be searched.
    """
    step = number_of(path)
    if step is None:
        return None
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return None
    except OSError as error:
        if error.errno in _NOT_FOUND:
            return None
        raise
    try:
        is_checkpoint = not {NAME, ARRAYS}.isdisjoint(os.listdir(path))
    except FileNotFoundError:
        return None
    except OSError:
        # A folder that cannot be listed may be a checkpoint; reading it later reports the reason.
        is_checkpoint = True
    return step if is_checkpoint else None


def is_empty(path: Path) -> bool:
    """Return whether there is an empty folder at a path."""
    return path.is_dir() and not os.listdir(path)


def write_step(
    folder: Path,
    step: int,
    arrays: Mapping[str, np.ndarray],
    trained: Collection[str],
    optimizer_state: Collection[str],
    host: Json,
) -> None:
    """Write the folder of a checkpoint and flush it to the disk. After an error, no files remain.

    Args:
        folder: the folder of all checkpoints.
        step, arrays, trained, optimizer_state, host: as for `Checkpoints.save`.

    Raises:
        OSError: the folder cannot be written.
    """
    # 1. All files are written to a folder with a temporary name.
    temporary = folder / f"{UNFINISHED}{step}-{os.getpid()}"
    temporary.mkdir()
    try:
        # Unbuffered: with a buffer, closing the file after an error would write again, and fail again.
        with (temporary / ARRAYS).open("xb", buffering=0) as file:
            stored = tuple(
                _write_array(file, name, array, is_trained=name in trained, is_optimizer_state=name in optimizer_state)
                for name, array in arrays.items()
            )
            os.fsync(file.fileno())
        # 2. The manifest comes last, under a temporary name until it is on the disk.
        with (temporary / f"{NAME}.unfinished").open("xb", buffering=0) as file:
            _write(file, memoryview(to_json(CheckpointManifest(step, stored, host))))
            os.fsync(file.fileno())
        os.rename(file.name, temporary / NAME)
        flush_folder(temporary)
        # 3. The rename makes the checkpoint visible in one step.
        os.rename(temporary, folder / str(step))
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    flush_folder(folder)


def read_manifest(folder: Path, step: int) -> CheckpointManifest:
    """Read the manifest of a checkpoint.

    Raises:
        DamageError: the manifest is missing, was changed, or belongs to another step.
        FileError: the manifest cannot be read for another reason, or has a newer format.
    """
    with _reported_damage(NAME):
        content = (folder / str(step) / NAME).read_bytes()
    manifest = from_json(content)
    if manifest.step != step:
        raise DamageError(f"its {NAME} is that of step {manifest.step}")
    return manifest


def read_arrays(folder: Path, manifest: CheckpointManifest) -> dict[str, np.ndarray]:
    """Read the arrays of a checkpoint.

    Raises:
        DamageError: an array is missing or was changed.
        FileError: the arrays cannot be read for another reason.
    """
    arrays: dict[str, np.ndarray] = {}
    damaged: list[str] = []
    with _reported_damage(ARRAYS), (folder / str(manifest.step) / ARRAYS).open("rb") as file:
        actual_bytes = os.fstat(file.fileno()).st_size
        if actual_bytes != manifest.size_bytes:
            raise DamageError(f"its {ARRAYS} has {actual_bytes:,} bytes, and {manifest.size_bytes:,} were written")
        for stored in manifest.arrays:
            arrays[stored.name], is_whole = _read(file, stored)
            damaged += [] if is_whole else [stored.name]
    if damaged:
        more = f" and {len(damaged) - 1} more arrays" if len(damaged) > 1 else ""
        raise DamageError(f"the digest of its array {damaged[0]!r}{more} is not the recorded one")
    return arrays


def flush_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_array(file: io.FileIO, name: str, array: np.ndarray, **kind: bool) -> StoredArray:
    if not is_number(array.dtype):
        raise TypeError(f"{name!r} is an array of {array.dtype}, and a checkpoint holds numbers and booleans only")
    offset_bytes = file.tell()
    whole = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    digest = digest_of(whole)
    _write(file, whole.reshape(-1).view(np.uint8).data)
    form = ArrayForm(tuple(array.shape), array.dtype.name, **kind)
    return StoredArray(name, form, offset_bytes, digest)


def _read(file: io.BufferedReader, stored: StoredArray) -> tuple[np.ndarray, bool]:
    """Return an array, and whether its digest is the recorded one."""
    array = np.empty(stored.form.shape, stored.form.dtype)
    file.seek(stored.offset_bytes)
    file.readinto(array.reshape(-1).view(np.uint8).data)
    return array, digest_of(array) == stored.digest


def _write(file: io.FileIO, content: memoryview) -> None:
    while content:
        content = content[file.write(content) :]


@contextlib.contextmanager
def _reported_damage(name: str) -> Iterator[None]:
    """Turn an `OSError` of reading a file into a `DamageError` or `FileError` that names the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileError):
            raise
        if error.errno == errno.ENOENT:
            raise DamageError(f"it has no {name}") from error
        kind = DamageError if error.errno in _DAMAGED else FileError
        raise kind(f"its {name} cannot be read: {error.strerror or error}") from error
