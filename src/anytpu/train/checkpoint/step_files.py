"""The folder of one checkpoint: written so that it is whole or not there, read so that damage is named.

Idea: the bytes of all arrays stand one after the other in `arrays.bin`; `manifest.json` says where, and has a digest of
each. Both are written to a folder of another name, the manifest last, and the folder is renamed when they are on the
disk.

Rule: the digest of a saved array is that of the array in memory. The digest that is checked is that of the array that
is returned: between digest and use lies no other copy.
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
    Json,
    Manifest,
    StoredArray,
    digest_of,
    from_json,
    is_number,
    to_json,
)

ARRAYS = "arrays.bin"
"""The file of the arrays."""

UNFINISHED, DISCARDED = ".unfinished-", ".discarded-"
"""How the names of folders begin that are being written, and that are being deleted. The step and a process follow."""

_DAMAGED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}
"""Errors of reading that say that a file is not what was written. Others may pass, such as a missing right."""

_NOTHING = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def number_of(path: Path) -> int | None:
    """Return the step that a path is named after, if any."""
    name = path.name
    return int(name) if name.isascii() and name.isdecimal() and str(int(name)) == name else None


def step_at(path: Path) -> int | None:
    """Return the step of the checkpoint in a folder, whole or damaged; None for what is not ours.

    A checkpoint gets its number with its files inside, so a numbered folder with none of them is not ours.

    Raises:
        OSError: the folder around it cannot be searched.
    """
    step = number_of(path)
    if step is None:
        return None
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return None
    except OSError as error:
        if error.errno in _NOTHING:
            return None
        raise
    try:
        is_ours = not {NAME, ARRAYS}.isdisjoint(os.listdir(path))
    except FileNotFoundError:
        return None
    except OSError:
        # What cannot be seen may be ours; reading it names the reason.
        is_ours = True
    return step if is_ours else None


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
    """Write the folder of a checkpoint; when this returns, it is on the disk. An error leaves nothing behind.

    Args:
        folder: the folder of all checkpoints.
        step: its number, and the name of its folder.
        arrays: arrays of numbers or booleans by name.
        trained: the names of those that are trainable weights.
        optimizer_state: the names of those that belong to an optimizer.
        host: plain JSON.

    Raises:
        OSError: it cannot be written.
    """
    beside = folder / f"{UNFINISHED}{step}-{os.getpid()}"
    beside.mkdir()
    try:
        # Without buffers: closing the file after an error would write again, and fail again.
        with (beside / ARRAYS).open("xb", buffering=0) as file:
            stored = tuple(
                _written(file, name, array, is_trained=name in trained, is_optimizer_state=name in optimizer_state)
                for name, array in arrays.items()
            )
            os.fsync(file.fileno())
        with (beside / f"{NAME}.unfinished").open("xb", buffering=0) as file:
            _write(file, memoryview(to_json(Manifest(step, stored, host))))
            os.fsync(file.fileno())
        os.rename(file.name, beside / NAME)
        flush_folder(beside)
        os.rename(beside, folder / str(step))
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    flush_folder(folder)


def read_manifest(folder: Path, step: int) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        DamageError: it is not there, or not what was written for this step.
        FileError: it cannot be read for another reason, or is of a newer format.
    """
    with _damage_named(NAME):
        content = (folder / str(step) / NAME).read_bytes()
    manifest = from_json(content)
    if manifest.step != step:
        raise DamageError(f"its {NAME} is that of step {manifest.step}")
    return manifest


def read_arrays(folder: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    """Read the arrays of a checkpoint.

    Raises:
        DamageError: one is not what was written.
        FileError: they cannot be read for another reason.
    """
    place = folder / str(manifest.step)
    arrays: dict[str, np.ndarray] = {}
    damaged: list[str] = []
    for name, size_bytes in manifest.sizes_bytes().items():
        with _damage_named(name), (place / name).open("rb") as file:
            there_bytes = os.fstat(file.fileno()).st_size
            if there_bytes != size_bytes:
                raise DamageError(f"its {name} has {there_bytes:,} bytes, and {size_bytes:,} were written")
            for stored in manifest.arrays:
                if stored.file == name:
                    arrays[stored.name], is_whole = _read(file, stored)
                    damaged += [] if is_whole else [stored.name]
    if damaged:
        more = f" and {len(damaged) - 1} more arrays" if len(damaged) > 1 else ""
        raise DamageError(f"the digest of its array {damaged[0]!r}{more} is not the recorded one")
    return arrays


def flush_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system can do so."""
    if os.name != "posix":  # Windows opens no folder.
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _written(file: io.FileIO, name: str, array: np.ndarray, **kind: bool) -> StoredArray:
    if not is_number(array.dtype):
        raise TypeError(f"{name!r} is an array of {array.dtype}, and a checkpoint holds numbers and booleans only")
    offset_bytes = file.tell()
    whole = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    digest = digest_of(whole)
    _write(file, whole.reshape(-1).view(np.uint8).data)
    form = ArrayForm(tuple(array.shape), array.dtype.name, **kind)
    return StoredArray(name, form, ARRAYS, offset_bytes, digest)


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
def _damage_named(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileError):
            raise
        if error.errno == errno.ENOENT:
            raise DamageError(f"it has no {name}") from error
        kind = DamageError if error.errno in _DAMAGED else FileError
        raise kind(f"its {name} cannot be read: {error.strerror or error}") from error
