"""MNIST and IMDB from Keras's own .npz files, in Keras's cache folder or at a path.

Idea: a Keras user has these files already. They are read as `keras.datasets` reads them. Nothing is downloaded, so a
program never blocks on a missing network. If a file is missing, the error says which file to download to which folder.

Rule: the arrays are returned unchanged. A member of a file is unpacked up to its declared size, and an array has
exactly the bytes that its header states. The pickle of a list is interpreted without executing code.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from anytpu import _env
from anytpu._calls import explain_arguments
from anytpu.errors import DataError, SettingError
from anytpu.files.memory import check_memory
from anytpu.files.npy import read_header, read_values
from anytpu.files.zips import Zip, read_exactly
from anytpu.pipeline.pickled_arrays import load

Rows = tuple[Any, Any]
"""Examples and their labels, `(x, y)`, of the same length."""
AnyPath = str | os.PathLike[str]

_STORAGE = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
_MAX_WORD = 2**31
_WORD_BYTES = 56
"""Memory per word while IMDB is loaded: two int64, and a pointer and an int in a list."""
_REVIEW_BYTES = 400
"""Memory per review: two arrays and a list."""
_LIST_RATIO = 4
"""Memory of a list of integers per byte of its pickle: a pointer has 8 bytes, and an opcode has at least 2."""


@explain_arguments
def mnist(path: AnyPath | None = None) -> tuple[Rows, Rows]:
    """Load MNIST: handwritten digits, 60,000 to train on and 10,000 to test on.

    Args:
        path: `mnist.npz`, or its folder. None: Keras's cache, `~/.keras/datasets`.

    Returns:
        `(x_train, y_train), (x_test, y_test)`: x uint8 `(images, 28, 28)`, 0 black to 255 white, y uint8 `(images,)`.

    Raises:
        DataError: the file is missing or invalid; the message says which file to download, and to which folder.

    Example:
        >>> from anytpu.pipeline import make_mnist
        >>> (x_train, y_train), _ = mnist(make_mnist())
        >>> x_train.shape[1:], x_train.dtype
        ((28, 28), dtype('uint8'))
    """
    file = _npz("mnist", path, "make_mnist")
    return _pairs(arrays_of(file), file)


@explain_arguments
def imdb(
    path: AnyPath | None = None,
    *,
    num_words: int | None = None,
    skip_top: int = 0,
    maxlen: int | None = None,
    seed: int = 113,
    start_char: int | None = 1,
    oov_char: int | None = 2,
    index_from: int | None = 3,
) -> tuple[Rows, Rows]:
    """Load IMDB: film reviews as sequences of word indices, 25,000 to train on and 25,000 to test on.

    A word's index is its rank by frequency plus `index_from`; 0 is padding.

    Args:
        path: `imdb.npz`, or its folder. None: Keras's cache, `~/.keras/datasets`.
        num_words: indices from this one up become `oov_char`; None: only the highest index does, as in Keras.
        skip_top: indices below this one become `oov_char`.
        maxlen: length of every review: shorter ones are padded with zeros in front, longer ones are truncated in front,
            as by `keras.utils.pad_sequences(x, maxlen)`. None: lists of different lengths.
        seed: seed of the order of the reviews.
        start_char: index inserted in front of each review; None: nothing is inserted.
        oov_char: index that replaces excluded words; None: they are removed.
        index_from: offset added to each word's rank.

    Returns:
        `(x_train, y_train), (x_test, y_test)`: x int32 `(reviews, maxlen)`, or an array of lists; y int64 `(reviews,)`,
        0 negative, 1 positive.

    Raises:
        DataError: the file is missing or invalid; the message says which file to download, and to which folder.
        SettingError: `maxlen` is not an integer of at least 1.

    Example:
        >>> from anytpu.pipeline import make_imdb
        >>> (x_train, y_train), _ = imdb(make_imdb(), num_words=2000, maxlen=100)
        >>> x_train.shape[1], int(x_train.max()) < 2000
        (100, True)
    """
    if maxlen is not None and (not isinstance(maxlen, int) or maxlen < 1):
        raise SettingError(f"maxlen must be an integer of at least 1, or None for lists of any length, not {maxlen!r}")
    file = _npz("imdb", path, "make_imdb")
    random = np.random.RandomState(seed)
    sets = [_shuffle(x, y, random) for x, y in _checked_reviews(_pairs(arrays_of(file), file), file)]

    _check_memory(sets, file)
    start = np.array([] if start_char is None else [start_char], np.int64)
    # A review without words is an empty list, and NumPy's type for those is float64.
    reviews = [
        [np.concatenate([start, np.asarray(words, np.int64) + (index_from or 0)]) for words in x] for x, _ in sets
    ]
    # As in Keras: without num_words, the word of the highest index is left out.
    end = num_words or max(int(words.max(initial=0)) for part in reviews for words in part)

    def select(words: np.ndarray) -> np.ndarray:
        kept = (words >= skip_top) & (words < end)
        return words[kept] if oov_char is None else np.where(kept, words, oov_char)

    train, test = [
        (_pad([select(words) for words in part], maxlen), y) for part, (_, y) in zip(reviews, sets, strict=True)
    ]
    return train, test


def _npz(name: str, path: AnyPath | None, maker: str) -> Path:
    file = Path(path) if path is not None else _env.keras_datasets()
    file = file if file.suffix == ".npz" else file / f"{name}.npz"
    if not file.is_file():
        raise DataError(
            f"there is no file {file}: download {_STORAGE}/{name}.npz to this path, or pass its path, {name}(path). "
            f"For a small sample of the same form: {name}(tpu.pipeline.{maker}())"
        )
    return file


def _pairs(arrays: dict[str, np.ndarray], file: Path) -> tuple[Rows, Rows]:
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in arrays]
    if missing:
        raise DataError(
            f"{file} has no {', '.join(missing)}; it has {', '.join(arrays)[:200] or 'nothing'}. Download the file "
            "again"
        )
    pairs = (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])
    for x, y in pairs:
        if x.shape[:1] != y.shape[:1] or not y.ndim:
            raise DataError(
                f"{file} has examples of shape {x.shape} and labels of shape {y.shape}. Download the file again"
            )
    return pairs


def _checked_reviews(sets: tuple[Rows, Rows], file: Path) -> tuple[Rows, Rows]:
    for x, _ in sets:
        for index, words in enumerate(x):
            listed = words.tolist() if isinstance(words, np.ndarray) and words.ndim == 1 else words
            if not isinstance(listed, list) or not _are_words(listed):
                raise DataError(
                    f"{file} is not a file of reviews: review {index} is not a list of word indices. Download the file "
                    "again"
                )
    if not sum(len(x) for x, _ in sets):
        raise DataError(f"{file} has no reviews. Download the file again")
    return sets


def _check_memory(sets: list[Rows], file: Path) -> None:
    reviews = [words for x, _ in sets for words in x]
    try:
        check_memory(_WORD_BYTES * sum(map(len, reviews)) + _REVIEW_BYTES * len(reviews))
    except ValueError as error:
        raise DataError(f"{file} is too large: {error}. End other programs, or use a machine with more") from error


def _are_words(words: list[Any]) -> bool:
    return {int}.issuperset(map(type, words)) and (not words or -_MAX_WORD < min(words) <= max(words) < _MAX_WORD)


def _shuffle(x: np.ndarray, y: np.ndarray, random: np.random.RandomState) -> Rows:
    # The same calls as in Keras, so that the same seed gives the same order.
    order = np.arange(len(x))
    random.shuffle(order)
    return x[order], y[order]


def _pad(rows: list[np.ndarray], maxlen: int | None) -> np.ndarray:
    """Pad or truncate rows in front to one length; without a length, return an array of lists."""
    if maxlen is None:
        lists = np.empty(len(rows), object)
        lists[:] = [row.tolist() for row in rows]
        return lists
    padded = np.zeros((len(rows), maxlen), np.int32)
    for target, row in zip(padded, rows, strict=True):
        if len(row):
            target[-len(row) :] = row[-maxlen:]
    return padded


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
