"""A reader of safetensors files for tests, from the description of the format alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I8": "i1",
    "U32": "<u4",
    "BOOL": "?",
    "C64": "<c8",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
}


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays by name and the notes; check that the ranges are aligned and fill the file without gaps."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    notes = header.pop("__metadata__", {})
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda pair: pair[1]["data_offsets"]):
        begin, end_of_array = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        assert begin == end and (start + begin) % dtype.itemsize == 0
        end = end_of_array
        arrays[name] = np.frombuffer(content[start + begin : start + end], dtype).reshape(entry["shape"])
    assert start % 8 == 0 and start + end == len(content)
    return arrays, notes
