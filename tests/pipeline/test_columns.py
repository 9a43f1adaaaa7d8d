"""Which columns of a batch travel."""

from __future__ import annotations

import numpy as np
import pytest

from anytpu.errors import DataError
from anytpu.pipeline.columns import is_strings, split

X = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.array(["a"]), True),
        (np.array([b"a"]), True),
        (np.array(["a", "b"], object), True),
        (np.array([b"a"], object), True),
        ("a", True),
        (b"a", True),
        (np.array([None, 1], object), False),
        (np.array([], object), False),
        (np.empty((2, 0), object), True),
        (X, False),
        (3, False),
    ],
)
def test_strings(column, expected: bool):
    assert is_strings(column) is expected


@pytest.mark.parametrize(
    ("batch", "numbers", "names"),
    [
        (X, X, []),
        ((X, X), (X, X), []),
        ((X, np.array(["a", "b"])), (X,), ["1"]),
        ([X, X, np.array(["a", "b"])], [X, X], ["2"]),
        ({"x": X, "id": np.array(["a", "b"])}, {"x": X}, ["id"]),
        (({"x": X, "id": np.array(["a", "b"])}, X), ({"x": X}, X), ["0.id"]),
        (({"id": np.array(["a", "b"])}, X), (X,), ["0.id"]),
    ],
)
def test_a_batch_is_split(batch, numbers, names: list[str]):
    kept, strings = split(batch)
    assert repr(kept) == repr(numbers)
    assert list(strings) == names
    assert all(column.tolist() == ["a", "b"] for column in strings.values())


def test_nothing_but_strings():
    with pytest.raises(DataError) as caught:
        split({"id": np.array(["a"]), "name": np.array(["b"])})
    assert str(caught.value) == (
        "all columns hold strings (id, name), and cores cannot compute with strings: decode or parse them "
        "first, with .map(...)"
    )
