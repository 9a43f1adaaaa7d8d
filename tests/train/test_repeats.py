from __future__ import annotations

from typing import Any

import jax
import keras
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError
from anytpu.program.makers import repeats_of as repeats_of_a_job
from anytpu.train.repeats import BlockRun, cut, graphs, longest, repeats_of, run_of, shallower

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


def stack(*units: int) -> keras.Model:
    return keras.Sequential([keras.Input((16,)), *[layers.Dense(size, "relu") for size in units]])


def residual(blocks: int, skips: bool = False) -> keras.Model:
    """Return a functional model of equal blocks, with a last layer that may use the first block too."""
    inputs = keras.Input((8, 16))
    x, kept = inputs, []
    for _ in range(blocks):
        hidden = layers.Dense(32, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(16)(hidden)
        kept.append(x)
    return keras.Model(inputs, layers.Dense(3)(x + kept[0] if skips else x))


def found(model: keras.Model) -> BlockRun | None:
    return run_of(model.get_config())


def test_layers_that_are_alike_are_blocks():
    assert found(stack(16, 16, 16, 16, 4)) == BlockRun(1, 1, 4)
    assert found(stack(8, 4, 8, 4, 8, 4)) == BlockRun(2, 2, 2)  # the first layer has another input


def test_layers_that_differ_are_none():
    assert found(stack(32, 16, 8)) is None
    activations = [layers.Dense(16, name) for name in ("relu", "gelu", "tanh")]
    assert found(keras.Sequential([keras.Input((16,)), *activations])) is None


def test_names_and_seeds_do_not_count():
    drops = [layers.Dropout(0.1, seed=seed, name=f"drop {seed}") for seed in range(3)]
    assert found(keras.Sequential([keras.Input((16,)), *drops])) == BlockRun(1, 1, 3)


def test_blocks_of_a_graph():
    assert found(residual(5)) == BlockRun(1, 4, 5)
    assert found(residual(2)) == BlockRun(1, 4, 2)


def test_a_layer_behind_that_uses_an_inner_block_keeps_it():
    run = found(residual(5, skips=True))
    assert run is not None
    assert run == BlockRun(5, 4, 4)  # the first block stays, for its result is used


def test_a_layer_that_is_called_twice_is_of_no_block():
    shared, inputs = layers.Dense(16), keras.Input((16,))
    x = inputs
    for _ in range(4):
        x = shared(x)
    assert found(keras.Model(inputs, x)) is None


def test_blocks_that_share_an_input_from_before():
    inputs, mask = keras.Input((8, 16)), keras.Input((8, 8))
    x = inputs
    for _ in range(4):
        x = layers.MultiHeadAttention(2, 8)(x, x, attention_mask=mask)
    model = keras.Model([inputs, mask], x)
    assert found(model) == BlockRun(3, 1, 3)  # the first one takes its input from further back
    fewer = keras.Model.from_config(shallower(model.get_config(), 2))
    assert len(fewer.layers) == len(model.layers) - 1


@pytest.mark.parametrize("count", [1, 2, 5])
def test_fewer_blocks_are_the_same_model_with_fewer(count: int):
    model = residual(5)
    config = shallower(model.get_config(), count)
    assert config is not None
    made: Any = keras.Model.from_config(config)
    assert [weight.shape for weight in made.weights] == [weight.shape for weight in residual(count).weights]
    assert made.output_shape == model.output_shape


def test_the_configuration_that_was_given_stays():
    config = residual(3).get_config()
    before = [layer["name"] for layer in config["layers"]]
    shallower(config, 1)
    assert [layer["name"] for layer in config["layers"]] == before


def test_blocks_of_a_model_inside_of_a_model():
    outer = keras.Sequential([keras.Input((8, 16)), residual(5), layers.Dense(2)])
    config = outer.get_config()
    assert len(list(graphs(config))) == 2
    inner = longest(config)
    assert inner is not None and inner[1] == BlockRun(1, 4, 5)
    made: Any = keras.Sequential.from_config(shallower(config, 2))
    assert made.count_params() < outer.count_params()


def test_outputs_of_the_last_block_move_along():
    inputs = keras.Input((16,))
    x = inputs
    for _ in range(4):
        x = layers.Dense(16)(x)
    model = keras.Model(inputs, {"last": x, "head": layers.Dense(2)(x)})
    config = model.get_config()
    run = run_of(config)
    assert run is not None and run == BlockRun(1, 1, 4)
    cut(config, run, 2)
    made: Any = keras.Model.from_config(config)
    assert [len(weight.shape) for weight in made.weights] == [2, 1] * 3
    assert made.output_shape == model.output_shape


def test_no_blocks():
    assert shallower(stack(32, 16).get_config(), 1) is None
