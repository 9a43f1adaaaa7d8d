"""A reader of NumPy's .npy format for untrusted files.

Idea: a header of a hundred bytes states a dtype and a shape. Both are checked against the number of bytes that follow,
before the array is allocated. So a header cannot ask for more memory than the file has bytes.

Rule: no value is unpickled here; the caller handles a header with `has_objects`.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import re
import struct
from typing import IO, Any

import numpy as np

from anytpu.files.memory import check_memory
from anytpu.files.zips import read_exactly
from anytpu.units import MIB

MAX_HEADER_BYTES = 10_000
"""Maximum length of a header: NumPy's own limit."""

_DTYPE_NAME = re.compile(r"[A-Za-z]\w{0,29}")
_MAGIC = b"\x93NUMPY"
_LENGTHS = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}
_PARSE_ERRORS = (ValueError, TypeError, SyntaxError, LookupError, AttributeError, MemoryError, RecursionError)
_MAX_AXES = 32
_MAX_SIZE = 2**48


def named_dtype(name: Any) -> np.dtype:
    """Return the dtype of a name in a file, as `dtype.name` gives it: one word.

    NumPy also parses lists, shapes and numbers of any length in a text, and raises errors of many kinds.

    Raises:
        TypeError: there is no such dtype.

    Example:
        >>> named_dtype("float32")
        dtype('float32')
    """
    if not isinstance(name, str) or not _DTYPE_NAME.fullmatch(name):
        raise TypeError(f"there is no dtype {name!r:.60}")
    return np.dtype(name)


@dataclasses.dataclass(frozen=True)
class NpyHeader:
    """The header of an .npy file.

    Attributes:
        dtype: type of the values.
        shape: shape of the array.
        is_fortran: whether the first axis varies fastest.
        size_bytes: size of the header itself.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    is_fortran: bool
    size_bytes: int

    @property
    def has_objects(self) -> bool:
        """Whether the values are Python objects, pickled."""
        return self.dtype.hasobject

    @property
    def values_bytes(self) -> int:
        """The size of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npy(stream: IO[bytes], size_bytes: int) -> np.ndarray:
    """Return the array of an .npy file.

    Args:
        stream: the file, at its beginning.
        size_bytes: the length of the file.

    Raises:
        ValueError: it is not an .npy file, is damaged, holds Python objects, or is larger than the free memory.

    Example:
        >>> import io
        >>> stream = io.BytesIO()
        >>> np.save(stream, np.arange(3))
        >>> read_npy(io.BytesIO(stream.getvalue()), len(stream.getvalue()))
        array([0, 1, 2])
    """
    header = read_header(stream)
    if header.has_objects:
        raise ValueError("it holds Python objects")
    return read_values(stream, header, size_bytes)


def read_header(stream: IO[bytes]) -> NpyHeader:
    """Read the header of an .npy file.

    Raises:
        ValueError: the header is missing or invalid.
    """
    start = read_exactly(stream, len(_MAGIC) + 2)
    version = (start[-2], start[-1])
    if not start.startswith(_MAGIC) or version not in _LENGTHS:
        raise ValueError("it does not begin as an .npy file of version 1, 2 or 3")
    length = struct.Struct(_LENGTHS[version])
    text_bytes: int = length.unpack(read_exactly(stream, length.size))[0]
    if text_bytes > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {text_bytes:,} bytes; the maximum is {MAX_HEADER_BYTES:,}")
    text = read_exactly(stream, text_bytes).decode("utf-8" if version == (3, 0) else "latin-1")
    return _header(text, len(start) + length.size + text_bytes)


def read_values(stream: IO[bytes], header: NpyHeader, size_bytes: int) -> np.ndarray:
    """Read the values that follow a header.

    Args:
        stream: the file, positioned after its header.
        header: the header; its dtype has no objects.
        size_bytes: the length of the file, with the header.

    Raises:
        ValueError: the file has more or fewer bytes than the array, or the array is larger than the free memory.
    """
    left_bytes = size_bytes - header.size_bytes
    if header.values_bytes != left_bytes:
        raise ValueError(
            f"its header states {header.dtype} of shape {header.shape}, {header.values_bytes:,} bytes, and "
            f"{left_bytes:,} follow"
        )
    check_memory(left_bytes)
    array = np.empty(header.shape, header.dtype, order="F" if header.is_fortran else "C")
    # A byte view in memory order: each piece is copied from the stream straight into the array.
    memory = array.ravel("K").view(np.uint8)
    for start in range(0, left_bytes, MIB):
        stop = min(start + MIB, left_bytes)
        memory[start:stop] = np.frombuffer(read_exactly(stream, stop - start), np.uint8)
    return array


def _header(text: str, size_bytes: int) -> NpyHeader:
    try:
        fields = ast.literal_eval(text)
        if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
            raise ValueError("a header has descr, fortran_order and shape")
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
    except _PARSE_ERRORS as error:
        why = _first_line(error)
    else:
        shape, is_fortran = fields["shape"], fields["fortran_order"]
        if _is_shape(shape) and isinstance(is_fortran, bool) and (dtype.itemsize or not math.prod(shape)):
            return NpyHeader(dtype, shape, is_fortran, size_bytes)
        why = f"{dtype} of shape {_short(shape)}, fortran_order {_short(is_fortran)}"
    # Raised outside the handler, so that no cause is shown: for a header that nests too deeply, Python raises
    # MemoryError although memory is free.
    raise ValueError(f"its header is invalid: {why}")


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, tuple)
        and len(shape) <= _MAX_AXES
        and all(type(size) is int and 0 <= size <= _MAX_SIZE for size in shape)
        and math.prod(size for size in shape if size) <= _MAX_SIZE
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
