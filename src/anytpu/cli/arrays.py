"""Read and write the arrays of the command line, .npy and .npz files, and compare scores with labels.

Rule: every error names the NumPy call that writes a valid file. No file is ever unpickled.
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
from anytpu.files.replacing import replaced
from anytpu.files.zips import Zip

SUFFIXES = (".npy", ".npz")
"""Suffixes of array files."""

_NPY = b"\x93NUMPY"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_MEMBER = ".npy"


def read_arrays(path: Path) -> Any:
    """Return the array or arrays of a file.

    Returns:
        The array of a .npy file, or of a .npz file with one array. For a .npz file with several: a list if NumPy
        named them (arr_0, arr_1, ...), else a dictionary by their names.

    Raises:
        SettingError: the file cannot be read, has another format, is truncated or damaged, or holds Python objects.
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
        valid = str(path.with_suffix(".npy"))
        raise SettingError(f"{str(path)!r} is not an array file, .npy or .npz; np.save({valid!r}, x) writes one")
    stream.seek(0)
    try:
        return _array(path, stream, path.stat().st_size) if start == _NPY else _unzipped(path)
    except SettingError:
        raise
    except ValueError as error:
        raise SettingError(f"{str(path)!r} is truncated or damaged; write it again with np.save or np.savez") from error


def _unzipped(path: Path) -> Any:
    with Zip(path) as archive:
        if not all(name.endswith(_MEMBER) for name in archive) or not list(archive):
            valid = str(path.with_suffix(".npz"))
            raise SettingError(
                f"{str(path)!r} is a zip file, but not an .npz file of arrays; np.savez({valid!r}, x=x) writes one"
            )
        _check_ratio(path, archive)
        _check_room(path, archive.unpacked_bytes())
        arrays = {name.removesuffix(_MEMBER): _member(path, archive, name) for name in archive}
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    unnamed = [f"arr_{index}" for index in range(len(arrays))]
    return [arrays[name] for name in unnamed] if set(unnamed) == set(arrays) else arrays


def _member(path: Path, archive: Zip, name: str) -> np.ndarray:
    with archive.open(name) as stream:
        return _array(path, stream, archive.size_bytes(name))


def _array(path: Path, stream: IO[bytes], size_bytes: int) -> np.ndarray:
    _check_room(path, size_bytes)
    header = read_header(stream)
    if header.has_objects:
        raise SettingError(
            f"{str(path)!r} holds Python objects, not numbers: x.astype('float32') converts an array to numbers"
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
    """Return the only array of a file, for `accuracy`.

    Raises:
        SettingError: `read_arrays` raised it, or the file holds several arrays.
    """
    labels = read_arrays(path)
    if not isinstance(labels, np.ndarray):
        raise SettingError(f"--labels takes one array, but {str(path)!r} holds {len(labels)}; np.save writes one")
    return labels


def accuracy(scores: np.ndarray, labels: np.ndarray, path: Path) -> str:
    """Return the number of rows whose maximum score is at the label: "9 of 10 right, 90.00%".

    Args:
        scores: `(rows, ...)`, one score per class.
        labels: `(rows,)`, class index per row, from 0.
        path: the labels' file, for the errors.

    Raises:
        SettingError: the number of labels differs, a label is not a class index, or there is only one class.
    """
    flat = scores.reshape(len(scores), math.prod(scores.shape[1:]))
    if flat.shape[1] < 2 or labels.reshape(-1).shape != (len(scores),):
        raise SettingError(
            "--labels takes one class per row, for a program with one score per class; the program returned "
            f"{scores.shape}, the file has {labels.shape}"
            + ("; np.argmax(y, axis=1) gives the classes" if labels.shape == flat.shape else "")
        )
    wrong = _not_classes(labels.reshape(-1), flat.shape[1])
    if wrong.size:
        raise SettingError(
            f"--labels takes a class index per row, from 0 to {flat.shape[1] - 1} for this program's scores; "
            f"{str(path)!r} holds {labels.dtype}, such as {wrong[0].item()!r}"
        )
    if not len(scores):
        return "0 of 0 right"
    right = int((flat.argmax(axis=1) == labels.reshape(-1)).sum())
    return f"{right} of {len(scores)} right, {right / len(scores):.2%}"


def _not_classes(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the labels that are not a class index."""
    if labels.dtype.kind not in "iubf":
        return labels
    return labels[~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))]


def check_output(path: Path | None) -> None:
    """Check the path of an array file to write; None is valid.

    Raises:
        SettingError: the file cannot be written, or its name has another suffix.
    """
    check_file("-o", path, "y.npy")
    check_suffix("-o", path, SUFFIXES, "a result")


def check_room(path: Path | None, count: int) -> None:
    """Check that a file of this format can hold `count` arrays; None is valid.

    Raises:
        SettingError: it is a .npy file, which holds one array, and there are more.
    """
    if path is not None and path.suffix == ".npy" and count > 1:
        raise SettingError(f"the program has {count} outputs; name a .npz file: -o {path.with_suffix('.npz')}")


def write_arrays(path: Path, arrays: Sequence[np.ndarray]) -> Path:
    """Write arrays to a .npy file, or as output0, output1, ... to a .npz file, and return its path.

    Raises:
        SettingError: the file cannot be written, or it is a .npy file and there are several arrays.
    """
    check_room(path, len(arrays))
    try:
        with replaced(path, path.suffix) as unfinished:
            if path.suffix == ".npz":
                named: dict[str, Any] = {f"output{index}": array for index, array in enumerate(arrays)}
                np.savez(unfinished, **named)
            else:
                np.save(unfinished, arrays[0])
    except OSError as error:
        raise SettingError(f"{str(path)!r} cannot be written: {reason(error)}") from error
    return path


def reason(error: Exception) -> str:
    """Return an error's reason in one line: the operating system's, else the error's first line."""
    return getattr(error, "strerror", None) or str(error).splitlines()[0]
