"""Keras models on a strategy with a layout; `tests/exact` compares each layout with plain Keras, on devices too."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import anytpu as tpu
from anytpu.errors import SettingError, StrategyError

X = np.random.default_rng(0).normal(size=(37, 32)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 37)


def model_in(strategy) -> keras.Model:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((32,)), layers.Dense(256, "relu"), layers.BatchNormalization(), layers.Dropout(0.2)]
        )
        model.add(layers.Dense(3))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    return model


def trained(strategy, **settings) -> tuple[dict, list[np.ndarray], np.ndarray]:
    model = model_in(strategy)
    history = model.fit(X, Y, 8, epochs=2, validation_data=(X[:9], Y[:9]), verbose=0, **settings).history
    return history, [np.array(variable.value) for variable in model.variables], model.predict(X, verbose=0)


def columns(name: str, shape: tuple[int, ...]) -> PartitionSpec:
    return PartitionSpec(None, "model") if shape == (32, 256) else PartitionSpec()


@pytest.mark.parametrize("layout", ["data", "fsdp", columns], ids=["data", "fsdp", "columns"])
def test_the_numbers_of_any_layout_are_those_without(layout):
    mesh = {"data": 4, "model": 2} if layout is columns else None
    history, weights, predictions = trained(tpu.connect("virtual", cores=8))
    found = trained(tpu.connect("virtual", cores=8, layout=layout, mesh=mesh))
    assert found[0] == history
    assert all(np.array_equal(one, other) for one, other in zip(weights, found[1], strict=True))
    assert np.array_equal(found[2], predictions)


def test_auto_chooses_by_the_first_step_and_tells_it(capsys):
    """The first epoch decides for training, and a prediction before it for itself."""
    strategy = tpu.connect("v2-8", layout="auto")
    assert repr(strategy) == "<TPUStrategy: v2-8, 8 virtual cores, layout auto, chosen for each model>"
    model = model_in(strategy)
    model.predict(X, verbose=0)
    assert trained(strategy)[0] == trained(tpu.connect("v2-8"))[0]
    model.fit(X, Y, 8, epochs=2, verbose=0)
    model.predict(X, verbose=0)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith('anytpu: layout="auto" is ')]
    assert [line.split("'")[1].partition("/")[2] for line in lines] == ["predict", "train", "train"]


def test_auto_chooses_once_for_a_step_in_jax(capsys):
    def step(state, x):
        return {"w": state["w"] + x.mean()}, x.sum()

    strategy = tpu.connect("v2-8", layout="auto")
    for rows in (16, 24):
        strategy.run_steps(step, iter([np.ones((rows, 4))]), 1, state={"w": np.zeros((4, 4))})
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith('anytpu: layout="auto" is ')]
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"tpu": "virtual", "cores": 3},
            'layout="auto" needs a TPU slice, not 3 virtual cores: connect to one, such as '
            'tpu.connect("v5e-8", layout="auto"), or name the layout: layout="fsdp"',
        ),
        ({"tpu": "v2-8", "mesh": {"data": 8}}, "layout=\"auto\" chooses the mesh too: leave mesh={'data': 8} out"),
    ],
)
def test_auto_is_refused(arguments, message):
    with pytest.raises(SettingError) as caught:
        tpu.connect(layout="auto", **arguments)
    assert str(caught.value) == message


def test_the_twin_sees_no_handle_opened():
    assert trained(tpu.connect("twin", cores=8, layout="fsdp"))[0] == trained(tpu.connect("virtual", cores=8))[0]


def test_callbacks_weights_and_single_batches(tmp_path: Path):
    strategy = tpu.connect("virtual", cores=8, layout="fsdp")
    model = model_in(strategy)
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "last.weights.h5", save_weights_only=True)
    seen = []
    every = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: seen.append(np.array(kernel.value)))
    kernel = model.layers[0].kernel
    model.fit(X, Y, 8, verbose=0, callbacks=[checkpoint, every])
    assert len(seen) == 5
    assert np.array_equal(seen[-1], np.array(kernel.value))
    before = model.predict_on_batch(X[:5])
    model.train_on_batch(X[:8], Y[:8])
    assert not np.array_equal(model.predict_on_batch(X[:5]), before)
    model.load_weights(tmp_path / "last.weights.h5")
    assert np.array_equal(model.predict_on_batch(X[:5]), before)


def test_one_model_on_two_layouts_of_one_system():
    model = model_in(tpu.connect("virtual", cores=8, layout="fsdp"))
    model.fit(X, Y, 8, verbose=0)
    expected = model.predict(X, verbose=0)
    with tpu.connect("virtual", cores=8).scope():
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.array_equal(model.predict(X, verbose=0), expected)


def test_a_model_of_another_scope():
    model = model_in(tpu.connect("virtual", cores=2))
    with tpu.connect("virtual", cores=8, layout="fsdp").scope(), pytest.raises(StrategyError) as caught:
        model.compile("sgd", "mse")
    path = model.layers[0].kernel.path
    assert str(caught.value) == (
        f"mixing different strategies: the variable {path!r} was made in the scope of a strategy on another system "
        "than <TPUStrategy: v2-8, 8 virtual cores, layout fsdp over data=8>. Build the model again in this scope, or "
        "compile it in the scope it was made in"
    )


@pytest.mark.parametrize("called", ["fit", "evaluate", "predict", "train_on_batch"])
def test_a_model_that_was_compiled_outside_of_the_scope(called):
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(1)], name="plain")
    model.compile("sgd", "mse")
    strategy = tpu.connect("virtual", cores=8, layout="fsdp")
    with strategy.scope(), pytest.raises(StrategyError) as caught:
        getattr(model, called)(*([X] if called == "predict" else [X, Y]))
    assert str(caught.value) == (
        f"{called} of 'plain' is called in the scope of <TPUStrategy: v2-8, 8 virtual cores, layout fsdp over data=8>, "
        "and the model was compiled outside of its scope, so it would not have this layout. Make and compile it "
        "inside: with strategy.scope(): model = make_model(); model.compile(...)"
    )


def test_a_model_that_was_compiled_in_the_scope_of_another_layout():
    model = model_in(tpu.connect("virtual", cores=8))
    with tpu.connect("virtual", cores=8, layout="fsdp").scope(), pytest.raises(StrategyError) as caught:
        model.fit(X, Y, verbose=0)
    assert "the model was compiled in the scope of <TPUStrategy: v2-8, 8 virtual cores>, so it would" in str(
        caught.value
    )
    with tpu.connect("virtual", cores=8).scope():
        model.fit(X, Y, 8, verbose=0)


def test_a_model_that_was_compiled_in_the_scope_of_another_system():
    model = model_in(tpu.connect("v2-8", layout="fsdp"))
    with tpu.connect("v3-8", layout="fsdp").scope(), pytest.raises(StrategyError) as caught:
        model.fit(X, Y, verbose=0)
    assert str(caught.value) == (
        f"fit of {model.name!r} is called in the scope of <TPUStrategy: v3-8, 8 virtual cores, layout fsdp over "
        "data=8>, and the model was compiled in the scope of <TPUStrategy: v2-8, 8 virtual cores, layout fsdp over "
        "data=8>, so it would not run on this system. Make and compile it inside: with strategy.scope(): model = "
        "make_model(); model.compile(...)"
    )


def test_the_scope_of_the_same_layout_made_again():
    """As in a notebook cell that runs twice."""
    model = model_in(tpu.connect("virtual", cores=8, layout={"kernel": (None, None)}))
    with tpu.connect("virtual", cores=8, layout={"kernel": (None, None)}).scope():
        model.fit(X, Y, 8, verbose=0)
    with tpu.connect("virtual", cores=8, layout={"kernel": ("data",)}).scope(), pytest.raises(StrategyError):
        model.fit(X, Y, 8, verbose=0)


def test_a_pattern_without_a_weight():
    model = model_in(tpu.connect("virtual", cores=8, layout={"query/kernel": ("model",)}, mesh={"model": 8}))
    with pytest.raises(SettingError) as caught:
        model.fit(X, Y, 8, verbose=0)
    kernel, second = (model.layers[index].kernel.path for index in (0, -1))
    assert str(caught.value).partition(" The nearest names are ")[0] == (
        f"the pattern 'query/kernel' of the layout matches no weight of '{model.name}/train'."
    )
    assert repr(kernel) in str(caught.value) and repr(second) in str(caught.value)
