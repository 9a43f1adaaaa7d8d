"""Blocks of models whose configuration has only the number of their layers."""

from __future__ import annotations

from typing import Any

import jax
import keras
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError
from anytpu.program.makers import repeats_of

layers = keras.layers


@keras.saving.register_keras_serializable("numbered blocks")
class Block(layers.Layer):
    """A residual block, wide or narrow."""

    def __init__(self, wide: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.wide = wide
        self.up = layers.Dense(32 if wide else 8, "relu", name="up")
        self.down = layers.Dense(8, name="down")

    def build(self, shape: Any) -> None:
        self.up.build(shape)
        self.down.build((*shape[:-1], self.up.units))

    def call(self, x: Any) -> Any:
        return x + self.down(self.up(x))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"wide": self.wide}


@keras.saving.register_keras_serializable("numbered blocks")
class Backbone(keras.Model):
    """A functional model with a configuration of its own, as KerasHub's backbones: each third block is wide."""

    def __init__(self, num_layers: int, heads: int = 8, **settings: Any) -> None:
        x = inputs = keras.Input((8,))
        for index in range(num_layers):
            x = Block(index % 3 == 2, name=f"block_{index}")(x)
        super().__init__(inputs, layers.Dense(4, name="out")(x), **settings)
        self.num_layers, self.heads = num_layers, heads

    def get_config(self) -> dict[str, Any]:
        return {"num_layers": self.num_layers, "heads": self.heads, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(**config)


def deep(number: int, rank: int | None = None) -> Any:
    keras.backend.clear_session(free_memory=False)  # The names of the optimizer's arrays begin anew.
    model = Backbone(number, name="deep")
    if rank is not None:
        for layer in model._flatten_layers(include_self=False):
            if isinstance(layer, layers.Dense) and layer.name == "up":
                layer.enable_lora(rank)
            elif isinstance(layer, layers.Dense):
                layer.trainable = False
    model.compile("adam", "mse")
    return model


def shapes(model: Any) -> dict[str, tuple[int, ...]]:
    program = tpu.program.of(model, batch_size=4)
    return dict(zip(program.state_names, (leaf.shape for leaf in jax.tree.leaves(program.state)), strict=True))


@pytest.mark.parametrize("rank", [None, 2])
def test_a_period_is_a_block(rank: int | None):
    found = repeats_of(deep(11, rank))
    assert found is not None
    assert (found.count, found.period) == (3, 3)
    # Two layers fill no block: they stay.
    assert shapes(found.with_count(1)) == shapes(deep(5, rank))
    assert shapes(found.with_count(3)) == shapes(deep(11, rank))


def test_the_program_is_that_of_a_shallow_model():
    found = repeats_of(deep(11, 2))
    assert found is not None
    remade, real = (tpu.program.of(model, batch_size=4) for model in (found.with_count(2), deep(8, 2)))
    texts = [jax.jit(program.step).lower(program.state, program.batch).as_text() for program in (remade, real)]
    assert texts[0] == texts[1]


def test_layers_that_do_not_repeat():
    assert repeats_of(deep(4)) is None  # a period of three does not repeat


@keras.saving.register_keras_serializable("numbered blocks")
class Other(Backbone):
    """A model that adds a layer if it is shallow."""

    def __init__(self, num_layers: int, heads: int = 8, **settings: Any) -> None:
        super().__init__(num_layers, heads, **settings)
        if num_layers < 9:
            self.extra = layers.Dense(3)


def test_a_model_that_is_made_otherwise_is_refused():
    model = Other(9, name="deep")
    model.compile("adam", "mse")
    found = repeats_of(model)
    assert found is not None
    with pytest.raises(ProgramError) as error:
        found.with_count(1)
    assert str(error.value) == (
        "the model 'deep' cannot be made again with 1 of its equal blocks: with num_layers=3 it has other layers"
    )
