"""Ids of strings: a vocabulary, and hashes."""

from __future__ import annotations

import numpy as np
import pytest

from anytpu import pipeline
from anytpu.errors import DataError, SettingError


def test_hashes_are_equal_everywhere():
    ids = pipeline.hash_ids(np.array([["red", "blue"], ["red", b"blue".decode()]]), 1000)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[261, 346], [261, 346]]
    assert pipeline.hash_ids([b"red", b"blue"], 1000).tolist() == [261, 346]
    spread = np.bincount(pipeline.hash_ids([f"word {number}" for number in range(4000)], 40), minlength=40)
    assert spread.min() > 50


def test_a_vocabulary(tmp_path):
    colours = pipeline.Vocabulary.of([["blue", "red", "red"], np.array([b"green", b"blue", b"red"])], max_size=2)
    assert colours.strings == ["red", "blue"]
    assert colours([["blue"], ["green"]]).tolist() == [[1], [-1]]
    hashed = pipeline.Vocabulary(["red", "blue"], others=3)
    assert len(hashed) == 5
    assert 2 <= hashed(["green"])[0] < 5
    path = tmp_path / "colours.txt"
    path.write_text("red\nblue\n")
    assert pipeline.Vocabulary(path)(["blue"]).tolist() == [1]


def test_rows_of_different_lengths():
    rows = [["blue", "red", "red"], ["blue"], []]
    objects = np.empty(3, object)
    objects[:] = [np.array(row, str) for row in rows]
    for ragged in (rows, objects):
        colours = pipeline.Vocabulary.of([ragged], others=3)
        assert colours.strings == ["blue", "red"]
        assert [ids.tolist() for ids in colours(ragged)] == [[0, 1, 1], [0], []]
        assert [ids.tolist() for ids in pipeline.hash_ids(ragged, 1000)] == [[346, 261, 261], [346], []]
    assert pipeline.Vocabulary.of([[[["a"], ["b", "c"]], [["d"]]]]).strings == ["a", "b", "c", "d"]


def test_numbers_and_mixed_objects():
    numbers = pipeline.Vocabulary([1, 2])  # type: ignore
    assert numbers([1, 2, 3]).tolist() == [0, 1, -1]
    assert pipeline.Vocabulary.of(np.array([1, 2, 2]))(np.array([1, 2])).tolist() == [1, 0]
    assert pipeline.Vocabulary(["0.5"])([0.5]).tolist() == [0]
    mixed = np.array([[b"red", "red"], ["blue", 1]], object)
    assert pipeline.Vocabulary(["red", "1"])(mixed).tolist() == [[0, 0], [-1, 1]]
    assert pipeline.hash_ids(mixed, 1000)[0].tolist() == [261, 261]


WITH_NONE = np.array(["red", None], object)
MISSING = (
    'row {} of the strings has the missing value {}: fill it first, such as with column.fillna("unknown") of pandas, '
    "or drop the row, column.dropna()"
)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: pipeline.Vocabulary(["red"], others="raise")(["blue"]),
            DataError,
            "'blue' is not in the vocabulary of 1 strings. Build it of all data, or pass others=\"drop\" or a number "
            "of ids for unknown strings",
        ),
        (
            lambda: pipeline.Vocabulary(["red", "red"]),
            SettingError,
            "the vocabulary has 'red' 2 times: each string has one id",
        ),
        (
            lambda: pipeline.Vocabulary(["red"], others=0),
            SettingError,
            'others must be "drop", "raise" or a positive number of ids, not 0',
        ),
        (
            lambda: pipeline.Vocabulary(["red"])([1, 2]),
            DataError,
            "the vocabulary has strings, such as 'red', and got the number 1: pass strings. Numbers that are ids "
            "already need no vocabulary",
        ),
        (
            lambda: pipeline.Vocabulary(["1", "2"])([[1.0], [2.0, 1.0]]),
            DataError,
            "the vocabulary has strings, such as '1', and got the number 1.0: pass strings. Numbers that are ids "
            "already need no vocabulary",
        ),
        (lambda: pipeline.Vocabulary(["red"])(WITH_NONE), DataError, MISSING.format(1, None)),
        (lambda: pipeline.Vocabulary(["red", None]), DataError, MISSING.format(1, None)),  # type: ignore
        (lambda: pipeline.Vocabulary.of(WITH_NONE), DataError, MISSING.format(1, None)),
        (lambda: pipeline.Vocabulary.of([[["red"], ["blue", None]]]), DataError, MISSING.format(1, None)),
        (lambda: pipeline.hash_ids(WITH_NONE, 10), DataError, MISSING.format(1, None)),
        (lambda: pipeline.hash_ids([["red"], ["red", None]], 10), DataError, MISSING.format(1, None)),
        (lambda: pipeline.hash_ids([3.0, float("nan")], 10), DataError, MISSING.format(1, "nan")),
        (lambda: pipeline.hash_ids([["red", "b"], ["a", float("nan")]], 10), DataError, MISSING.format(1, "nan")),
        (lambda: pipeline.hash_ids(["red"], 0), SettingError, "size must be a positive integer below 2 ** 31, not 0"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
