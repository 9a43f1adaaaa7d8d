"""Ids in ragged and sparse forms."""

from __future__ import annotations

import numpy as np
import pytest

from anytpu.embedding import pad_ids
from anytpu.errors import DataError, SettingError
from error_texts import error_text


def test_forms():
    expected = [[3, 5, 7, -1], [2, -1, -1, -1], [-1, -1, -1, -1]]
    rows = [[3, 5, 7], [2], []]
    objects = np.empty(3, object)
    objects[:] = [np.array(row, "int64") for row in rows]
    assert pad_ids(rows).tolist() == expected
    assert pad_ids(objects).tolist() == expected
    assert pad_ids([np.array(row) for row in rows], length=2, on_long="cut").tolist() == [[3, 5], [2, -1], [-1, -1]]
    assert pad_ids(np.array([4, 5])).tolist() == [[4], [5]]
    assert pad_ids(np.array([[4, 5, 6]])).tolist() == [[4, 5, 6]]


def test_sparse_matrices():
    class Coordinates:
        """The attributes of a `scipy.sparse.coo_array`."""

        row, col, data, shape = np.array([1, 0, 0]), np.array([0, 4, 1]), np.array([9, 8, 7]), (3, 5)

        def tocoo(self):
            return self

    assert pad_ids(Coordinates()).tolist() == [[7, 8], [9, -1], [-1, -1]]


def test_weights():
    ids, weights = pad_ids([[3, 5], [2]], weights=[[0.5, 2.0], [1.0]])
    assert ids.tolist() == [[3, 5], [2, -1]]
    assert weights.tolist() == [[0.5, 2.0], [1.0, 0.0]]


MISSING = (
    "'{}', row {}, has the missing value {}: fill it with -1, which stands for no id, such as with column.fillna(-1) "
    "of pandas, or drop the row, column.dropna()"
)
NESTED = "'ids', row 1, has lists in a list: pass one list of ids for each row, such as [[3, 5], [2]]"
STRINGS = (
    "'ids' holds {}: turn strings into ids first, such as pad_ids(vocabulary(rows)) with a tpu.pipeline.Vocabulary, or "
    "pad_ids(tpu.pipeline.hash_ids(rows, 1000))"
)


def test_objects_and_columns():
    assert pad_ids(np.array([[1, 2], [3, 4]], object)).tolist() == [[1, 2], [3, 4]]
    assert pad_ids(np.array([3, 4], object)).tolist() == [[3], [4]]
    assert pad_ids([np.array([[1], [2]]), [3]]).tolist() == [[1, 2], [3, -1]]
    assert pad_ids([[], []], length=2).tolist() == [[-1, -1], [-1, -1]]
    assert pad_ids([]).shape == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"ids": [[1], [2, 3, 4]], "length": 2, "name": "watched"},
            "'watched', row 1, has 3 ids, and a row has at most 2: raise the limit, or pass on_long=\"cut\" to keep "
            "the first ids",
        ),
        (
            {"ids": [[1], [2]], "weights": [[1.0], [1.0, 2.0]]},
            "the weights of 'ids' have other rows than its ids: give one weight for each id",
        ),
        (
            {"ids": [[1], [2]], "weights": [[1.0], [float("inf")]]},
            "'ids', row 1, has the weight inf for the id 2: a weight must be a finite number",
        ),
        ({"ids": [[1], None]}, MISSING.format("ids", 1, None)),
        ({"ids": [[1, 2], [3, None]]}, MISSING.format("ids", 1, None)),
        ({"ids": np.array([3, np.nan])}, MISSING.format("ids", 1, "nan")),
        ({"ids": np.array([[3, 4], [5, None]], object), "name": "seen"}, MISSING.format("seen", 1, None)),
        (
            {"ids": [[1], [2]], "weights": [[1.0], [float("nan")]]},
            "'ids', row 1, has the weight nan for the id 2: a weight must be a finite number",
        ),
        (
            {"ids": np.zeros((2, 3, 4), int)},
            "'ids' has the shape (2, 3, 4): pass (rows, ids), or each place as its own feature",
        ),
        ({"ids": [[5], [[1, 2], [3]]]}, NESTED),
        ({"ids": [[5], [[1, 2], [3, 4]]]}, NESTED),
        ({"ids": np.array([1, "a"], object)}, STRINGS.format("<U21")),
        ({"ids": [[1, "a"]]}, STRINGS.format("<U21")),
    ],
)
def test_errors(arguments: dict, message: str):
    assert error_text(lambda: pad_ids(**arguments), kind=DataError) == message


def test_long_rows_are_cut_or_raise():
    assert (
        error_text(lambda: pad_ids([[1, 2]], length=1, on_long="drop"), kind=SettingError)
        == 'on_long must be "raise" or "cut", not \'drop\''
    )
    with pytest.raises(DataError) as strings:
        pad_ids([["red", "blue"]])
    assert str(strings.value) == (
        "'ids' holds <U4: turn strings into ids first, such as pad_ids(vocabulary(rows)) with a tpu.pipeline."
        "Vocabulary, or pad_ids(tpu.pipeline.hash_ids(rows, 1000))"
    )
