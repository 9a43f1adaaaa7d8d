"""A user's functions: tuples are unpacked, and functions of batches on JAX are compiled where that changes nothing."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.pipeline.functions import BatchFunction, ElementFunction

Dataset = tpu.pipeline.Dataset
X = np.arange(24, dtype=np.float32).reshape(12, 2)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        return self.function(batch)


@pytest.mark.parametrize(
    ("function", "element", "expected"),
    [
        (lambda x: x, (1, 2), (1, 2)),
        (lambda x, y: x + y, (1, 2), 3),
        (lambda x, y=5: y, (1, 2), 5),
        (lambda *x: x, (1, 2), ((1, 2),)),
        (lambda x, y: x + y, (1, (2, 3)), None),
        (max, (1, 2), 2),
    ],
)
def test_a_tuple_is_unpacked_for_several_parameters(function: Any, element: Any, expected: Any):
    if expected is None:
        with pytest.raises(TypeError):
            ElementFunction("map", function)(element)
    else:
        assert ElementFunction("map", function)(element) == expected


def test_a_decision_may_be_none():
    assert list(Dataset.from_arrays(np.arange(3)).filter(lambda row: True if row else None)) == [1, 2]


def test_a_random_function_of_several_parameters():
    pairs = Dataset.from_arrays((np.arange(3), np.arange(3)))
    noisy = pairs.random_map(lambda x, y, random: x + y + random.random())
    assert [int(total) for total in noisy] == [0, 2, 4]


FUNCTIONS = {
    "jax": lambda batch: {**batch, "x": jnp.sin(batch["x"]) * 2},
    "keras.ops": lambda batch: {**batch, "x": keras.ops.relu(batch["x"] - 5)},
    "pair": lambda batch: (jnp.log1p(batch["x"]), batch["id"]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_on_jax_is_compiled_once_for_a_shape(name: str):
    counted = Counted(FUNCTIONS[name])
    compiled = BatchFunction(counted)
    ids = np.array([f"row {index}" for index in range(12)], object)
    calls = []
    for start in (0, 4, 8, 4, 11, 11):
        batch = {"x": X[start : start + 4], "id": ids[start : start + 4]}
        result, expected = compiled(batch), FUNCTIONS[name](batch)
        for leaf, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            assert isinstance(leaf, np.ndarray)
            assert leaf.dtype == other.dtype
            if leaf.dtype != object:
                np.testing.assert_allclose(leaf, other, rtol=1e-5, atol=1e-6)
        assert jax.tree.leaves(result)[-1 if name == "pair" else 0].tolist() == batch["id"].tolist()
        calls.append(counted.calls)
    # Called, traced twice to compare, and traced to compile; nothing more for batches of the same shapes.
    assert calls == [4, 4, 4, 4, 8, 8]


def test_integers_of_64_bits_that_are_passed_on_stay():
    labels = np.array([2**40, 1])
    for _ in range(2):
        _, same = BatchFunction(lambda batch: (jnp.sqrt(batch[0]), batch[1]))((X[:2], labels))
        assert same is labels


def plain_numpy(batch: Any) -> Any:
    return np.asarray(batch) + 1


def drawing(batch: Any) -> Any:
    return jnp.asarray(batch) + np.random.default_rng().random()


def branching(batch: Any) -> Any:
    return jnp.asarray(batch) if batch[0, 0] < 4 else -jnp.asarray(batch)


class Stateful:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        return jnp.asarray(batch) * self.calls


def test_a_function_that_is_not_pure_is_not_compiled():
    function = BatchFunction(branching)
    assert [float(function(X[start : start + 2])[0, 0]) for start in (0, 2, 4)] == [0.0, -4.0, -8.0]
    counted = Counted(plain_numpy)
    function = BatchFunction(counted)
    assert [function(X).tolist() for _ in range(3)] == [(X + 1).tolist()] * 3
    assert counted.calls == 3
    drawn = BatchFunction(drawing)
    assert len({float(drawn(X[:2])[0, 0]) for _ in range(5)}) == 5


def test_a_function_of_its_calls_is_not_compiled():
    function = BatchFunction(Stateful())
    results = [float(function(X[1:2])[0, 0]) for _ in range(3)]
    assert results[0] == 2.0
    assert results == sorted(set(results)), "each call has a larger factor"


KEY = jax.random.key(0)


def splitting(batch: Any) -> Any:
    global KEY
    KEY, drawn = jax.random.split(KEY)
    return batch + jax.random.normal(drawn, batch.shape)


def test_a_function_that_keeps_a_jax_value_is_called_as_it_is():
    function = BatchFunction(splitting)
    assert len({float(function(X[:2])[0, 0]) for _ in range(4)}) == 4
    assert not isinstance(KEY, jax.core.Tracer)


def test_a_map_that_counts_its_calls_is_called_as_it_is():
    calls = 0

    def counting(batch: Any, scale: float = 2.0) -> Any:
        nonlocal calls
        calls += 1
        return keras.ops.multiply(batch, scale)

    batches = Dataset.from_tensor_slices(X[:8]).batch(2)
    for function in (counting, functools.partial(counting, scale=3.0)):
        list(batches.map(function))
    assert calls == 8


def test_variables_of_keras_keep_their_values():
    scale = keras.Variable(2.0)
    function = BatchFunction(lambda batch: keras.ops.multiply(batch, scale))
    assert function(X[:2]).tolist() == (X[:2] * 2).tolist()
    scale.assign(3.0)
    assert function(X[:2]).tolist() == (X[:2] * 3).tolist()
    flip = keras.layers.RandomFlip("horizontal", seed=1)
    images = np.arange(64 * 16, dtype="float32").reshape(64, 4, 4, 1)
    flipped = BatchFunction(lambda batch: flip(batch, training=True))
    assert len({flipped(images).tobytes() for _ in range(4)}) == 4, "each batch has its own random numbers"


def test_strings_are_not_a_part_of_a_compiled_function():
    function = BatchFunction(lambda batch: jnp.asarray([len(name) for name in batch["id"]]) + batch["x"])
    for names in (["a", "bb"], ["ccc", "d"]):
        batch = {"id": np.array(names, object), "x": np.zeros(2, np.float32)}
        assert function(batch).tolist() == [float(len(name)) for name in names]


def test_batches_of_many_shapes_are_computed():
    function = BatchFunction(lambda batch: jnp.cumsum(batch))
    for size in range(1, 25):
        assert function(np.ones(size, np.float32)).tolist() == list(range(1, size + 1))
    assert len(function._programs) == 16


def test_a_compiled_function_in_a_data_set():
    dataset = Dataset.from_arrays((X, np.arange(12))).batch(5).map(lambda x, y: (keras.ops.square(x), y))
    batches = list(dataset)
    assert [type(x) for x, _ in batches] == [np.ndarray] * 3
    assert np.concatenate([x for x, _ in batches]).tolist() == (X**2).tolist()
    assert np.concatenate([y for _, y in batches]).tolist() == list(range(12))
    copy = pickle.loads(pickle.dumps(BatchFunction(plain_numpy)))
    assert copy(X).tolist() == (X + 1).tolist()
