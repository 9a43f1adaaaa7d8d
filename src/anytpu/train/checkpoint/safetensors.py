"""Write named arrays as a safetensors file.

Idea: the file is the size of a header in 8 bytes, the header as JSON, and the bytes of all arrays. The header has the
dtype, shape and range of bytes of each array. Source: the README of github.com/huggingface/safetensors, "Format".

Rule: the largest items come first and the header fills whole 8 bytes. So a reader that maps the file finds each array
aligned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from anytpu.errors import FileError
from anytpu.files.replacing import replaced

DTYPES = {
    **{f"{kind}{bits}": f"{code}{bits}" for kind, code in (("int", "I"), ("uint", "U")) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{"bfloat16": "BF16", "bool": "BOOL", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
}
"""The format's name of each dtype that it has."""


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> None:
    """Write arrays to a file, which appears complete or not at all.

    Args:
        path: path of the file; an existing file is replaced.
        arrays: arrays by name.
        notes: texts by name for the header's metadata.

    Raises:
        FileError: the format lacks the dtype of an array.
        OSError: the file cannot be written.

    Example:
        >>> write_safetensors(Path("weights.safetensors"), {"kernel": np.ones((2, 3))}, {})  # doctest: +SKIP
    """
    lacking = [f"{name!r} {array.dtype}" for name, array in arrays.items() if array.dtype.name not in DTYPES]
    if lacking:
        raise FileError(f"a safetensors file cannot hold {lacking[0]}. It has the dtypes {', '.join(sorted(DTYPES))}")
    header: dict[str, object] = {"__metadata__": dict(notes)} if notes else {}
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    offset_bytes = 0
    for name in names:
        array, start = arrays[name], offset_bytes
        offset_bytes += array.nbytes
        dtype = DTYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [start, offset_bytes]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replaced(path) as unfinished, unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            whole = np.asarray(arrays[name], arrays[name].dtype.newbyteorder("<"), order="C")
            file.write(whole.reshape(-1).view(np.uint8).data)
