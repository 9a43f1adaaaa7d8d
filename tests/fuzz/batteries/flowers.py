"""Kaggle's flowers: TFRecords of JPEGs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from anytpu.pipeline import flowers, make_flowers
from fuzz.battery import Battery


def _made() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        make_flowers(folder, train=4, size=32)
        return [next(Path(folder).rglob("train/00-*.tfrec")).read_bytes()]


def _flowers(path: Path) -> Any:
    folder = path.parent / "flowers" / "train"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder / f"{path.stem}.tfrec")
    return [dict(row) for row in flowers(folder.parent, "train")]


BATTERIES = (Battery("flowers", _made, _flowers, ".tfrec", is_checked=True),)
