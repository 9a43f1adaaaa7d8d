"""Small synthetic files in the formats of well-known data sets, for examples and tests without a download.

Idea: a program that reads MNIST, CIFAR-10, IMDB or Kaggle's flowers can be tried in seconds on rows of the same form,
types and shapes. Each sample can be learned, so a rising accuracy shows that training works.

Rule: the same call makes the same files. They are drawings and word lists: an accuracy on them says nothing about the
real data.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from anytpu._calls import explain_arguments
from anytpu.pipeline.named import digits
from anytpu.pipeline.remote_file import refuse_url
from anytpu.pipeline.storage import created

AnyPath = str | os.PathLike[str]

_SPLIT_SHARES = {"train": 1.0, "val": 0.25, "test": 0.125}


@explain_arguments
def make_mnist(path: AnyPath | None = None, train: int = 2400, test: int = 400) -> str:
    """Write a small `mnist.npz`: the digits of `digits()`, enlarged, each at a random offset.

    Args:
        path: the folder, created if missing; None: a new temporary folder.
        train: number of images to train on.
        test: number of images to test on.

    Returns:
        The path of the file, for `mnist(path)`.
    """
    random = np.random.default_rng(0)
    parts = [_mnist_images(rows, count, random) for rows, count in zip(digits(), (train, test), strict=True)]
    file = _folder(path, "mnist") / "mnist.npz"
    (x_train, y_train), (x_test, y_test) = parts
    _save(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return str(file)


@explain_arguments
def make_cifar10(path: AnyPath | None = None, train: int = 1000, test: int = 200) -> str:
    """Write a small `cifar-10-batches-py`: noisy stripes whose colour and direction depend on the class.

    Args:
        path: the folder to write it to, created if missing; None: a new temporary folder.
        train: number of images to train on, divided among five files.
        test: number of images to test on.

    Returns:
        The path of `cifar-10-batches-py`, for `cifar10(path)`.
    """
    random = np.random.default_rng(0)
    folder = _folder(path, "cifar10") / "cifar-10-batches-py"
    folder.mkdir(exist_ok=True)
    counts = {f"data_batch_{index}": (train + 5 - index) // 5 for index in range(1, 6)} | {"test_batch": test}
    for name, count in counts.items():
        labels = random.permutation(count) % 10
        pixels = _stripes(labels, 32, random).transpose(0, 3, 1, 2).reshape(count, -1)
        batch = {b"batch_label": name.encode(), b"labels": labels.tolist(), b"data": pixels}
        with created(folder / name) as unfinished:
            Path(unfinished).write_bytes(pickle.dumps(batch, protocol=3))
    return str(folder)


@explain_arguments
def make_imdb(path: AnyPath | None = None, train: int = 1000, test: int = 250) -> str:
    """Write a small `imdb.npz`: reviews of random words by frequency; twenty words are positive, twenty negative.

    Args:
        path: the folder, created if missing; None: a new temporary folder.
        train: number of reviews to train on.
        test: number of reviews to test on.

    Returns:
        The path of the file, for `imdb(path)`.
    """
    random = np.random.default_rng(0)
    file = _folder(path, "imdb") / "imdb.npz"
    (x_train, y_train), (x_test, y_test) = (_reviews(count, random) for count in (train, test))
    _save(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return str(file)


@explain_arguments
def make_flowers(path: AnyPath | None = None, train: int = 256, size: int = 192, kinds: int = 5) -> str:
    """Write TFRecord files in the layout of Kaggle's flowers: blossoms whose colour and petals depend on the class.

    Args:
        path: the folder, created if missing; None: a new temporary folder.
        train: number of images to train on; there are a quarter as many for validation and an eighth for tests.
        size: height and width of the images in pixels.
        kinds: number of classes, at most 104.

    Returns:
        The folder, for `flowers(path, split)`.
    """
    from anytpu.pipeline.example import encode_example
    from anytpu.pipeline.images import encode_jpeg
    from anytpu.pipeline.tfrecord import write_records

    random = np.random.default_rng(0)
    root = _folder(path, "flowers")
    for split, share in _SPLIT_SHARES.items():
        folder = root / f"tfrecords-jpeg-{size}x{size}" / split
        folder.mkdir(parents=True, exist_ok=True)
        labels = random.permutation(math.ceil(train * share)) % kinds
        rows = [{"image": encode_jpeg(_blossom(kind, kinds, size, random)), "id": _id(random)} for kind in labels]
        if split != "test":
            rows = [{**row, "class": int(kind)} for row, kind in zip(rows, labels, strict=True)]
        for index, half in enumerate((rows[::2], rows[1::2])):
            write_records(folder / f"{index:02}-{size}x{size}-{len(half)}.tfrec", map(encode_example, half))
    return str(root)


def _folder(path: AnyPath | None, name: str) -> Path:
    if path is None:
        return Path(tempfile.mkdtemp(prefix=f"anytpu-{name}-"))
    refuse_url(os.fspath(path), "a sample")
    Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def _save(file: Path, **arrays: Any) -> None:
    with created(file) as unfinished, open(unfinished, "wb") as stream:
        np.savez_compressed(stream, **arrays)


def _mnist_images(rows: Any, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    x, y = rows
    images = np.zeros((count, 28, 28), np.uint8)
    chosen = random.permutation(count) % len(x)
    for image, row in zip(images, chosen, strict=True):
        small = Image.fromarray((x[row, ..., 0] * 255).astype(np.uint8))
        top, left = random.integers(0, 9, 2)
        image[top : top + 20, left : left + 20] = np.asarray(small.resize((20, 20), Image.Resampling.BICUBIC))
    return images, y[chosen].astype(np.uint8)


def _stripes(labels: np.ndarray, size: int, random: np.random.Generator) -> np.ndarray:
    """Return an image for each label, 0 to 9: ten colours, two directions of stripes."""
    count = len(labels)
    angle = np.where(labels % 2, 0.3, 1.8)[:, None, None] + random.normal(0, 0.15, (count, 1, 1))
    row, column = np.mgrid[:size, :size] / size
    phase = random.uniform(0, 2 * np.pi, (count, 1, 1))
    wave = np.sin(18 * (np.cos(angle) * column + np.sin(angle) * row) + phase)
    color = _colors(labels, 10)[:, None, None]
    pixels = 60 + 60 * color + 25 * wave[..., None] + random.normal(0, 25, (count, size, size, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def _colors(kinds: Any, count: int) -> np.ndarray:
    """Return a colour of the colour wheel for each class, channels from 0 to 2."""
    turn = 2 * np.pi * (np.asarray(kinds, float)[..., None] / count + np.arange(3) / 3)
    return 1 + np.cos(turn)


def _blossom(kind: int, kinds: int, size: int, random: np.random.Generator) -> np.ndarray:
    """Draw a flower: 3 to 6 coloured petals on a green background."""
    row, column = (np.mgrid[:size, :size].astype("f4") / size - 0.5) * 2 - random.uniform(-0.2, 0.2, (2, 1, 1))
    angle, distance = np.arctan2(row, column) + random.uniform(0, 2 * np.pi), np.hypot(row, column)
    petals = distance < random.uniform(0.9, 1.1) * (0.7 + 0.3 * np.cos((3 + kind % 4) * angle))
    image = np.empty((size, size, 3), np.uint8)
    image[:] = [10, 50, 20]
    image[petals] = (20 + 105 * _colors(kind, kinds) + random.normal(0, 8, 3)).clip(0, 235)
    image[distance < 0.12] = [230, 200, 60]
    return image + random.integers(0, 16, (size, size, 1), np.uint8)


def _id(random: np.random.Generator) -> str:
    return f"{random.integers(16**9):09x}"


def _reviews(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = random.permutation(count) % 2
    reviews = np.empty(count, object)
    for index, label in enumerate(labels):
        length = int(np.clip(random.lognormal(4.3, 0.5), 20, 400))
        words = np.minimum(random.zipf(1.3, length), 4000)
        # Words 31 to 50 are positive, 51 to 70 negative. One word in eight is one of these; 20 % of them contradict the
        # label.
        is_opinion = random.random(length) < 1 / 8
        is_positive = (random.random(length) < 0.8) == bool(label)
        opinions = np.where(is_positive, 31, 51) + random.integers(0, 20, length)
        reviews[index] = np.where(is_opinion, opinions, words).tolist()
    return reviews, labels.astype(np.int64)
