"""A pickle of arrays may rebuild arrays and do nothing else."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from anytpu.errors import DataError
from anytpu.pipeline.keras_files import arrays_of
from anytpu.pipeline.pickled_arrays import load


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_come_back(protocol: int):
    given = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2], b"one": np.float32(2.5)}
    found = load(pickle.dumps(given, protocol=protocol), "batch")
    assert found[b"data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (found[b"labels"], found[b"one"]) == ([1, 2], 2.5)


def test_the_old_name_of_numpys_core():
    written = pickle.dumps(np.arange(3), protocol=2).replace(b"numpy._core.", b"numpy.core.")
    assert load(written, "batch").tolist() == [0, 1, 2]


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
        f"{tmp_path}/bad.npz:x.npy cannot be read: at byte 160, it refers to posix.mkdir, but only arrays are "
        "supported. Download the file again"
    )
    assert not Deed.path.exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1, 2])[:-3]])
def test_damage(content: bytes):
    with pytest.raises(DataError, match=r"^batch cannot be read: .* Download the file again$"):
        load(content, "batch")


def test_no_archive(tmp_path: Path):
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(DataError) as caught:
        arrays_of(tmp_path / "x.npz")
    assert str(caught.value) == (
        f"{tmp_path}/x.npz cannot be read as .npz: File is not a zip file. Download the file again"
    )


def array_of(state: bytes) -> bytes:
    """Return a pickle of an array which is given a state, as CIFAR-10's files have it."""
    return b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\1b\x87R" + state + b"b."


def dtype(name: bytes) -> bytes:
    return b"cnumpy\ndtype\nU%c%bK\0K\1\x87R(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb" % (len(name), name)


CRAFTED = {
    # NumPy takes these bytes for the addresses of objects.
    "addresses": (array_of(b"(K\1K\2\x85" + dtype(b"O8") + b"\x89U\x10" + b"A" * 16 + b"t"), "an array of objects of "),
    "too few bytes": (array_of(b"(K\1K\x08\x85" + dtype(b"u1") + b"\x89U\4aaaat"), "an array of uint8 of shape (8,) "),
    "a negative shape": (array_of(b"(K\1J\xff\xff\xff\xff\x85" + dtype(b"u1") + b"\x89U\0t"), "the state of an array "),
    "a large shape": (array_of(b"(K\1\x8a\x08" + b"\xff" * 7 + b"\x7f\x85" + dtype(b"u1") + b"\x89U\0t"), "the state "),
    "a field": (array_of(b"(K\1K\1\x85" + dtype(b"V8") + b"\x89U\x08aaaaaaaat"), "it has arrays of the dtype 'V8'"),
    "a state twice": (array_of(b"(K\1K\0\x85" + dtype(b"u1") + b"\x89U\0tb0"), "it has the opcode b'0'"),
    "another call": (b"cnumpy\nndarray\nK\1\x85R.", "it calls ndarray in an unknown way"),
    "deep lists": (b"]" * 40 + b"a" * 39 + b".", "containers are nested more than 32 deep"),
    "a list in itself": (b"]q\0h\0a.", "containers are nested more than 32 deep"),
    "marks": (b"(" * 200_000, "the file ends"),
    "a long string": (b"B\xff\xff\xff\x7f", "the file ends"),
    "a place that has nothing": (b"h\7.", "Memo value not found at index 7"),
    "a list as a key": (b"}]K\1s.", "a key is of type list"),
    "a state of a list": (b"]K\1b.", "a list cannot have a state"),
    "a long number": (b"I" + b"9" * 5000 + b"\n.", "Exceeds the limit"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted(name: str):
    content, reason = CRAFTED[name]
    with pytest.raises(DataError, match=r"^batch cannot be read: at byte [\d,]+, ") as caught:
        load(content, "batch")
    assert reason in str(caught.value)


def test_arrays_that_share_their_bytes():
    content = b"(" + b"".join(
        [
            b"B\0\0\1\0" + b"a" * 65536 + b"q\1",
            *[array_of(b"(K\1M\0\1M\0\1\x86" + dtype(b"u1") + b"\x89h\1t")[2:-1]] * 9,
        ]
    )
    with pytest.raises(DataError, match="its arrays have more bytes than the file"):
        load(content + b"t.", "batch")


@pytest.mark.parametrize("copies", [1, 3])
def test_lists_that_come_several_times(copies: int):
    content = b"(](" + b"K\1" * 2000 + b"eq\1" + b"h\1" * copies + b"t."
    if copies == 1:
        assert load(content, "batch") == ([1] * 2000,) * 2
        return
    with pytest.raises(DataError) as caught:
        load(content, "batch")
    assert str(caught.value) == (
        "batch cannot be read: at byte 4,014, its lists have more numbers than the file has bytes. Download "
        "the file again"
    )


def test_an_array_that_comes_several_times():
    array = array_of(b"(K\1M\xd0\7\x85" + dtype(b"u1") + b"\x89B\xd0\7\0\0" + b"a" * 2000 + b"t")[2:-1]
    assert load(b"(" + array + b"q\1t.", "batch")[0].shape == (2000,)
    with pytest.raises(DataError, match="its arrays have more bytes than the file"):
        load(b"(" + array + b"q\1" + b"h\1" * 3 + b"t.", "batch")


def test_containers_that_share_their_values_stay_small():
    # 30 lists, each of the one before nine times: 9**30 values, were they copied.
    content = b"]q\0K\1a" + b"".join(b"]q%c(%be" % (n, b"h%c" % (n - 1) * 9) for n in range(1, 30)) + b"."
    found = load(content, "batch")
    assert len(found) == 9 and all(array is found[0] for array in found)
