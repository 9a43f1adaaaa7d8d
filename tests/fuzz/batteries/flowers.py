"""Kaggle's flowers: TFRecords of JPEGs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.pipeline import encode_example, encode_jpeg, flowers
from anytpu.pipeline.tfrecord import frame
from fuzz.battery import Battery


def _made() -> list[bytes]:
    """Return a file of two flowers."""
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    rows = [{"image": encode_jpeg(image), "class": kind, "id": f"{kind}"} for kind in range(2)]
    return [b"".join(frame(encode_example(row)) for row in rows)]


def _flowers(path: Path) -> Any:
    folder = path.parent / "flowers" / "train"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder / f"{path.stem}.tfrec")
    return [dict(row) for row in flowers(folder.parent, "train")]


BATTERIES = (Battery("flowers", _made, _flowers, ".tfrec", is_checked=True),)
