"""Kaggle's flowers: their folders, their features, their counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, SettingError

PIPELINE = tpu.pipeline


def write(folder: Path, name: str, *rows: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    PIPELINE.write_records(folder / name, map(PIPELINE.encode_example, rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    image = PIPELINE.encode_jpeg(np.full((32, 32, 3), 7, np.uint8))
    root = tmp_path_factory.mktemp("flowers")
    for split, count in (("train", 16), ("val", 4), ("test", 2)):
        rows = [{"image": image, "id": f"{split}{index}", "class": index % 5} for index in range(count)]
        if split == "test":
            rows = [{"image": row["image"], "id": row["id"]} for row in rows]
        for index, half in enumerate((rows[::2], rows[1::2])):
            write(root / "tfrecords-jpeg-32x32" / split, f"{index:02}-32x32-{len(half)}.tfrec", *half)
    return str(root)


def test_the_splits(folder: str):
    for split, count in {"train": 16, "val": 4, "test": 2}.items():
        rows = PIPELINE.flowers(folder, split, size=32)
        assert len(rows) == count
        flowers = list(rows)
        assert len(flowers) == count
        assert all(flower["image"].shape == (32, 32, 3) for flower in flowers)
        assert len({flower["id"] for flower in flowers}) == count
        assert all(("class" in flower) == (split != "test") for flower in flowers)
    train = list(PIPELINE.flowers(folder, "train", size=32))
    assert {int(flower["class"]) for flower in train} == set(range(5))
    assert all(flower["class"].dtype == np.int32 for flower in train)


def test_the_inner_folder_will_do(folder: str):
    whole = [flower["id"] for flower in PIPELINE.flowers(folder, size=32)]
    assert [flower["id"] for flower in PIPELINE.flowers(f"{folder}/tfrecords-jpeg-32x32/")] == whole


def test_ids_go_with_their_rows(folder: str):
    rows = PIPELINE.flowers(folder, "test", size=32)
    batches = rows.map(lambda flower: (flower["image"] / np.float32(255), flower["id"])).batch(2)
    (numbers,) = batches.numbers()
    assert numbers[0].shape == (2, 32, 32, 3)
    assert batches.on_host("1").tolist() == [flower["id"] for flower in rows]


IMAGE = PIPELINE.encode_jpeg(np.zeros((8, 8, 3), np.uint8))


def test_labels_may_be_called_label_and_names_may_lack_counts(tmp_path: Path):
    write(
        tmp_path / "val",
        "flowers.tfrec",
        {"image": IMAGE, "label": 7, "id": "a"},
        {"image": IMAGE, "class": 0, "id": "b"},
    )
    rows = PIPELINE.flowers(tmp_path, "val")
    assert len(rows) == 2
    assert [(int(flower["class"]), flower["id"]) for flower in rows] == [(7, "a"), (0, "b")]


def test_a_name_that_says_more_than_there_is(tmp_path: Path):
    write(tmp_path / "train", "00-8x8-3.tfrec", {"image": IMAGE, "class": 7, "id": "a"})
    rows = PIPELINE.flowers(tmp_path)
    assert len(rows) == 3
    with pytest.raises(DataError) as caught:
        list(rows.prefetch(0))
    assert str(caught.value) == (
        f"the names of {tmp_path}/train/00-8x8-3.tfrec and the other files of its folder state 3 records, but "
        "the files hold 1: a file is truncated or was renamed. Download the files again"
    )


def test_no_class(folder: str, tmp_path: Path):
    write(tmp_path / "train", "00-8x8-1.tfrec", {"image": IMAGE, "id": "a"})
    with pytest.raises(DataError) as caught:
        list(PIPELINE.flowers(tmp_path).prefetch(0))
    assert str(caught.value) == (
        f"{tmp_path}/train/00-8x8-1.tfrec, record 0 at byte 0: the flower has no feature 'class' or 'label'. "
        'To read flowers without a class, use flowers(path, "test")'
    )


def test_what_is_not_there(tmp_path: Path):
    with pytest.raises(DataError) as caught:
        PIPELINE.flowers(tmp_path)
    assert str(caught.value) == (
        f"there are no flowers in {tmp_path}: neither tfrecords-jpeg-192x192/train/*.tfrec nor train/*.tfrec. "
        "Unpack Kaggle's flower-classification-with-tpus there; examples/05_flowers.py makes small files of the same "
        "layout"
    )
    with pytest.raises(SettingError) as caught:
        PIPELINE.flowers(tmp_path, "validation")
    assert str(caught.value) == "split must be one of train, val, test, not 'validation'"
