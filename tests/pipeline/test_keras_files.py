"""MNIST, CIFAR-10, IMDB: the real forms, read as Keras reads them, and what is said when a file is not there."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, SettingError
from anytpu.files import memory
from anytpu.units import format_bytes

PIPELINE = tpu.pipeline


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("files")
    return {
        "mnist": Path(PIPELINE.make_mnist(root, train=30, test=10)),
        "cifar10": Path(PIPELINE.make_cifar10(root, train=23, test=10)),
        "imdb": Path(PIPELINE.make_imdb(root, train=40, test=12)),
    }


def same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for mine, yours in zip(one, other, strict=True):
            assert mine.dtype == yours.dtype
            assert mine.shape == yours.shape
            assert mine.tolist() == yours.tolist()


def test_mnist_is_what_numpy_reads(files: dict[str, Path]):
    with np.load(files["mnist"]) as arrays:
        expected = (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])
    same(PIPELINE.mnist(files["mnist"]), expected)
    same(PIPELINE.mnist(files["mnist"].parent), expected)


def keras_reads(module: Any, path: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Any:
    # The one seam: what Keras downloads.
    monkeypatch.setattr(module, "get_file", lambda **_: str(path))
    return module.load_data(**arguments)


def test_cifar10_is_what_keras_reads(files: dict[str, Path]):
    import importlib

    load_batch = importlib.import_module("keras.src.datasets.cifar").load_batch
    parts = [load_batch(files["cifar10"] / f"data_batch_{number}") for number in range(1, 6)]
    test = load_batch(files["cifar10"] / "test_batch")
    (x_train, y_train), (x_test, y_test) = PIPELINE.cifar10(files["cifar10"])
    assert x_train.tolist() == np.concatenate([x for x, _ in parts]).transpose(0, 2, 3, 1).tolist()
    assert y_train.tolist() == [[label] for _, labels in parts for label in labels]
    assert x_test.tolist() == test[0].transpose(0, 2, 3, 1).tolist()
    assert y_test.tolist() == [[label] for label in test[1]]
    assert (x_train.shape, x_train.dtype, y_train.dtype) == ((23, 32, 32, 3), np.uint8, np.uint8)


def test_cifar10_wherever_it_lies(files: dict[str, Path], tmp_path: Path):
    expected = PIPELINE.cifar10(files["cifar10"])
    same(PIPELINE.cifar10(files["cifar10"].parent), expected)
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(files["cifar10"], "cifar-10-batches-py")
    same(PIPELINE.cifar10(archive), expected)
    same(PIPELINE.cifar10(tmp_path), expected)


WORDS = [
    {},
    {"num_words": 100},
    {"num_words": 60, "skip_top": 5, "index_from": 7},
    {"num_words": 50, "oov_char": None, "start_char": None},
    {"start_char": None, "index_from": None, "seed": 1},
    {"skip_top": 3, "oov_char": 9, "start_char": 4},
]


@pytest.mark.parametrize("arguments", WORDS, ids=str)
def test_imdb_is_what_keras_reads(arguments: dict[str, Any], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    import importlib

    module = importlib.import_module("keras.src.datasets.imdb")
    expected = keras_reads(module, files["imdb"], monkeypatch, **arguments)
    ours = PIPELINE.imdb(files["imdb"], **arguments)
    for (x, y), (keras_x, keras_y) in zip(ours, expected, strict=True):
        assert x.tolist() == keras_x.tolist()
        assert y.tolist() == keras_y.tolist()
    padded = PIPELINE.imdb(files["imdb"], maxlen=50, **arguments)
    for (x, y), (keras_x, keras_y) in zip(padded, expected, strict=True):
        assert x.dtype == np.int32
        assert x.tolist() == keras.utils.pad_sequences(keras_x, maxlen=50).tolist()
        assert y.tolist() == keras_y.tolist()


def test_a_review_without_words_has_integers(files: dict[str, Path], tmp_path: Path):
    with np.load(files["imdb"], allow_pickle=True) as found:
        arrays = dict(found)
    arrays["x_train"][3] = []
    np.savez(tmp_path / "imdb.npz", **arrays)
    (x, _), _ = PIPELINE.imdb(tmp_path)
    assert [type(words[0]) for words in x if len(words) == 1] == [int]


def test_they_are_where_keras_keeps_them(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "datasets" / "cifar-10-batches-py-target").mkdir(parents=True)
    (tmp_path / "datasets" / "mnist.npz").symlink_to(files["mnist"])
    (tmp_path / "datasets" / "imdb.npz").symlink_to(files["imdb"])
    (tmp_path / "datasets" / "cifar-10-batches-py-target" / "cifar-10-batches-py").symlink_to(files["cifar10"])
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    for name, path in files.items():
        read = getattr(PIPELINE, name)
        assert read()[0][1].tolist() == read(path)[0][1].tolist()


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    storage, where = "https://storage.googleapis.com/tensorflow/tf-keras-datasets", tmp_path / "datasets"
    messages = {
        name: (
            f"there is no file {where}/{name}.npz: download {storage}/{name}.npz to this path, or pass its path, "
            f"{name}(path). For a small sample of the same form: {name}(tpu.pipeline.make_{name}())"
        )
        for name in ("mnist", "imdb")
    }
    messages["cifar10"] = (
        f"there is no folder {where}/cifar-10-batches-py: download "
        f"https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz into {where}, or pass its path, "
        "cifar10(path). For a small sample of the same form: cifar10(tpu.pipeline.make_cifar10())"
    )
    for name, message in messages.items():
        with pytest.raises(DataError) as caught:
            getattr(PIPELINE, name)()
        assert str(caught.value) == message
    assert not where.exists()


def test_other_files(tmp_path: Path):
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3))
    with pytest.raises(DataError) as caught:
        PIPELINE.mnist(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/mnist.npz has no y_train, x_test, y_test; it has x_train. Download the file again"
    )
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"labels": []}))
    with pytest.raises(DataError) as caught:
        PIPELINE.cifar10(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has no data_batch_2, data_batch_3, data_batch_4, data_batch_5, test_batch. Unpack "
        "cifar-10-python.tar.gz again"
    )
    for name in ("data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError) as caught:
        PIPELINE.cifar10(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/data_batch_1 is not a batch of CIFAR-10: it has no data and labels. Download the file again"
    )


@pytest.mark.parametrize("maxlen", [0, -3, "80", 2.5])
def test_a_length_that_is_none(files: dict[str, Path], maxlen: Any):
    with pytest.raises(SettingError) as caught:
        PIPELINE.imdb(files["imdb"], maxlen=maxlen)
    assert str(caught.value) == (
        f"maxlen must be an integer of at least 1, or None for lists of any length, not {maxlen!r}"
    )


def test_reviews_that_need_more_memory_than_is_free(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch):
    with np.load(files["imdb"], allow_pickle=True) as found:
        reviews = [words for name in ("x_train", "x_test") for words in found[name]]
    expected_bytes = 56 * sum(map(len, reviews)) + 400 * len(reviews)

    def check(needed_bytes: int) -> None:
        if needed_bytes == expected_bytes:
            raise ValueError("it needs 2 GiB of memory, and 1 GiB are free")

    monkeypatch.setattr("anytpu.pipeline.keras_files.check_memory", check)
    with pytest.raises(DataError) as caught:
        PIPELINE.imdb(files["imdb"])
    assert str(caught.value) == (
        f"{files['imdb']} is too large: it needs 2 GiB of memory, and 1 GiB are free. End other programs, or "
        "use a machine with more"
    )


def test_files_that_unpack_to_much_more_than_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    zeros, archive = tmp_path / "zeros.npz", tmp_path / "zeros.tar.gz"
    np.savez_compressed(zeros, x_train=np.zeros(2**20, np.uint8))
    (tmp_path / "data_batch_1").write_bytes(bytes(2**20))
    with tarfile.open(archive, "w:gz") as writing:
        writing.add(tmp_path / "data_batch_1", "data_batch_1")
    monkeypatch.setattr(memory, "FREELY_UNPACKED_BYTES", 2**19)
    why = "to 1 MiB, and above 512 KiB a file may unpack to 100 times its size."
    with pytest.raises(DataError) as caught:
        PIPELINE.mnist(zeros)
    assert str(caught.value) == (
        f"{zeros} cannot be read as .npz: it unpacks from {format_bytes(zeros.stat().st_size)} {why} If the file is "
        "valid, save it uncompressed, with np.savez. Download the file again"
    )
    with pytest.raises(DataError) as caught:
        PIPELINE.cifar10(archive)
    assert str(caught.value) == (
        f"{archive} cannot be read as an archive: it unpacks from {format_bytes(archive.stat().st_size)} {why} "
        "Download the file again"
    )
