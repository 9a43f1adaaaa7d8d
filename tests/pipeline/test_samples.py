"""Small files in well-known forms: always the same, and learnable by something far simpler than a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anytpu.pipeline import cifar10, flowers, imdb, make_cifar10, make_flowers, make_imdb, make_mnist, mnist


def contents(folder: Path) -> dict[str, bytes]:
    # The entries of an .npz carry the time; its arrays are compared elsewhere.
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".npz"
    }


def test_the_same_call_makes_the_same_files(tmp_path: Path):
    for name in ("one", "two"):
        make_cifar10(tmp_path / name, 20, 10)
        make_flowers(tmp_path / name, 8, size=16)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    for make, read in ((make_mnist, mnist), (make_imdb, imdb)):
        first, second = (read(make(tmp_path / name, 20, 10)) for name in ("one", "two"))
        assert [x.tolist() for part in first for x in part] == [x.tolist() for part in second for x in part]


def nearest_mean(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return for each test row the label whose training rows have the nearest mean."""
    kinds = np.unique(labels)
    means = np.stack([train[labels == kind].mean(0) for kind in kinds])
    return kinds[((test[:, None] - means) ** 2).sum(-1).argmin(1)]


def test_mnist_can_be_learned(tmp_path: Path):
    (x, y), (x_test, y_test) = mnist(make_mnist(tmp_path, 600, 200))
    spectrum = lambda images: np.abs(np.fft.rfft2(images)).reshape(len(images), -1)  # noqa: E731 - blind to the place
    assert (nearest_mean(spectrum(x), y, spectrum(x_test)) == y_test).mean() > 0.5


def test_cifar10_can_be_learned(tmp_path: Path):
    (x, y), (x_test, y_test) = cifar10(make_cifar10(tmp_path, 200, 100))
    assert (nearest_mean(x.mean((1, 2)), y[:, 0], x_test.mean((1, 2))) == y_test[:, 0]).mean() > 0.9


def test_imdb_can_be_learned(tmp_path: Path):
    (x, y), (x_test, y_test) = imdb(make_imdb(tmp_path, 200, 100), maxlen=200)
    praise = lambda reviews: ((reviews >= 34) & (reviews < 54)).sum(1) - ((reviews >= 54) & (reviews < 74)).sum(1)  # noqa: E731
    assert ((praise(x_test) > 0) == y_test).mean() > 0.85
    assert ((praise(x) > 0) == y).mean() > 0.85


def test_flowers_can_be_learned(tmp_path: Path):
    folder = make_flowers(tmp_path, 40, size=32)

    def colors(split: str) -> tuple[np.ndarray, np.ndarray]:
        rows = list(flowers(folder, split, size=32))
        return np.stack([row["image"].mean((0, 1)) for row in rows]), np.array([row["class"] for row in rows])

    x, y = colors("train")
    x_test, y_test = colors("val")
    assert (nearest_mean(x, y, x_test) == y_test).mean() > 0.7
