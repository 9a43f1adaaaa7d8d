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
        (lambda: pipeline.hash_ids(["red"], 0), SettingError, "size must be a positive integer below 2 ** 31, not 0"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
