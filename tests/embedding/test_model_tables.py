"""The tables of a model, as `fit` finds them."""

from __future__ import annotations

from typing import Any

import keras

from anytpu.embedding import ModelTables, ShardedEmbedding
from anytpu.strategy.state_extension import extension_of


def test_a_model_with_a_table_has_an_extension_and_others_have_none():
    table = ShardedEmbedding(8, 2, "sum", "adagrad", name="items")
    ids, numbers = keras.Input((3,), dtype="int32"), keras.Input((2,))
    model: Any = keras.Model(ids, keras.Sequential([table, keras.layers.Dense(1)])(ids))
    found = extension_of(model)
    assert isinstance(found, ModelTables)
    assert {path.split("/")[-1]: is_slot for path, is_slot in found.tables.items()} == {
        "embeddings": False,
        "embeddings_accumulator": True,
    }
    assert extension_of(keras.Model(numbers, keras.layers.Dense(1)(numbers))) is None
