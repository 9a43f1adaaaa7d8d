"""Augmentation and preprocessing layers: which are compiled, with Keras's numbers, and which are named."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers

import anytpu as tpu
from anytpu import program
from anytpu.errors import SettingError
from anytpu.train import host_layers
from anytpu.train.compiled_models import trainer_of
from keras_oracle import PLACES, agrees, close, compiled, run, values

SIZE, CLASSES, ROWS = 10, 3, 20
IMAGES = np.random.default_rng(4).uniform(size=(ROWS, SIZE, SIZE, 3)).astype("float32")
LABELS = np.random.default_rng(5).integers(0, CLASSES, ROWS).astype("int32")
# A last batch of 4 rows, on cores that do not divide it.
FIT = {"batch_size": 8, "epochs": 2, "verbose": 0}

# Layers whose supports_jit is False, or that hold such a layer, and which JAX compiles.
COMPILED: dict[str, Callable[[], Any]] = {
    "RandomCrop": lambda: layers.RandomCrop(6, 7),
    "RandomPerspective": lambda: layers.RandomPerspective(0.6),
    "RandomRotation": lambda: layers.RandomRotation(0.2),
    "RandomShear": lambda: layers.RandomShear(0.3, 0.2),
    "RandomTranslation": lambda: layers.RandomTranslation(0.2, 0.3),
    "RandomZoom": lambda: layers.RandomZoom(0.3),
    "Pipeline": lambda: layers.Pipeline([layers.RandomFlip(), layers.RandomRotation(0.1), layers.RandomContrast(0.2)]),
}


def convnet(*augmentation: Any, name: str = "augmented", **settings: Any) -> Any:
    return compiled(
        keras.Sequential(
            [
                keras.Input((SIZE, SIZE, 3)),
                *augmentation,
                layers.Conv2D(4, 3, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dropout(0.2),
                layers.Dense(CLASSES),
            ],
            name=name,
        ),
        **settings,
    )


def train(model: Any) -> Any:
    history = model.fit(IMAGES, LABELS, validation_split=0.4, **FIT)
    return history, model.evaluate(IMAGES, LABELS, verbose=0), model.predict(IMAGES, verbose=0)


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """Collect the texts of the user warnings of a block."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(warning.message) for warning in caught if warning.category is UserWarning]


@pytest.mark.parametrize("name", COMPILED)
def test_an_augmented_model_trains_compiled_with_the_numbers_of_keras(name: str):
    agrees(lambda: convnet(COMPILED[name]()), train, tolerance=2e-5)


@pytest.mark.parametrize("place", PLACES)
def test_it_trains_on_the_cores_and_nothing_warns(place: str):
    strategy = tpu.connect(place)
    with told() as texts:
        with strategy.scope():
            model = convnet(layers.RandomRotation(0.2), layers.RandomCrop(6, 6))
        model.fit(IMAGES, LABELS, **FIT)
    assert texts == []
    assert model.jit_compile
    assert strategy.compilations > 0


def test_a_layer_that_holds_others():
    """Not trained here: Keras unrolls its equalization into 256 comparisons, which take a minute to compile."""
    with tpu.connect("virtual").scope():
        model = convnet(layers.RandAugment(value_range=(0, 1)))
    assert model.jit_compile
    assert trainer_of(model) is not None


def test_a_functional_model_and_one_in_another():
    def make():
        inner = keras.Sequential([layers.RandomZoom(0.2), layers.RandomTranslation(0.1, 0.1)])
        inputs = keras.Input((SIZE, SIZE, 3))
        outputs = layers.Dense(CLASSES)(layers.Flatten()(layers.Conv2D(4, 3)(inner(inputs))))
        return compiled(keras.Model(inputs, outputs))

    agrees(make, train, places=PLACES, tolerance=2e-5)


def test_each_step_of_a_call_draws_its_own_numbers():
    """Four steps of one call train like four calls of one step, and like Keras's."""

    def in_one_call(model: Any) -> Any:
        return model.fit(IMAGES, LABELS, batch_size=5, shuffle=False, verbose=0)

    def make(steps: int) -> Any:
        return convnet(layers.RandomCrop(5, 5), layers.RandomRotation(0.3), steps_per_execution=steps)

    results = [run(lambda: make(4), in_one_call, place) for place in ("virtual", None)]
    results.append(run(lambda: make(1), in_one_call, "virtual"))
    for model, history in results[1:]:
        close(values(results[0][0]), values(model))
        close(results[0][1], history)


@pytest.mark.parametrize("make", [*COMPILED.values()], ids=[*COMPILED])
def test_predict_and_evaluate_do_not_augment(make: Callable[[], Any]):
    with tpu.connect("virtual").scope():
        augmented, plain = convnet(make()), convnet()
    plain.set_weights(augmented.get_weights()[-4:])
    close(augmented.predict(IMAGES, verbose=0), plain.predict(IMAGES, verbose=0))
    close(augmented.evaluate(IMAGES, LABELS, verbose=0), plain.evaluate(IMAGES, LABELS, verbose=0))


# What keeps a model in Keras's own loop.

WORDS = {
    "AugMix": "chooses its operations with Python's random module, which a compiled step would call once",
    "RandomElasticTransform": "makes a kernel of a random size",
}
APPLY = (
    "Leave it out of the model and apply it to the data, for example dataset.map(lambda batch: "
    "(layer(batch[0]), batch[1]))"
)


@pytest.mark.parametrize("name", WORDS)
def test_a_layer_on_the_host_is_named(name: str):
    def make():
        return convnet(getattr(layers, name)(value_range=(0, 1), name="shaker"))

    with told() as texts:
        model, _ = run(make, lambda model: model.fit(IMAGES, LABELS, **FIT), "virtual")
    reason = f"the layer 'shaker' ({name}) {WORDS[name]}"
    assert texts == [
        f"'augmented' runs in Keras's own loop on one device, not on the cores of the strategy: {reason}. {APPLY}"
    ]
    with pytest.raises(SettingError) as raised:
        model.fit(IMAGES, LABELS, on_nan="raise")
    assert str(raised.value) == (
        f"on_nan='raise' watches the compiled loop, and 'augmented' does not use it: {reason}. Remove that, "
        "or pass callbacks=[keras.callbacks.TerminateOnNaN()]"
    )


@pytest.mark.parametrize("name", WORDS)
def test_what_the_word_says_to_write_trains_on_the_cores(name: str):
    layer = getattr(layers, name)(value_range=(0, 1))
    dataset = tpu.pipeline.Dataset.from_arrays((IMAGES, LABELS)).batch(5)
    strategy = tpu.connect("virtual")
    with strategy.scope():
        model = convnet()
    model.fit(dataset.map(lambda batch: (layer(batch[0]), batch[1])), verbose=0)
    assert strategy.compilations > 0


def test_the_layers_with_words_are_keras_own():
    lookups = {"HashedCrossing", "Hashing", "IntegerLookup", "StringLookup", "TextVectorization"}
    assert set(host_layers._HOST) == {*WORDS, *lookups}
    assert all(hasattr(layers, name) for name in (*host_layers._HOST, *host_layers._COMPILED))


class Tilt(layers.RandomRotation):
    """A layer of the user's own, derived from one of Keras's."""


def test_a_layer_of_the_users_is_what_it_says():
    with tpu.connect("virtual").scope():
        model = convnet(Tilt(0.1, name="tilt"))
    with told() as texts:
        model.fit(IMAGES, LABELS, **FIT)
    assert texts == [
        "'augmented' runs in Keras's own loop on one device, not on the cores of the strategy: the layer 'tilt' (Tilt) "
        "has supports_jit=False. If JAX can trace its call, set supports_jit = True on the layer before model.compile"
    ]

    def make():
        tilt = Tilt(0.1)
        tilt.supports_jit = True
        return convnet(tilt)

    agrees(make, train, tolerance=2e-5)
    assert trainer_of(run(make, lambda model: None, "virtual")[0]) is not None


@pytest.mark.parametrize("value", [True, False])
def test_an_explicit_jit_compile(value: bool):
    with told() as texts:
        model, _ = run(
            lambda: convnet(layers.RandomRotation(0.1), jit_compile=value),
            lambda model: model.fit(IMAGES, LABELS, **FIT),
            "virtual",
        )
    loop = "'augmented' runs in Keras's own loop on one device, not on the cores of the strategy: jit_compile=False"
    assert texts == ([] if value else [loop])
    assert model.jit_compile is value


def test_a_model_outside_any_scope_stays_keras():
    tpu.connect("virtual")
    with told() as texts:
        assert convnet(layers.RandomRotation(0.1)).jit_compile is False
        assert convnet(layers.RandomRotation(0.1), jit_compile=True).jit_compile is False
    assert texts == ["Model doesn't support `jit_compile=True`. Proceeding with `jit_compile=False`."]


def test_models_are_saved_and_loaded(tmp_path: Path):
    convnet(layers.RandomRotation(0.1)).save(tmp_path / "plain.keras")
    strategy = tpu.connect("virtual")
    with told() as texts:
        with strategy.scope():
            model: Any = keras.models.load_model(tmp_path / "plain.keras")
        assert model.jit_compile
        model.fit(IMAGES, LABELS, **FIT)
        model.save(tmp_path / "ours.keras")
        plain: Any = keras.models.load_model(tmp_path / "ours.keras")
        assert plain.jit_compile is False
        with strategy.scope():
            again: Any = keras.models.load_model(tmp_path / "ours.keras")
        assert again.jit_compile
    assert not [text for text in texts if "jit_compile" in text]
    assert strategy.compilations > 0


# RandomCrop, which Keras cannot compile.


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("is_batched", [True, False])
def test_a_compiled_crop_is_the_crop_of_keras(data_format: str, is_batched: bool):
    host_layers.install()
    layer = layers.RandomCrop(4, 3, data_format=data_format, seed=3)
    layer.build(None)
    images = np.random.default_rng(0).normal(size=(5, 7, 6, 7)).astype("float32")
    images = {"images": images, "segmentation_masks": np.round(images)}
    if not is_batched:
        images = {name: array[0] for name, array in images.items()}

    def crop(seeds: Any, images: Any) -> Any:
        return layer.stateless_call([], seeds, dict(images), training=True)

    compiled_crop = jax.jit(crop)
    seeds = [variable.value for variable in layer.non_trainable_variables]
    for _ in range(8):
        expected, _ = crop(seeds, images)
        got, seeds = compiled_crop(seeds, images)
        close(got, expected, tolerance=0)


def test_an_image_that_is_smaller_than_the_crop():
    agrees(lambda: convnet(layers.RandomCrop(12, 12)), train, tolerance=2e-5)


def test_a_crop_in_a_program():
    model = convnet(layers.RandomCrop(6, 6))
    with told() as texts:
        made = program.of(model, batch_size=8)
    assert texts == []
    assert made is not None


def test_a_crop_in_a_custom_loop():
    strategy = tpu.connect("virtual", cores=2)
    with strategy.scope():
        crop = layers.RandomCrop(3, 3)
    out = strategy.run(lambda images: crop(images, training=True), args=(tpu.PerReplica(np.split(IMAGES, 2)),))
    for cropped, images in zip(strategy.experimental_local_results(out), np.split(IMAGES, 2), strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
        assert any(np.array_equal(windows[:, top, left], np.asarray(cropped)) for top in range(8) for left in range(8))
