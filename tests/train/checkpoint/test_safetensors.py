from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from anytpu.errors import FileError
from anytpu.train.checkpoint.safetensors import DTYPES, write_safetensors
from safetensors_reader import read

ARRAYS = {
    "layer/kernel": np.random.default_rng(0).normal(size=(5, 3)).astype("float32"),
    "a/transposed": np.arange(6.0).reshape(2, 3).T,
    "big-endian": np.arange(3, dtype=">i4"),
    "scalar": np.array(7, "int64"),
    "empty": np.zeros((0, 4), "float16"),
    "flags": np.array([True, False, True]),
    "brain": np.array([1.5, -0.0, np.inf], ml_dtypes.bfloat16),
    "eight": np.array([0.5], ml_dtypes.float8_e4m3fn),
    "größe": np.array([1 + 2j], "complex64"),
}


def test_every_bit_is_read_back(tmp_path: Path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"old")
    write_safetensors(path, ARRAYS, {"step": "3"})
    arrays, notes = read(path)
    assert notes == {"step": "3"}
    assert {name: (a.shape, a.dtype.name, a.tobytes()) for name, a in arrays.items()} == {
        name: (a.shape, a.dtype.name, a.astype(a.dtype.newbyteorder("<")).tobytes()) for name, a in ARRAYS.items()
    }
    assert [each.name for each in tmp_path.iterdir()] == ["weights.safetensors"]


def test_a_dtype_that_the_format_lacks(tmp_path: Path):
    path = tmp_path / "weights.safetensors"
    with pytest.raises(FileError) as raised:
        write_safetensors(path, {"a": np.ones(2), "b": np.ones(2, "complex128")}, {})
    assert str(raised.value) == (
        f"a safetensors file cannot hold 'b' complex128. It has the dtypes {', '.join(sorted(DTYPES))}"
    )
    assert not path.exists()
