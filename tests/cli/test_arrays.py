"""Arrays of files that were named on the command line."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from anytpu.cli.arrays import accuracy, read_arrays, read_labels, write_arrays
from anytpu.errors import SettingError
from anytpu.files import memory
from anytpu.units import format_bytes

ONE, TWO = np.arange(6.0).reshape(2, 3), np.arange(4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error(read, *arguments) -> str:
    with pytest.raises(SettingError) as caught:
        read(*arguments)
    return str(caught.value)


def test_arrays_by_what_they_are_called():
    np.save("one.npy", ONE)
    np.savez("one.npz", anything=ONE)
    np.savez("order.npz", *([TWO] * 10), ONE)
    np.savez_compressed("names.npz", b=ONE, a=TWO)
    assert (read_arrays(Path("one.npy")) == ONE).all() and (read_arrays(Path("one.npz")) == ONE).all()
    ordered = read_arrays(Path("order.npz"))
    assert [array.shape for array in ordered] == [(4,)] * 10 + [(2, 3)]
    named = read_arrays(Path("names.npz"))
    assert list(named) == ["b", "a"] and (named["b"] == ONE).all()


def test_what_is_no_file_of_arrays():
    Path("t.csv").write_text("1,2\n")
    Path("empty.npy").write_bytes(b"")
    Path("model.pkl").write_bytes(pickle.dumps({"a": 1}))
    for name, right in (("t.csv", "t.npy"), ("empty.npy", "empty.npy"), ("model.pkl", "model.npy")):
        assert error(read_arrays, Path(name)) == (
            f"{name!r} is not an array file, .npy or .npz; np.save({right!r}, x) writes one"
        )


def test_a_zip_file_of_other_things():
    with zipfile.ZipFile("m.keras", "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("metadata.json", "{}")
    zipfile.ZipFile("none.npz", "w").close()
    assert error(read_arrays, Path("m.keras")) == (
        "'m.keras' is a zip file, but not an .npz file of arrays; np.savez('m.npz', x=x) writes one"
    )
    assert error(read_arrays, Path("none.npz")) == (
        "'none.npz' is a zip file, but not an .npz file of arrays; np.savez('none.npz', x=x) writes one"
    )


def test_files_that_are_damaged():
    np.save("one.npy", ONE)
    np.savez("one.npz", a=ONE, b=TWO)
    np.savez_compressed("packed.npz", a=ONE, b=TWO)
    for name in ("one.npy", "one.npz", "packed.npz"):
        content = Path(name).read_bytes()
        for damaged in (content[:-20], content[: len(content) // 3], b"%b\xff\xff%b" % (content[:90], content[92:])):
            Path(name).write_bytes(damaged)
            assert error(read_arrays, Path(name)) == (
                f"{name!r} is truncated or damaged; write it again with np.save or np.savez"
            )


def test_a_small_file_of_a_large_array(monkeypatch: pytest.MonkeyPatch):
    zeros = np.zeros(2**20, np.uint8)
    np.savez_compressed("zeros.npz", zeros)
    monkeypatch.setattr(memory, "FREELY_UNPACKED_BYTES", 2**20)
    assert error(read_arrays, Path("zeros.npz")) == (
        f"'zeros.npz' is too large: it unpacks from {format_bytes(Path('zeros.npz').stat().st_size)} to 1 MiB, and "
        "above 1 MiB a file may unpack to 100 times its size; if you trust it, np.savez('zeros_stored.npz', "
        "**np.load('zeros.npz')) writes it uncompressed, and that is read; or give fewer rows of it, x[:1000]"
    )
    np.savez("zeros_stored.npz", **np.load("zeros.npz"))
    assert read_arrays(Path("zeros_stored.npz")).tolist() == zeros.tolist()


def test_python_objects_are_never_read():
    np.save("o.npy", np.array([{"a": 1}], object))
    np.savez("o.npz", a=np.array([None]), b=ONE)
    for name in ("o.npy", "o.npz"):
        assert error(read_arrays, Path(name)) == (
            f"{name!r} holds Python objects, not numbers: x.astype('float32') converts an array to numbers"
        )


def test_right_ones_are_counted():
    scores = np.eye(4)[:, :3]
    assert accuracy(scores, np.array([0, 1, 2, 1]), Path("y.npy")) == "3 of 4 right, 75.00%"
    assert accuracy(scores.reshape(4, 1, 3), np.array([[0.0], [1], [2], [0]]), Path("y.npy")) == "4 of 4 right, 100.00%"
    assert accuracy(scores[:0], np.zeros(0), Path("y.npy")) == "0 of 0 right"


@pytest.mark.parametrize(
    ("labels", "holds"),
    [
        (np.array(["cat", "dog"]), "<U3, such as 'cat'"),
        (np.array([1, 100]), "int64, such as 100"),
        (np.array([1, -1]), "int64, such as -1"),
        (np.array([1, 0.5]), "float64, such as 0.5"),
        (np.array([1, np.nan]), "float64, such as nan"),
    ],
)
def test_labels_that_are_no_class(labels: np.ndarray, holds: str):
    assert error(accuracy, np.zeros((2, 3)), labels, Path("y.npy")) == (
        "--labels takes a class index per row, from 0 to 2 for this program's scores; 'y.npy' holds " + holds
    )


def test_labels_of_another_shape():
    wants = "--labels takes one class per row, for a program with one score per class; the program returned"
    assert error(accuracy, np.zeros((2, 3)), np.zeros(3), Path("y.npy")) == f"{wants} (2, 3), the file has (3,)"
    assert error(accuracy, np.zeros((2, 1)), np.zeros(2), Path("y.npy")) == f"{wants} (2, 1), the file has (2,)"
    assert error(accuracy, np.zeros((2, 3)), np.eye(3)[:2], Path("y.npy")) == (
        f"{wants} (2, 3), the file has (2, 3); np.argmax(y, axis=1) gives the classes"
    )


def test_labels_are_one_array():
    np.savez("y.npz", y=TWO)
    assert (read_labels(Path("y.npz")) == TWO).all()


def test_a_file_that_cannot_be_written(folder: Path):
    assert error(write_arrays, Path("no/y.npy"), [ONE]) == "'no/y.npy' cannot be written: No such file or directory"
    assert error(write_arrays, Path("y.npy"), [ONE, TWO]) == ("the program has 2 outputs; name a .npz file: -o y.npz")
    assert not list(folder.iterdir())
