"""Arrays that are named on the command line: read from .npy and .npz files, counted against labels, written to them.

Rule: what a file holds is told in words of ours, with the command of NumPy that writes a right one; no file is ever
unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from anytpu.cli.outputs import check_file, check_suffix
from anytpu.errors import SettingError
from anytpu.files.memory import check_memory
from anytpu.files.npy import read_header, read_values
from anytpu.files.opening import open_file
from anytpu.files.zips import Zip

SUFFIXES = (".npy", ".npz")
"""How the names of files of arrays end."""

_NPY = b"\x93NUMPY"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_MEMBER = ".npy"


def read_arrays(path: Path) -> Any:
    """Return what a file holds.

    Returns:
        The array of a .npy file, or of a .npz file with one array; else those of a .npz file: a list, where NumPy named
        them (arr_0, arr_1, ...), or a dictionary by their names.

    Raises:
        SettingError: it cannot be read, is something else, is cut short or damaged, or holds Python objects.
    """
    try:
        with open_file(path) as stream:
            return _read(path, stream)
    except OSError as error:
        raise SettingError(
            f"{str(path)!r} cannot be read as an array: {reason(error)}; np.save({str(path)!r}, x) writes one"
        ) from error


def _read(path: Path, stream: IO[bytes]) -> Any:
    start = stream.read(len(_NPY))
    if start != _NPY and not start.startswith(_ZIP):
        right = str(path.with_suffix(".npy"))
        raise SettingError(f"{str(path)!r} is no file of arrays, .npy or .npz; np.save({right!r}, x) writes one")
    stream.seek(0)
    try:
        return _array(path, stream, path.stat().st_size) if start == _NPY else _unzipped(path)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(
            f"{str(path)!r} is cut short or damaged; write it again, with np.save or np.savez"
        ) from error


def _unzipped(path: Path) -> Any:
    with Zip(path) as archive:
        if not all(name.endswith(_MEMBER) for name in archive) or not list(archive):
            right = str(path.with_suffix(".npz"))
            raise SettingError(
                f"{str(path)!r} is a zip file, and no .npz file of arrays; np.savez({right!r}, x=x) writes one"
            )
        _check_ratio(path, archive)
        _check_room(path, archive.unpacked_bytes())
        found = {name.removesuffix(_MEMBER): _member(path, archive, name) for name in archive}
    if len(found) == 1:
        return next(iter(found.values()))
    numbered = [f"arr_{number}" for number in range(len(found))]
    return [found[name] for name in numbered] if set(numbered) == set(found) else found


def _member(path: Path, archive: Zip, name: str) -> np.ndarray:
    with archive.open(name) as stream:
        return _array(path, stream, archive.size_bytes(name))


def _array(path: Path, stream: IO[bytes], size_bytes: int) -> np.ndarray:
    _check_room(path, size_bytes)
    header = read_header(stream)
    if header.has_objects:
        raise SettingError(
            f"{str(path)!r} holds Python objects, and no numbers: x.astype('float32') makes numbers of an array"
        )
    return read_values(stream, header, size_bytes)


def _check_room(path: Path, size_bytes: int) -> None:
    try:
        check_memory(size_bytes)
    except ValueError as error:
        raise SettingError(f"{str(path)!r} is too large: {error}; give fewer rows of it, x[:1000]") from error


def _check_ratio(path: Path, archive: Zip) -> None:
    try:
        archive.check_ratio()
    except ValueError as error:
        larger = f"{path.stem}_stored.npz"
        raise SettingError(
            f"{str(path)!r} is too large: {error}; if you trust it, np.savez({larger!r}, **np.load({str(path)!r})) "
            "writes it uncompressed, and that is read; or give fewer rows of it, x[:1000]"
        ) from error


def read_labels(path: Path) -> np.ndarray:
    """Return the one array of a file, for `accuracy`.

    Raises:
        SettingError: as `read_arrays` does, or it holds several.
    """
    found = read_arrays(path)
    if not isinstance(found, np.ndarray):
        raise SettingError(f"--labels wants one array, and {str(path)!r} holds {len(found)}; np.save writes one")
    return found


def accuracy(scores: np.ndarray, labels: np.ndarray, path: Path) -> str:
    """Return how many rows have their greatest score where the label is: "9 of 10 right, 90.00%".

    Args:
        scores: `(rows, ...)`, one a class.
        labels: a class a row, from 0.
        path: the file that they are from, for the errors.

    Raises:
        SettingError: another number of labels, labels that are no classes of these scores, or scores of one class.
    """
    flat = scores.reshape(len(scores), math.prod(scores.shape[1:]))
    if flat.shape[1] < 2 or labels.reshape(-1).shape != (len(scores),):
        raise SettingError(
            f"--labels wants one class a row, and a program with a score a class; the program gave {scores.shape}, the "
            f"file has {labels.shape}"
            + ("; np.argmax(y, axis=1) gives the classes" if labels.shape == flat.shape else "")
        )
    wrong = _no_class(labels.reshape(-1), flat.shape[1])
    if wrong.size:
        raise SettingError(
            f"--labels wants the number of a class for each row, from 0 to {flat.shape[1] - 1}, as the program has "
            f"scores; {str(path)!r} holds {labels.dtype}, such as {wrong[0].item()!r}"
        )
    if not len(scores):
        return "0 of 0 right"
    right = int((flat.argmax(axis=1) == labels.reshape(-1)).sum())
    return f"{right} of {len(scores)} right, {right / len(scores):.2%}"


def _no_class(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the labels that are no number of a class."""
    if labels.dtype.kind not in "iubf":
        return labels
    return labels[~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))]


def check_output(path: Path | None) -> None:
    """Check a file that arrays will be written to; None is right.

    Raises:
        SettingError: it cannot be written, or its name ends otherwise.
    """
    check_file("-o", path, "y.npy")
    check_suffix("-o", path, SUFFIXES, "a result")


def check_room(path: Path | None, count: int) -> None:
    """Check that a file of that name holds so many arrays; None is right.

    Raises:
        SettingError: a .npy file, which holds one, and there are more.
    """
    if path is not None and path.suffix == ".npy" and count > 1:
        raise SettingError(f"the program has {count} outputs; name a .npz file: -o {path.with_suffix('.npz')}")


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> Path:
    """Write arrays to a .npy file, or as output0, output1, ... to a .npz file, and return its path.

    Raises:
        SettingError: it cannot be written, or has room for one.
    """
    check_room(path, len(arrays))
    try:
        if path.suffix == ".npz":
            named: dict[str, Any] = {f"output{number}": one for number, one in enumerate(arrays)}
            np.savez(path, **named)
        else:
            np.save(path, arrays[0])
    except OSError as error:
        raise SettingError(f"{str(path)!r} cannot be written: {reason(error)}") from error
    return path


def reason(error: Exception) -> str:
    """Return why, in a line: what the system says of a file, or else how the error begins."""
    return getattr(error, "strerror", None) or str(error).splitlines()[0]
