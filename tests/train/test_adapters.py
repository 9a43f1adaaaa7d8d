"""Data sets of other libraries, against plain Keras: `scripts/check_adapters` installs what these need."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from anytpu.errors import DataError
from keras_oracle import CLASSES, FEATURES, PLACES, agrees, classifier, compiled, rows, run

X, Y = rows(43)
# TensorFlow's and torch's own imports and iterators warn of what they deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def torch_loader() -> Any:
    torch = pytest.importorskip("torch")

    def make(batch: int = 8, dtype: str = "float32", **kwargs: Any) -> Any:
        data = torch.utils.data.TensorDataset(torch.tensor(X.astype(dtype)), torch.tensor(Y))
        return torch.utils.data.DataLoader(data, batch_size=batch, **kwargs)

    return make


@pytest.fixture
def tf_data() -> Any:
    tensorflow = pytest.importorskip("tensorflow")

    def make(batch: int = 8, **kwargs: Any) -> Any:
        return tensorflow.data.Dataset.from_tensor_slices((X, Y)).batch(batch, **kwargs)

    return make


def use(make: Any) -> Any:
    def train(model: Any) -> Any:
        return (
            model.fit(make(), validation_data=make(), epochs=2, shuffle=False, verbose=0),
            model.evaluate(make(), verbose=0),
            model.predict(make(), verbose=0),
        )

    return train


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("torch_loader", {}),
        ("torch_loader", {"drop_last": True}),
        ("tf_data", {}),
        ("tf_data", {"drop_remainder": True}),
    ],
)
def test_data_sets_and_their_last_batches(request: pytest.FixtureRequest, kind: str, settings: dict[str, Any]):
    make = request.getfixturevalue(kind)
    agrees(classifier, use(lambda: make(**settings)), places=PLACES)


def test_a_torch_loader_that_shuffles(torch_loader: Any):
    import torch

    def shuffled():
        return torch_loader(shuffle=True, generator=torch.Generator().manual_seed(3))

    agrees(classifier, lambda model: model.fit(shuffled(), epochs=3, shuffle=False, verbose=0), places=PLACES)


def test_a_torch_loader_with_a_process_of_its_own(torch_loader: Any):
    def make():
        # Not forked: JAX has threads.
        return torch_loader(num_workers=1, multiprocessing_context="spawn")

    agrees(classifier, lambda model: model.fit(make(), shuffle=False, verbose=0))


def test_torch_tensors(torch_loader: Any):
    import torch

    x, y = torch.tensor(X), torch.tensor(Y)
    agrees(classifier, lambda model: (model.fit(x, y, batch_size=8, verbose=0), model.predict(x, verbose=0)))


def test_a_torch_loader_of_float64(torch_loader: Any):
    with pytest.warns(UserWarning, match="x: float64 is cast to float32 on the host"):
        run(classifier, lambda model: model.fit(torch_loader(dtype="float64"), shuffle=False, verbose=0), "virtual")


def test_tf_data_that_repeats(tf_data: Any):
    def train(model):
        return model.fit(tf_data().repeat(), steps_per_epoch=5, epochs=3, shuffle=False, verbose=0)

    agrees(classifier, train, places=PLACES)


def test_tf_data_with_class_weights(tf_data: Any):
    weights = {0: 1.0, 1: 3.0, 2: 0.5}
    agrees(classifier, lambda model: model.fit(tf_data(), class_weight=weights, shuffle=False, verbose=0))


def test_tf_data_of_unknown_length(tf_data: Any):
    def odd():
        return tf_data().filter(lambda x, y: True)

    agrees(classifier, lambda model: model.fit(odd(), epochs=2, shuffle=False, verbose=0), places=PLACES)


def test_tf_data_that_ends_too_early(tf_data: Any):
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.warns(UserWarning, match="the data ended after 6 of the 9 steps of epoch 1"):
        model.fit(tf_data(), steps_per_epoch=9, shuffle=False, verbose=0)


def test_tf_data_by_name(tf_data: Any):
    import tensorflow

    def make():
        left, right = keras.Input((FEATURES,), name="left"), keras.Input((2,), name="right")
        outputs = keras.layers.Dense(CLASSES)(keras.layers.concatenate([left, right]))
        return compiled(keras.Model({"left": left, "right": right}, outputs))

    def pairs():
        named = {"left": X, "right": X[:, :2]}
        return tensorflow.data.Dataset.from_tensor_slices((named, Y, np.ones(43, "float32"))).batch(8)

    agrees(make, lambda model: model.fit(pairs(), shuffle=False, verbose=0), places=PLACES)


def test_tf_data_of_strings(tf_data: Any):
    import tensorflow

    model, _ = run(classifier, lambda model: None, "virtual")
    words = tensorflow.data.Dataset.from_tensor_slices((np.array(["a", "b"] * 8), Y[:16])).batch(8)
    with pytest.raises(DataError, match=r"x holds .*, which no TPU computes with"):
        model.fit(words, shuffle=False, verbose=0)


def test_tf_tensors(tf_data: Any):
    import tensorflow

    x, y = tensorflow.constant(X), tensorflow.constant(Y)
    agrees(classifier, lambda model: (model.fit(x, y, batch_size=8, verbose=0), model.predict(x, verbose=0)))


@pytest.fixture
def pandas() -> Any:
    return pytest.importorskip("pandas")


def test_pandas_frames(pandas: Any):
    frame = pandas.DataFrame(X, columns=[f"column {index}" for index in range(FEATURES)])

    def train(model):
        return (
            model.fit(frame, pandas.Series(Y), batch_size=8, epochs=2, validation_split=0.2, verbose=0),
            model.evaluate(frame, pandas.Series(Y), verbose=0),
            model.predict(frame, verbose=0),
        )

    agrees(classifier, train, places=PLACES)


def test_a_pandas_column_of_strings(pandas: Any):
    frame = pandas.DataFrame({"size": X[:, 0], "kind": ["a"] * 43})
    model, _ = run(classifier, lambda model: None, "virtual")
    with pytest.raises(DataError, match=r"x\['kind'\] holds (object|str), which no TPU computes with"):
        model.fit(frame, Y, verbose=0)


def test_pandas_frames_of_float64(pandas: Any):
    frame = pandas.DataFrame({f"column {index}": X[:, index].astype("float64") for index in range(FEATURES)})
    with pytest.warns(UserWarning, match=r"x\['column 0'\], .*: float64 is cast to float32 on the host"):
        run(classifier, lambda model: model.fit(frame, Y, verbose=0), "virtual")
