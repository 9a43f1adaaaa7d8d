from __future__ import annotations

from typing import Any

import jax
import keras
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError
from anytpu.program.makers import repeats_of as repeats_of_a_job
from anytpu.train.repeats import repeats_of

layers = keras.layers


class Scale(layers.Layer):
    """A layer of the user's, which Keras knows by no name."""

    def __init__(self, factor: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.factor = factor

    def call(self, inputs: Any) -> Any:
        return self.factor * inputs

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"factor": self.factor}


class Nameless(layers.Layer):
    """A layer that cannot be made again."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def call(self, inputs: Any) -> Any:
        return inputs * 2


def network(blocks: int = 6) -> keras.Model:
    parts = [part for _ in range(blocks) for part in (layers.Dense(16, "relu"), Scale(0.5))]
    model = keras.Sequential([keras.Input((16,)), *parts, layers.Dense(2)], name="net")
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model


def test_a_model_with_fewer_blocks_trains_as_it_would():
    model = network()
    found = repeats_of(model)
    assert found is not None and found.count == 6
    assert [name.partition("_")[0] for name in found.block] == ["dense", "scale"]
    fewer = tpu.program.of(found.with_count(2), batch_size=32)
    real = tpu.program.of(network(2), batch_size=32)
    assert fewer.name == "net/train"
    shapes = [[leaf.shape for leaf in jax.tree.leaves(program.state)] for program in (fewer, real)]
    assert shapes[0] == shapes[1]


def test_the_model_stays_as_it_was():
    model = network()
    before = [(weight.path, weight.shape) for weight in model.weights]
    found = repeats_of(model)
    assert found is not None
    found.with_count(1)
    assert [(weight.path, weight.shape) for weight in model.weights] == before
    assert not model.optimizer.built
    assert model.output_shape == (None, 2)


def test_few_layers_in_blocks_are_not_worth_it():
    sizes = [layers.Dense(size) for size in (64, 32, 24, 20, 16, 16, 8)]
    assert repeats_of(keras.Sequential([keras.Input((128,)), *sizes])) is None


def test_what_is_no_graph_has_none():
    class Own(keras.Model):
        def call(self, inputs: Any) -> Any:
            return inputs

    assert repeats_of(Own()) is None
    assert repeats_of_a_job(lambda state, batch: (state, batch)) is None
    assert repeats_of_a_job(network()) is not None


def test_a_layer_that_cannot_be_made_again():
    model = keras.Sequential([keras.Input((16,)), *[Nameless(object()) for _ in range(4)]])
    found = repeats_of(model)
    if found is not None:
        with pytest.raises(
            ProgramError, match=r"^the model 'sequential(_\d+)?' cannot be made again with 2 of its equal"
        ):
            found.with_count(2)
