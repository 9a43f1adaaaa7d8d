"""The weights of a checkpoint in another model, in Keras's files and in safetensors files, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import FileError, SettingError
from cli.commands import anytpu
from estimator_samples import estimator, input_fn, model_fn
from safetensors_reader import read

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def model_of(units: int = 8, name: str | None = None) -> Any:
    layers = keras.layers
    body = [keras.Input((3,)), layers.Dense(units), layers.BatchNormalization(), layers.Dropout(0.5)]
    return keras.Sequential([*body, layers.Dense(1)], name=name)


def fitted(folder: Path, layout: str | None = None) -> Any:
    with tpu.connect("virtual", cores=4, layout=layout).scope():
        model = model_of()
        model.compile("adam", "mse", metrics=["mae"], steps_per_execution=1)
    saved = tpu.Checkpointer(folder, every_steps=2, keep=5)
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0, checkpoint_dir=saved)
    return model


def bits(model: Any) -> list[bytes]:
    return [np.asarray(weight.value).tobytes() for weight in model.weights]


def exported(folder: Path, *words: str) -> dict[str, np.ndarray]:
    path = folder.parent / "weights.safetensors"
    run = anytpu("checkpoints", str(folder), "--export", str(path), *words)
    assert (run.returncode, run.stderr) == (0, "")
    arrays, notes = read(path)
    assert run.stdout.startswith(f"{path} has the {len(arrays)} weights of step {notes['step']}: ")
    return arrays


@pytest.mark.parametrize("layout", [None, "fsdp"])
def test_the_weights_of_a_fit(tmp_path: Path, layout: str | None):
    model = fitted(tmp_path / "run7", layout)
    saved = tpu.Checkpointer(tmp_path / "run7")
    # 1. Into a plain model, and into one that has trained in a scope.
    plain = model_of()
    assert saved.load_weights(plain) == 4
    assert bits(plain) == bits(model)
    predictions = model.predict(X, verbose=0)
    trained = fitted(tmp_path / "other", layout)
    trained.fit(X, Y, verbose=0)
    saved.load_weights(trained)
    assert bits(trained) == bits(model)
    assert np.array_equal(trained.predict(X, verbose=0), predictions)
    # 2. Keras's own file.
    plain.save_weights(tmp_path / "run7.weights.h5")
    fresh = model_of()
    fresh.load_weights(tmp_path / "run7.weights.h5")
    assert bits(fresh) == bits(model)
    # 3. A safetensors file.
    arrays = exported(tmp_path / "run7")
    base = "sequential"
    assert sorted(arrays) == sorted(
        [
            *(f"{base}/{layer}/{weight}" for layer in ("dense", "dense_1") for weight in ("kernel", "bias")),
            *(f"{base}/batch_normalization/{w}" for w in ("gamma", "beta", "moving_mean", "moving_variance")),
        ]
    )
    assert sorted(array.tobytes() for array in arrays.values()) == sorted(bits(model))
    assert arrays[f"{base}/dense/kernel"].tobytes() == bits(model)[0]
    earlier = model_of()
    assert saved.load_weights(earlier, step=2) == 2
    assert exported(tmp_path / "run7", "--step", "2")[f"{base}/dense/kernel"].tobytes() == bits(earlier)[0]
    assert bits(earlier) != bits(model)


def test_the_models_of_a_custom_loop(tmp_path: Path):
    # Their automatic numbers go on from the first to the second.
    first, second, average = model_of(), model_of(), keras.metrics.Mean()
    optimizer = keras.optimizers.SGD()
    optimizer.build(first.trainable_variables)
    objects = {"first": first, "second": second, "average": average, "optimizer": optimizer}
    saved = tpu.Checkpointer(tmp_path / "run8")
    for _ in saved.steps(2, **objects):
        average.update_state(3.0)
        for weight in (*first.weights, *second.weights):
            weight.assign_add(keras.random.normal(weight.shape))
    for name, model in (("first", first), ("second", second)):
        fresh = model_of()
        assert saved.load_weights(fresh, name=name) == 2
        assert bits(fresh) == bits(model)
    arrays = exported(tmp_path / "run8")
    assert sorted(a.tobytes() for a in arrays.values()) == sorted(bits(first) + bits(second))
    assert arrays["second/sequential_1/dense_2/kernel"].tobytes() == bits(second)[0]
    with pytest.raises(SettingError) as raised:
        saved.load_weights(model_of())
    assert str(raised.value) == (
        f"name must be one of 'first', 'second', the models in the checkpoint {str(tmp_path / 'run8' / '2')!r}, "
        "not None"
    )


def test_the_arrays_of_a_jax_program(tmp_path: Path):
    state = {"params": {"w": np.arange(6.0).reshape(2, 3)}, "count": 0}
    for _ in tpu.Checkpointer(tmp_path / "run9").steps(2, state=state):
        state["count"] += 1
    arrays = exported(tmp_path / "run9")
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "state/params/w": [[0, 1, 2], [3, 4, 5]],
        "state/count": 2,
    }
    with pytest.raises(FileError) as raised:
        tpu.Checkpointer(tmp_path / "run9").load_weights(model_of())
    assert str(raised.value) == (
        f"the checkpoint {str(tmp_path / 'run9' / '2')!r} has no weights of a Keras model. Read its arrays with "
        f"`anytpu checkpoints {tmp_path / 'run9'} --export weights.safetensors`"
    )


def test_the_weights_of_an_estimator(tmp_path: Path):
    made = estimator(tmp_path / "digits", model_fn)
    made.train(input_fn, max_steps=4)
    arrays = exported(tmp_path / "digits")
    weights = {name: made.get_variable_value(name) for name in arrays}
    assert {name: array.tobytes() for name, array in arrays.items()} == {n: w.tobytes() for n, w in weights.items()}
    assert sorted(arrays) == sorted(
        [
            *(f"{layer}/{weight}" for layer in ("dense", "dense_1") for weight in ("kernel", "bias")),
            *(f"batch_normalization/{weight}" for weight in ("gamma", "beta", "moving_mean", "moving_variance")),
        ]
    )
    with pytest.raises(FileError) as raised:
        tpu.Checkpointer(tmp_path / "digits").load_weights(model_of())
    assert str(raised.value) == (
        f"the checkpoint {str(tmp_path / 'digits' / '4')!r} was made by TPUEstimator, whose variables have the names "
        f"of its model_fn. Read its arrays with `anytpu checkpoints {tmp_path / 'digits'} --export weights.safetensors`"
    )


def test_a_model_that_does_not_fit_is_not_changed(tmp_path: Path):
    fitted(tmp_path)
    saved, other = tpu.Checkpointer(tmp_path), model_of(units=9, name="sequential")
    before = bits(other)
    with pytest.raises(FileError) as raised:
        saved.load_weights(other)
    kernels = [("dense/kernel", "[3, 8]", "[3, 9]"), ("dense/bias", "[8]", "[9]")]
    kernels += [("batch_normalization/gamma", "[8]", "[9]"), ("batch_normalization/beta", "[8]", "[9]")]
    kernels += [("dense_1/kernel", "[8, 1]", "[9, 1]")]
    sides = ", ".join(
        f"'trainable/sequential/{name}' float32{saved} in the checkpoint and float32{model} in the model"
        for name, saved, model in kernels
    )
    assert str(raised.value) == (
        f"the checkpoint {str(tmp_path / '4')!r} does not fit the model 'sequential'. With another shape: {sides} and "
        "2 more. Build it as it was, or choose another folder"
    )
    assert bits(other) == before
    with pytest.raises(SettingError) as unbuilt:
        saved.load_weights(keras.Sequential([keras.layers.Dense(2)], name="later"))
    assert str(unbuilt.value) == ("the model 'later' has no weights yet: build it first, for example with build(...)")


def test_errors_of_the_command(tmp_path: Path):
    fitted(tmp_path / "run7")
    for words, error in {
        ("--export", "run7.h5"): (
            "--export run7.h5: a table of weights is written to a file whose name ends in .safetensors: "
            "--export run7.safetensors"
        ),
        ("--step", "2"): "--step names the checkpoint to export: add --export weights.safetensors",
        ("--export", "a.safetensors", "--step", "3"): (
            f"the checkpoint of step 3 in {str(tmp_path / 'run7')!r} cannot be used: it has no manifest.json. "
            "Steps with a checkpoint: 2, 4"
        ),
    }.items():
        run = anytpu("checkpoints", "run7", *words, folder=tmp_path)
        assert (run.returncode, run.stdout, run.stderr) == (2, "", f"anytpu: {error}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["run7"]
