"""A pickle of arrays may rebuild arrays and do nothing else."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from anytpu.errors import DataError
from anytpu.pipeline.unpickling import arrays_of, load


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_come_back(protocol: int):
    given = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2], b"one": np.float32(2.5)}
    found = load(io.BytesIO(pickle.dumps(given, protocol=protocol)), "batch")
    assert found[b"data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (found[b"labels"], found[b"one"]) == ([1, 2], 2.5)


def test_the_old_name_of_numpys_core():
    written = pickle.dumps(np.arange(3), protocol=2).replace(b"numpy._core.", b"numpy.core.")
    assert load(io.BytesIO(written), "batch").tolist() == [0, 1, 2]


class Deed:
    def __reduce__(self):
        return os.mkdir, (str(Deed.path),)

    path = Path()


def test_nothing_else_is_called(tmp_path: Path):
    Deed.path = tmp_path / "made"
    np.savez(tmp_path / "bad.npz", x=np.array([Deed()], object))
    with pytest.raises(DataError) as caught:
        arrays_of(tmp_path / "bad.npz")
    assert str(caught.value) == (
        f"{tmp_path}/bad.npz cannot be read: it asks for posix.mkdir, and only arrays are read. Get the file anew"
    )
    assert not Deed.path.exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1, 2])[:-3]])
def test_damage(content: bytes):
    with pytest.raises(DataError, match=r"^batch cannot be read: .* Get the file anew$"):
        load(io.BytesIO(content), "batch")


def test_no_archive(tmp_path: Path):
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(DataError) as caught:
        arrays_of(tmp_path / "x.npz")
    assert str(caught.value) == f"{tmp_path}/x.npz cannot be read as .npz: File is not a zip file. Get the file anew"
