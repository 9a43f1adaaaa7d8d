"""Named data sets: small real data that is part of the package.

Idea: an example or a test that trains on real data needs neither a download nor an account.

Rule: a named data set is split by a seed, so that the same call gives the same rows on every machine. Sources and
licences are in `files/README.md`.
"""

from __future__ import annotations

import importlib.resources
import numbers

import numpy as np

from anytpu._calls import explain_arguments
from anytpu.errors import SettingError

Rows = tuple[np.ndarray, np.ndarray]
"""Examples and their labels, `(x, y)`, of the same length."""


@explain_arguments
def digits(seed: int = 0, test_fraction: float = 0.2) -> tuple[Rows, Rows]:
    """Load 1,797 handwritten digits, 8 by 8 pixels each.

    They are the test set of UCI's "Optical Recognition of Handwritten Digits".

    Args:
        seed: seed of the split and of the order of the images; an integer of at least 0.
        test_fraction: share of images kept for testing, above 0 and below 1.

    Returns:
        `(x_train, y_train), (x_test, y_test)`.

        x is float32 `(images, 8, 8, 1)` from 0 (white) to 1 (black), y is int32 `(images,)` from 0 to 9.

    Raises:
        SettingError: `seed` or `test_fraction` is out of range.

    Example:
        >>> (x_train, y_train), (x_test, y_test) = digits()
        >>> x_train.shape, x_test.shape
        ((1438, 8, 8, 1), (359, 8, 8, 1))
    """
    x, y = _read("digits")
    # A pixel is the number of black dots in a 4 x 4 block of the scanned image: 0 to 16.
    return _split(x[..., np.newaxis].astype(np.float32) / 16, y, seed, test_fraction)


@explain_arguments
def iris(seed: int = 0, test_fraction: float = 0.2) -> tuple[Rows, Rows]:
    """Load Fisher's 150 irises: four lengths of each flower, and its species, one of three.

    Args:
        seed: seed of the split and of the order of the flowers; an integer of at least 0.
        test_fraction: share of flowers kept for testing, above 0 and below 1.

    Returns:
        `(x_train, y_train), (x_test, y_test)`.

        x is float32 `(flowers, 4)`: sepal length, sepal width, petal length and petal width in centimetres.

        y is int32 `(flowers,)`: 0 setosa, 1 versicolor, 2 virginica.

    Raises:
        SettingError: `seed` or `test_fraction` is out of range.

    Example:
        >>> (x_train, y_train), (x_test, y_test) = iris()
        >>> x_train.shape, x_test.shape
        ((120, 4), (30, 4))
    """
    x, y = _read("iris")
    return _split(x, y, seed, test_fraction)


def _read(name: str) -> Rows:
    file = importlib.resources.files("anytpu.pipeline") / "files" / f"{name}.npz"
    with file.open("rb") as stream, np.load(stream) as arrays:
        return arrays["x"], arrays["y"].astype(np.int32)


def _split(x: np.ndarray, y: np.ndarray, seed: int, test_fraction: float) -> tuple[Rows, Rows]:
    _check_seed(seed)
    _check_fraction(test_fraction)
    order = np.random.default_rng(seed).permutation(len(x))
    # At least one row on each side, whatever the fraction.
    test_rows = min(max(round(len(x) * test_fraction), 1), len(x) - 1)
    train, test = order[test_rows:], order[:test_rows]
    return (x[train], y[train]), (x[test], y[test])


def _check_seed(seed: int) -> None:
    if not isinstance(seed, numbers.Integral) or isinstance(seed, bool) or seed < 0:
        raise SettingError(
            f"seed must be an integer of at least 0, not {seed!r}; omit it for the default split, seed=0."
        )


def _check_fraction(test_fraction: float) -> None:
    if not isinstance(test_fraction, numbers.Real) or isinstance(test_fraction, bool) or not 0 < test_fraction < 1:
        raise SettingError(
            f"test_fraction must be a number above 0 and below 1, not {test_fraction!r}; "
            "test_fraction=0.2 keeps a fifth of the rows for testing."
        )
