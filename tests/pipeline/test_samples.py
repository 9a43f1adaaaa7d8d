"""Small files of flowers: always the same, and learnable by something far simpler than a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anytpu.pipeline import flowers, make_flowers


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_call_makes_the_same_files(tmp_path: Path):
    for name in ("one", "two"):
        make_flowers(tmp_path / name, 8, size=16)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def nearest_mean(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return for each test row the label whose training rows have the nearest mean."""
    kinds = np.unique(labels)
    means = np.stack([train[labels == kind].mean(0) for kind in kinds])
    return kinds[((test[:, None] - means) ** 2).sum(-1).argmin(1)]


def test_flowers_can_be_learned(tmp_path: Path):
    folder = make_flowers(tmp_path, 40, size=32)

    def colors(split: str) -> tuple[np.ndarray, np.ndarray]:
        rows = list(flowers(folder, split, size=32))
        return np.stack([row["image"].mean((0, 1)) for row in rows]), np.array([row["class"] for row in rows])

    x, y = colors("train")
    x_test, y_test = colors("val")
    assert (nearest_mean(x, y, x_test) == y_test).mean() > 0.7
