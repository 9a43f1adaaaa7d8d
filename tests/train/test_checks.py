"""What cannot be trained on is refused in one paragraph; what must be cast is cast on the host, and said once."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections import UserDict
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, SettingError
from error_texts import error_text
from keras_oracle import CLASSES, FEATURES, PLACES, classifier, close, compiled, rows, run

X, Y = rows()


@pytest.fixture(scope="module")
def model() -> Any:
    return run(classifier, lambda model: None, "virtual")[0]


@pytest.mark.parametrize("value", [0, -8, 2.5, True, "32", np.float32(8)])
def test_batch_sizes_that_cannot_be(model: Any, value: Any):
    expected = f"batch_size must be a positive integer, or None for 32, not {value!r}"
    assert error_text(lambda: model.fit(X, Y, batch_size=value), kind=SettingError) == expected
    assert error_text(lambda: model.evaluate(X, Y, value), kind=SettingError) == expected
    assert error_text(lambda: model.predict(X, batch_size=value), kind=SettingError) == expected
    assert error_text(
        lambda: model.fit(X, Y, validation_data=(X, Y), validation_batch_size=value), kind=SettingError
    ) == (f"validation_batch_size must be a positive integer, or None for the batch_size, not {value!r}")


@pytest.mark.parametrize("value", [0, -1, 1.5, "all"])
def test_numbers_of_steps_that_cannot_be(model: Any, value: Any):
    text = "{} must be a positive integer, or None for all of the data, not {!r}"
    calls = {
        "steps_per_epoch": lambda: model.fit(X, Y, steps_per_epoch=value),
        "validation_steps": lambda: model.fit(X, Y, validation_data=(X, Y), validation_steps=value),
        "steps": lambda: model.predict(X, steps=value),
    }
    for name, call in calls.items():
        assert error_text(call, kind=SettingError) == text.format(name, value)


SETTINGS = {
    "epochs": ("an integer of at least 0", ["3", 2.5, -1, None, np.True_]),
    "initial_epoch": ("an integer of at least 0", ["1", -1]),
    "verbose": ('0, 1, 2 or "auto"', ["yes", "1"]),
    "shuffle": ('True, False or "batch"', ["batches"]),
    "validation_split": (
        "the part of the examples to validate on, 0 or more and below 1",
        [1.5, 1, -0.2, "0.2", math.nan],
    ),
    "validation_freq": ("a positive integer or a list", ["2", 0, -1, (1, 2), None]),
    "class_weight": (
        "a dictionary of weights by the index of the class, such as {0: 1.0, 1: 2.5}",
        ["balanced", [1, 2], {"a": 1.0}, {0: "big"}, {0: np.ones(1)}],
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_cannot_be(model: Any, name: str):
    expected, values = SETTINGS[name]
    split = {"validation_split": 0.5}
    for value in values:
        text = error_text(lambda value=value: model.fit(X, Y, **{**split, name: value}), kind=SettingError)
        assert text == f"{name} must be {expected}, not {value!r}"


TAKEN = {
    "epochs": [np.array(1), jnp.int32(1), True],
    "initial_epoch": [False],
    "batch_size": [np.array(8), jnp.int32(8)],
    "verbose": [3, None, True],
    "shuffle": ["batch", 1],
    "validation_split": [np.array(0.5), jnp.float32(0.5), np.float32(0.5)],
    "validation_freq": [None, 0],
    "class_weight": [
        {np.False_: 1.0, np.True_: 2.0, 2: 1.0},
        UserDict({0: jnp.float32(1), 1: np.array(2.0), np.int64(2): Decimal(1)}),
    ],
}


@pytest.mark.parametrize("name", TAKEN)
def test_settings_that_keras_takes(model: Any, name: str):
    for value in TAKEN[name]:
        history = model.fit(X, Y, **{"verbose": 0, name: value}).history
        assert len(history["loss"]) == 1
        assert np.isfinite(history["loss"]).all()


def test_a_numpy_integer_is_a_validation_freq(model: Any):
    history = model.fit(X, Y, validation_data=(X, Y), validation_freq=np.int64(2), epochs=2, verbose=0).history
    assert len(history["val_loss"]) == 1


def test_weights_of_one_batch_as_numbers(model: Any):
    """Keras takes a number and a list of numbers in the methods for one batch."""
    for weights in (2.0, [0.0] * (len(X) - 1) + [3.0]):
        array = np.full(len(X), weights, "float32")
        assert model.test_on_batch(X, Y, sample_weight=weights) == model.test_on_batch(X, Y, sample_weight=array)
    text = error_text(lambda: model.test_on_batch(X, Y, sample_weight=["a"]), kind=DataError)
    assert text == "sample_weight[0] is 'a', and not an array: pass the numbers of sample_weight as np.array(...)"


def test_callbacks_of_other_classes(model: Any, tmp_path: Path):
    class Quacking:
        def __getattr__(self, name: str) -> Any:
            if name.startswith(("on_", "set_")):
                return lambda *args, **kwargs: None
            raise AttributeError(name)

    model.fit(X, Y, callbacks=[Quacking()], verbose=0)
    # It saves nothing in evaluate.
    model.evaluate(X, Y, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "run", save_freq=5)], verbose=0)


def test_callbacks_that_are_none(model: Any):
    text = (
        "callbacks must be objects such as keras.callbacks.{}(), not {!r}: make one with its arguments, or derive its "
        "class from keras.callbacks.Callback"
    )
    stop = keras.callbacks.EarlyStopping
    for given, shown in ((["early"], "early"), (stop, stop), ([None], None)):
        for call in (model.fit, model.evaluate):
            said = error_text(lambda given=given, call=call: call(X, Y, callbacks=given), kind=SettingError)
            assert said == text.format("EarlyStopping", shown)


def test_lists_and_paths_that_are_no_arrays(model: Any):
    text = "{} is {}, and not an array: pass the numbers of {} as np.array(...)"
    for path in ("data.csv", b"data.csv", Path("data.csv")):
        assert error_text(lambda path=path: model.fit(path, Y), kind=DataError) == text.format("x", repr(path), "x")
    assert error_text(lambda: model.fit(X, Y, sample_weight=[1, 2]), kind=DataError) == text.format(
        "sample_weight[0]", "1", "sample_weight"
    )
    assert error_text(lambda: model.predict([[0.5]]), kind=DataError) == text.format("x[0][0]", "0.5", "x")


def test_numpy_integers_are_integers(model: Any):
    model.fit(X, Y, batch_size=np.int64(8), steps_per_epoch=np.int32(6), verbose=0)


def test_whole_floats_are_numbers_of_steps(model: Any):
    """`rows / batch // cores` is a float."""
    model.fit(X, Y, batch_size=8, steps_per_epoch=np.float64(6.0), verbose=0)


LENGTHS = {
    "x has 48, y has 47": {"x": X, "y": Y[:47]},
    "x has 48, y has 48, sample_weight has 3": {"x": X, "y": Y, "sample_weight": np.ones(3, "float32")},
    "x['left'] has 48, x['right'] has 40, y has 48": {"x": {"left": X, "right": X[:40]}, "y": Y},
    "x[0] has 48, x[1] has 40, y has 48": {"x": [X, X[:40]], "y": Y},
    "validation_data[0] has 9, validation_data[1] has 8": {"x": X, "y": Y, "validation_data": (X[:9], Y[:8])},
}


@pytest.mark.parametrize("listed", LENGTHS)
def test_arrays_of_different_lengths(model: Any, listed: str):
    expected = f"all arrays must have the same number of examples, but {listed}. Cut or fill them to one length"
    assert error_text(lambda: model.fit(**LENGTHS[listed]), kind=DataError) == expected


def test_lengths_for_each_method(model: Any):
    expected = "all arrays must have the same number of examples, but x has 48, y has 7. Cut or fill them to one length"
    for method in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
        assert error_text(lambda m=method: m(X, Y[:7]), kind=DataError) == expected


def test_nothing_at_all(model: Any):
    nothing = "there is nothing to compute on: {} examples. Pass at least one"
    assert error_text(lambda: model.fit(X[:0], Y[:0]), kind=DataError) == nothing.format("x has 0, y has 0")
    assert error_text(lambda: model.evaluate(X[:0], Y[:0]), kind=DataError) == nothing.format("x has 0, y has 0")
    assert error_text(lambda: model.predict(X[:0]), kind=DataError) == nothing.format("x has 0")
    assert error_text(lambda: model.train_on_batch(X[:0], Y[:0]), kind=DataError) == nothing.format("x has 0, y has 0")
    assert error_text(lambda: model.fit(X, Y, validation_data=(X[:0], Y[:0])), kind=DataError) == nothing.format(
        "validation_data[0] has 0, validation_data[1] has 0"
    )


def test_a_data_set_without_a_batch(model: Any):
    class Empty(keras.utils.PyDataset):
        def __len__(self):
            return 0

        def __getitem__(self, index):
            raise IndexError

    text = error_text(lambda: model.fit(Empty(), verbose=0), kind=DataError)
    assert text == "the data yielded no batch in epoch 1: pass a data set or a generator that yields at least one"


STRINGS = np.array(["a", "b"] * 24)
OBJECTS = np.array([[1], [2, 3]] * 24, dtype=object)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("x holds <U1", {"x": STRINGS}),
        ("x['age'] holds object", {"x": {"size": X, "age": OBJECTS}}),
        ("x[1] holds <U1", {"x": [X, STRINGS]}),
        ("x[0]['deep'] holds |S1", {"x": [{"deep": STRINGS.astype("S1")}, X]}),
        ("x holds datetime64[D]", {"x": np.full(48, np.datetime64("2020-01-01"))}),
    ],
)
def test_strings_and_objects(model: Any, name: str, given: Any):
    expected = (
        f"{name}, which no TPU computes with. Turn its values into numbers first: strings, for example, with "
        "keras.layers.StringLookup or np.unique(..., return_inverse=True), and objects with np.stack"
    )
    for method in (model.fit, model.evaluate, model.train_on_batch):
        assert error_text(lambda m=method: m(y=Y, **given), kind=DataError) == expected
    assert error_text(lambda: model.predict(**given), kind=DataError) == expected


def test_strings_from_a_generator(model: Any):
    def words():
        yield {"text": STRINGS}, Y
        yield {"text": STRINGS}, Y

    expected = "x['text'] holds <U1, which no TPU computes with. Turn its values into numbers first: "
    assert error_text(lambda: model.fit(words(), shuffle=False), kind=DataError).startswith(expected)


def test_strings_in_y(model: Any):
    assert error_text(lambda: model.fit(X, STRINGS), kind=DataError).startswith(
        "y holds <U1, which no TPU computes with."
    )


def test_a_single_number(model: Any):
    text = "y is a single number, array(3): pass an array whose first axis counts the examples"
    assert error_text(lambda: model.fit(X, np.array(3)), kind=DataError) == text


WIDE = X.astype("float64")


def told_by(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        call()
    assert all(warning.filename == __file__ for warning in told)
    return [str(warning.message) for warning in told]


CAST = ": float64 is cast to float32 on the host. To save that, pass float32 arrays: "


def test_float64_is_cast_and_said_once(model: Any):
    assert told_by(lambda: model.fit(WIDE, Y, validation_data=(WIDE, Y), epochs=2, verbose=0)) == [
        f'x, validation_data[0]{CAST}x.astype("float32")'
    ]
    assert told_by(lambda: model.fit(WIDE, Y, validation_split=0.5, verbose=0)) == [f'x{CAST}x.astype("float32")']
    assert told_by(lambda: model.predict(WIDE, verbose=0)) == [f'x{CAST}x.astype("float32")']
    assert told_by(lambda: model.evaluate(X, Y.astype("float64"), verbose=0)) == [f'y{CAST}y.astype("float32")']
    assert told_by(lambda: model.train_on_batch(WIDE, Y)) == [f'x{CAST}x.astype("float32")']


# Plain Keras 3.15, which the results are compared with, has JAX trace int64 labels, of which jax 0.11 and later warn.
OF_PLAIN_KERAS = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64 requested in ShapeDtypeStruct")


@OF_PLAIN_KERAS
def test_float64_in_nested_inputs():
    def make():
        left, right = keras.Input((FEATURES,), name="left"), keras.Input((2,), name="right")
        outputs = keras.layers.Dense(CLASSES)(keras.layers.concatenate([left, right]))
        return compiled(keras.Model({"left": left, "right": right}, outputs))

    def fit(model, dtype):
        x = {"left": X, "right": X[:, :2].astype(dtype)}
        return model.fit(x, Y.astype("int64"), batch_size=8, verbose=0)

    results = [run(make, lambda model: fit(model, "float32"), None)[1]]
    for place in PLACES:
        assert told_by(lambda place=place: results.append(run(make, lambda m: fit(m, "float64"), place)[1])) == [
            f"x['right']{CAST}x['right'].astype(\"float32\")"
        ]
        close(results[-1], results[0])


@OF_PLAIN_KERAS
def test_float64_and_int64_from_a_generator():
    def batches(dtype):
        for _ in range(2):
            for start in range(0, 43, 8):
                yield X[start : start + 8].astype(dtype), Y[start : start + 8].astype("int64")

    def fit(model, dtype):
        return model.fit(batches(dtype), steps_per_epoch=6, epochs=2, shuffle=False, verbose=0)

    theirs = run(classifier, lambda model: fit(model, "float32"), None)[1]
    for place in PLACES:
        with pytest.warns(UserWarning) as told:
            _, ours = run(classifier, lambda model: fit(model, "float64"), place)
        assert [str(warning.message) for warning in told] == [f'x{CAST}x.astype("float32")']
        close(ours, theirs)


def test_bytes_travel_as_bytes():
    strategy = tpu.connect("virtual")
    with strategy.scope():
        layers = [keras.Input((4,), dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Dense(CLASSES)]
        model = compiled(keras.Sequential(layers))
    seen = []
    put = type(strategy.backend).put

    def watching(self, tree, layout):
        pixels = [leaf for leaf in keras.tree.flatten(tree) if leaf.shape[-1:] == (4,) and leaf.shape[0] >= 8]
        seen.extend(str(leaf.dtype) for leaf in pixels)
        return put(self, tree, layout)

    pixels = np.arange(160, dtype="uint8").reshape(40, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(strategy.backend), "put", watching)
        model.fit(pixels, Y[:40], batch_size=8, verbose=0)
        model.fit(((pixels[:8], Y[:8]) for _ in range(3)), shuffle=False, verbose=0)
    assert len(seen) >= 2
    assert set(seen) == {"uint8"}


CHILD = """
import sys, warnings
{first}
import anytpu as tpu
try:
    {use}
except tpu.errors.AnyTPUError as error:
    print(type(error).__name__, error)
"""


def child(first: str, use: str, **environment: str) -> str:
    import os

    kept = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(first=first, use=use)],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("use", ["tpu.connect()", "tpu.TPUStrategy()", "tpu.get_strategy()"])
def test_keras_runs_on_another_backend(use: str):
    assert child("import keras", use, KERAS_BACKEND="numpy") == (
        "SettingError Keras runs on 'numpy' in this process, and anytpu needs it on JAX. Start Python again (in a "
        "notebook: restart the kernel) and import anytpu before keras, with KERAS_BACKEND unset or KERAS_BACKEND=jax"
    )


@pytest.mark.parametrize("name", ["tensorflow", "torch", "numpy"])
def test_keras_is_set_to_another_backend(name: str):
    assert child("", "tpu.connect()", KERAS_BACKEND=name) == (
        f"SettingError KERAS_BACKEND is {name!r}, and anytpu needs Keras on JAX. Start Python again (in a notebook: "
        "restart the kernel) with KERAS_BACKEND unset or KERAS_BACKEND=jax"
    )


def test_keras_on_jax_imported_first_is_fine():
    assert child("import keras", "print(tpu.connect('v2-8'))", KERAS_BACKEND="jax") == (
        "<TPUStrategy: v2-8, 8 virtual cores>"
    )
