"""Forms of ids that a table refuses, in fit and predict."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.embedding import ShardedEmbedding
from anytpu.errors import DataError
from error_texts import error_text

ROWS = [[1, 2], [3], [4, 5, 6], [7]]
RAGGED = (
    "x['seen'] has rows of different lengths, and the table 'movies' takes rows of one length: fill them up with -1, "
    "which stands for no id, tpu.embedding.pad_ids(rows). keras.utils.pad_sequences fills with 0, an id"
)
MAKE_IDS = (
    "and the table 'movies' takes integers: make ids first, tpu.pipeline.Vocabulary.of(strings)(strings) or "
    "tpu.pipeline.hash_ids(strings, input_dim)"
)


def objects(rows: list[Any]) -> np.ndarray:
    array = np.empty(len(rows), object)
    array[:] = [np.array(row) for row in rows]
    return array


def model_of(length: int | None) -> Any:
    with tpu.connect("virtual", cores=2).scope():
        seen, age = keras.Input((length,), dtype="int32", name="seen"), keras.Input((1,), name="age")
        found = ShardedEmbedding(10, 2, "mean", name="movies")(seen)
        alone: Any = keras.Model(seen, keras.layers.Dense(1)(found))
        joined: Any = keras.Model([seen, age], keras.layers.Dense(1)(keras.layers.Concatenate()([found, age])))
        for model in (alone, joined):
            model.compile("sgd", "mse")
    return alone, joined


message_of = functools.partial(error_text, kind=DataError)


@pytest.mark.parametrize("length", [3, None])
def test_rows_of_different_lengths(length: int | None):
    alone, joined = model_of(length)
    y, age = np.ones((4, 1)), np.ones((4, 1), "float32")
    for rows in (ROWS, objects(ROWS)):
        for call in (
            lambda rows=rows: alone.fit(rows, y, verbose=0),
            lambda rows=rows: alone.predict(rows, verbose=0),
            lambda rows=rows: alone.predict_on_batch(rows),
            lambda rows=rows: alone.fit(np.ones((4, 3), int), y, validation_data=(rows, y), verbose=0),
            lambda rows=rows: joined.predict({"seen": rows, "age": age}, verbose=0),
            lambda rows=rows: joined.predict([rows, age], verbose=0),
        ):
            assert message_of(call) == RAGGED
    assert message_of(lambda: alone.fit(((objects(ROWS), y) for _ in range(1)), shuffle=False, verbose=0)) == RAGGED
    padded = tpu.embedding.pad_ids(ROWS, length=3)
    assert alone.predict(padded, verbose=0).shape == (4, 1)


def test_strings_and_objects():
    alone, joined = model_of(2)
    words, y = np.array([["a", "bc"]] * 4), np.ones((4, 1))
    for x, kind in ((words, "<U2"), (words.astype(object), "strings"), (words.tolist(), "strings")):
        assert message_of(lambda x=x: alone.fit(x, y, verbose=0)) == f"x['seen'] holds {kind}, {MAKE_IDS}"
    missing = np.array([[1, None]] * 4, object)
    age = np.ones((4, 1), "float32")
    assert message_of(lambda: joined.predict({"seen": missing, "age": age}, verbose=0)) == (
        "x['seen'] holds object, and the table 'movies' takes integers: put -1, which stands for no id, in place of "
        'missing values, and cast the others, array.astype("int32")'
    )


class Own(keras.Model):
    """A model that is no graph of layers, so ids of its inputs are not checked on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ShardedEmbedding(10, 1, "sum", name="movies")

    def call(self, ids: Any) -> Any:
        return self.table(ids)


def own_model() -> Any:
    with tpu.connect("virtual", cores=2).scope():
        model: Any = Own()
        model.compile("sgd", "mse")
    return model


@pytest.mark.filterwarnings("ignore:x. float64 is cast to float32:UserWarning")
def test_bad_ids_that_are_no_int32_give_nan():
    model = own_model()
    model.predict(np.zeros((2, 2), "int32"), verbose=0)
    model.table.embeddings = np.arange(10.0)[:, None]
    for bad in (np.float32(3.7), np.float32(np.nan), np.float64(5e9), np.uint32(2**32 - 1), np.int16(10), np.int8(-2)):
        x = np.array([[1, 2], [1, 3]]).astype(bad.dtype)
        x[1, 0] = bad
        for call in (lambda x=x: model.predict(x, verbose=0), lambda x=x: model.predict_on_batch(x)):
            found = np.asarray(call())[:, 0]
            assert found[0] == 3, bad
            assert np.isnan(found[1]), bad
    assert np.asarray(model.predict(np.array([[1.0, -1.0]], "float32"), verbose=0)).tolist() == [[1.0]]
    assert np.asarray(model.table(np.array([[True, False]]))).tolist() == [[1.0]]


@pytest.mark.parametrize("is_built", [False, True])
def test_integers_beyond_32_bits(is_built: bool):
    y = np.ones((1, 1), "float32")
    for bad, kind in ((2**32 + 3, "int64"), (2**32 - 1, "uint64")):
        x = np.array([[1, bad]], kind)
        for call in (
            lambda model, x=x: model.fit(x, y, verbose=0),
            lambda model, x=x: model.predict(x, verbose=0),
            lambda model, x=x: model.predict_on_batch(x),
            lambda model, x=x: model.fit(((x, y) for _ in range(1)), shuffle=False, verbose=0),
        ):
            model = own_model()
            if is_built:
                model.predict(np.ones((2, 2), int), verbose=0)
            assert message_of(lambda call=call, model=model: call(model)) == (
                f"an input has the integer {bad:,}, which 32 bits do not hold, and the model has embedding tables: "
                "check the ids, or hash them into fewer (tpu.pipeline.hash_ids)"
            )
    assert message_of(lambda: ShardedEmbedding(10, 1)(np.array([2**32]))).startswith(
        "the input has the integer 4,294,967,296, which 32 bits do not hold"
    )
