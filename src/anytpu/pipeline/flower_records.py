"""Flower images in the TFRecord folders of Kaggle's "flower classification with TPUs".

    FOLDER/tfrecords-jpeg-192x192/train/00-192x192-798.tfrec      image, class, id
    FOLDER/tfrecords-jpeg-192x192/val/...                         image, class, id
    FOLDER/tfrecords-jpeg-192x192/test/...                        image, id

Idea: the number at the end of a file's name is the number of its records, so the length is known without reading files.

Rule: files whose number of records differs from their names are rejected.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from anytpu._calls import explain_arguments
from anytpu.errors import DataError, FileError, SettingError
from anytpu.pipeline.dataset import Dataset
from anytpu.pipeline.example import parse_example
from anytpu.pipeline.features import FixedLenFeature
from anytpu.pipeline.images import decode_image
from anytpu.pipeline.record import Record
from anytpu.pipeline.shards import RecordSource
from anytpu.pipeline.tfrecord import records

SPLITS = ("train", "val", "test")

_SPEC = {
    "image": FixedLenFeature((), bytes),
    "id": FixedLenFeature((), bytes, b""),
    "class": FixedLenFeature((), "int64", -1),
    "label": FixedLenFeature((), "int64", -1),
}


@explain_arguments
def flowers(path: str | os.PathLike[str], split: str = "train", size: int = 192) -> Dataset:
    """Read a split of the flower images.

    Args:
        path: the folder or URL that contains `tfrecords-jpeg-192x192`, or `train`, `val` and `test` directly.
        split: "train", "val" or "test".
        size: height and width of the images in pixels; Kaggle has 192, 224, 331 and 512. It selects the folder.

    Returns:
        A data set of `{"image": uint8 (size, size, 3), "class": int32, "id": str}`; without "class" in "test". Its
        length is known without reading the files if their names end in "-NNN.tfrec".

    Raises:
        SettingError: the split does not exist.
        DataError: the files are missing; or, during iteration, their number of records differs from their names.

    Example:
        >>> import pathlib, tempfile
        >>> from anytpu.pipeline import encode_example, encode_jpeg, write_records
        >>> flower = {"image": encode_jpeg(np.zeros((8, 8, 3), np.uint8)), "class": 3, "id": "rose"}
        >>> (folder := pathlib.Path(tempfile.mkdtemp()) / "val").mkdir()
        >>> _ = write_records(folder / "00-8x8-1.tfrec", [encode_example(flower)])
        >>> [(flower["image"].shape, flower["id"]) for flower in flowers(folder.parent, "val")]
        [((8, 8, 3), 'rose')]
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
            source = records(pattern)
        except FileError as error:
            failed = error
        else:
            assert isinstance(source, RecordSource)  # .tfrec is not compressed
            return source
    raise DataError(
        f"there are no flowers in {path}: neither {folder}/{split}/*.tfrec nor {split}/*.tfrec. Unpack Kaggle's "
        "flower-classification-with-tpus there; examples/05_flowers.py makes small files of the same layout"
    ) from failed


class FlowerRecords:
    """Records of files whose names state their number of records.

    Args:
        source: the records; its `shards` are the files.
    """

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        matches = [re.search(r"-(\d+)\.tfrec$", shard.path) for shard in source.shards]
        self._stated_count = sum(int(match[1]) for match in matches if match) if all(matches) else None
        self._is_checked = self._stated_count is None

    def __len__(self) -> int:
        return len(self._source) if self._stated_count is None else self._stated_count

    def __getitem__(self, index: int) -> bytes:
        if not self._is_checked:
            self._check()
        return self._source[index]

    def _check(self) -> None:
        if len(self._source) != self._stated_count:
            first = self._source.shards[0].path
            raise DataError(
                f"the names of {first} and the other files of its folder state {self._stated_count} records, but the "
                f"files hold {len(self._source)}: a file is truncated or was renamed. Download the files again"
            )
        self._is_checked = True


def _flower(record: bytes) -> dict[str, Any]:
    row = parse_example(record, _SPEC)
    return {"image": decode_image(row["image"]), "id": row["id"].decode()}


def _flower_with_class(record: Record) -> dict[str, Any]:
    row = parse_example(record, _SPEC)
    label = max(int(row["class"]), int(row["label"]))
    if label < 0:
        raise DataError(
            f"{record.origin}: the flower has no feature 'class' or 'label'. To read flowers without a class, use "
            'flowers(path, "test")'
        )
    return {"image": decode_image(row["image"]), "class": np.int32(label), "id": row["id"].decode()}
