"""A reader of untrusted .npz files, including arrays of Python lists.

Rule: a member is unpacked up to its declared size, and an array has exactly the bytes that its header states. The
pickle of a list is interpreted without executing code.
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
"""Memory of a list of integers per byte of its pickle: a pointer has 8 bytes, and an opcode has at least 2."""


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file, including arrays of Python lists.

    Raises:
        DataError: it is not an .npz file, is damaged, or needs more memory than is free; the message names the member.
    """
    try:
        with Zip(path) as archive:
            _check_ratio(archive)
            check_memory(archive.unpacked_bytes())
            return {name.removesuffix(".npy"): _array(archive, name, path) for name in archive}
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as .npz: {error}. Download the file again") from error


def _check_ratio(archive: Zip) -> None:
    try:
        archive.check_ratio()
    except ValueError as error:
        raise ValueError(f"{error}. If the file is valid, save it uncompressed, with np.savez") from error


def _array(archive: Zip, name: str, path: Path) -> np.ndarray:
    size_bytes = archive.size_bytes(name)
    try:
        with archive.open(name) as stream:
            header = read_header(stream)
            if not header.has_objects:
                return read_values(stream, header, size_bytes)
            check_memory(_LIST_RATIO * size_bytes)
            pickled = read_exactly(stream, size_bytes - header.size_bytes)
        array = load(pickled, f"{path}:{name}")
        if not isinstance(array, np.ndarray) or array.dtype != object or array.shape != header.shape:
            raise ValueError(f"its header states objects of shape {header.shape}, but its pickle holds something else")
        return array
    except DataError:
        raise
    except ValueError as error:
        raise ValueError(f"{name!r:.100}: {error}") from error
