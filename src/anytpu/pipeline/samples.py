"""Small files in the format of Kaggle's flowers, for examples and tests without a download.

Idea: a program that reads the flowers can be tried in seconds on rows of the same form, types and shapes. The classes
can be learned, so a rising accuracy shows that training works.

Rule: the same call makes the same files. They are drawings: an accuracy on them says nothing about the real flowers.
"""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from anytpu._calls import explain_arguments
from anytpu.pipeline.remote_file import refuse_url

AnyPath = str | os.PathLike[str]

_SPLIT_SHARES = {"train": 1.0, "val": 0.25, "test": 0.125}


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
