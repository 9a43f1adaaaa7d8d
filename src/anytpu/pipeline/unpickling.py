"""Pickles of arrays, from files that somebody else wrote.

Idea: CIFAR-10 and IMDB come as Python pickles, and a pickle may call anything. What a pickle of arrays, lists and dicts
needs is six names; these may be called, and nothing else.

Rule: an array is rebuilt by NumPy's own functions, so that what comes out is what was written.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from anytpu.errors import DataError

_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
}
_MOST_HEADER_BYTES = 10_000
_DAMAGED = (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, ImportError, IndexError, KeyError)


def load(stream: IO[bytes], path: Path | str) -> Any:
    """Read a pickle of arrays, lists and dicts, with the bytes of Python 2's strings as bytes.

    Args:
        stream: the pickle.
        path: the file, for an error.

    Raises:
        DataError: it holds anything else, or is damaged.
    """
    try:
        return _Unpickler(stream, encoding="bytes").load()
    except _DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}. Get the file anew") from error


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file, arrays of Python lists too.

    Raises:
        DataError: it is no such file, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _array(archive.read(name), path) for name in archive.namelist()}
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as .npz: {error}. Get the file anew") from error


def _array(content: bytes, path: Path) -> np.ndarray:
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"an array of version {version}")
    shape, _, dtype = read(stream, max_header_size=_MOST_HEADER_BYTES)
    if dtype.hasobject:
        return np.asarray(load(stream, path), object).reshape(shape)
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False, max_header_size=_MOST_HEADER_BYTES)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return what a pickle of arrays may call."""
        module_name = module_name.replace("numpy.core.", "numpy._core.")  # its name before NumPy 2
        if (module_name, global_name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, and only arrays are read")
        return super().find_class(module_name, global_name)
