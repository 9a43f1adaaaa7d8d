"""The arrays of an .npz file that somebody else wrote, arrays of Python lists too.

Rule: a member is unpacked up to the size that it declares, an array has the bytes that its header states, and lists
come out of a pickle that is interpreted, not run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anytpu.errors import DataError
from anytpu.files.memory import check_memory
from anytpu.files.npy import read_header, read_values
from anytpu.files.zips import Zip, read_exactly
from anytpu.pipeline.unpickling import load

_LIST_RATIO = 4
"""Bytes of a list of numbers a byte of its pickle: 8, and a number takes at least 2."""


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file, arrays of Python lists too.

    Raises:
        DataError: it is no such file, is damaged, or needs more memory than is free; the message names the member.
    """
    try:
        with Zip(path) as archive:
            _check_ratio(archive)
            check_memory(archive.unpacked_bytes())
            return {name.removesuffix(".npy"): _array(archive, name, path) for name in archive}
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as .npz: {error}. Get the file anew") from error


def _check_ratio(archive: Zip) -> None:
    try:
        archive.check_ratio()
    except ValueError as error:
        raise ValueError(f"{error}. If it is right, write it uncompressed, with np.savez") from error


def _array(archive: Zip, name: str, path: Path) -> np.ndarray:
    size_bytes = archive.size_bytes(name)
    try:
        with archive.open(name) as stream:
            header = read_header(stream)
            if not header.has_objects:
                return read_values(stream, header, size_bytes)
            check_memory(_LIST_RATIO * size_bytes)
            pickled = read_exactly(stream, size_bytes - header.size_bytes)
        found = load(pickled, f"{path}:{name}")
        if not isinstance(found, np.ndarray) or found.dtype != object or found.shape != header.shape:
            raise ValueError(f"its header states objects of shape {header.shape}, and its pickle holds something else")
        return found
    except DataError:
        raise
    except ValueError as error:
        raise ValueError(f"{name!r:.100}: {error}") from error
