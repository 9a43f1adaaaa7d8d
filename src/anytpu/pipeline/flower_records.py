"""Flowers: TFRecord folders as Kaggle's "flower classification with TPUs" lays them out.

    FOLDER/tfrecords-jpeg-192x192/train/00-192x192-798.tfrec      image, class, id
    FOLDER/tfrecords-jpeg-192x192/val/...                         image, class, id
    FOLDER/tfrecords-jpeg-192x192/test/...                        image, id

Idea: the number at the end of a file's name is the number of its records, so that a length costs no look into files.

Rule: files that hold more or fewer than their names say are refused, not read.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from anytpu.errors import DataError, FileError, SettingError
from anytpu.pipeline.dataset import Dataset
from anytpu.pipeline.example import parse_example
from anytpu.pipeline.features import FixedLenFeature
from anytpu.pipeline.images import decode_image
from anytpu.pipeline.sources import Record, RecordSource
from anytpu.pipeline.tfrecord import records

CLASSES = 104
"""The kinds of flowers in Kaggle's records."""
SPLITS = ("train", "val", "test")

_SPEC = {
    "image": FixedLenFeature((), bytes),
    "id": FixedLenFeature((), bytes, b""),
    "class": FixedLenFeature((), "int64", -1),
    "label": FixedLenFeature((), "int64", -1),
}


def flowers(path: str | os.PathLike[str], split: str = "train", size: int = 192) -> Dataset:
    """Read one of the splits of the flowers.

    Args:
        path: the folder or URL in which `tfrecords-jpeg-192x192` is, or `train`, `val` and `test` themselves.
        split: "train", "val" or "test".
        size: the pixels of a side, 192, 224, 331 or 512 at Kaggle; it chooses the folder.

    Returns:
        A data set of `{"image": uint8 (size, size, 3), "class": int32, "id": str}`; without "class" in "test". Its
        length is known without a look into the files if their names end in "-NNN.tfrec".

    Raises:
        SettingError: there is no such split.
        DataError: there are no such files; on the way, they hold fewer records than their names say.

    Example:
        >>> from anytpu.pipeline import make_flowers
        >>> flower = next(iter(flowers(make_flowers(), "val")))
        >>> flower["image"].shape, sorted(flower)
        ((192, 192, 3), ['class', 'id', 'image'])
    """
    if split not in SPLITS:
        raise SettingError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    source = FlowerRecords(_source(str(path).rstrip("/"), split, size))
    return Dataset.from_source(source).map(_flower_with_class if split != "test" else _flower)


def _source(path: str, split: str, size: int) -> RecordSource:
    folder = f"tfrecords-jpeg-{size}x{size}"
    failed: FileError | None = None
    for pattern in (f"{path}/{folder}/{split}/*.tfrec", f"{path}/{split}/*.tfrec"):
        try:
            found = records(pattern)
        except FileError as error:
            failed = error
        else:
            assert isinstance(found, RecordSource)  # .tfrec is not compressed
            return found
    raise DataError(
        f"there are no flowers in {path}: neither {folder}/{split}/*.tfrec nor {split}/*.tfrec. Unpack Kaggle's "
        "flower-classification-with-tpus there, or make small ones, flowers(tpu.pipeline.make_flowers())"
    ) from failed


class FlowerRecords:
    """Records whose files say in their names how many they hold.

    Args:
        source: the records, and in `shards` their files.
    """

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        named = [re.search(r"-(\d+)\.tfrec$", shard.path) for shard in source.shards]
        self._named = sum(int(found[1]) for found in named if found) if all(named) else None
        self._is_checked = self._named is None

    def __len__(self) -> int:
        return len(self._source) if self._named is None else self._named

    def __getitem__(self, index: int) -> bytes:
        if not self._is_checked:
            self._check()
        return self._source[index]

    def _check(self) -> None:
        if len(self._source) != self._named:
            first = self._source.shards[0].path
            raise DataError(
                f"the names of {first} and the files beside it say {self._named} records, and they hold "
                f"{len(self._source)}: one was cut off, or renamed. Get the files anew"
            )
        self._is_checked = True


def _flower(record: bytes) -> dict[str, Any]:
    row = parse_example(record, _SPEC)
    return {"image": decode_image(row["image"]), "id": row["id"].decode()}


def _flower_with_class(record: Record) -> dict[str, Any]:
    row = parse_example(record, _SPEC)
    kind = max(int(row["class"]), int(row["label"]))
    if kind < 0:
        raise DataError(
            f"{record.origin}: the flower has no feature 'class' or 'label'. Flowers without a class are read by "
            'flowers(path, "test")'
        )
    return {"image": decode_image(row["image"]), "class": np.int32(kind), "id": row["id"].decode()}
