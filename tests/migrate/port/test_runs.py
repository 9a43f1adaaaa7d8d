"""What ported fragments compute."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anytpu as tpu
from anytpu.migrate.port import ported

GIVEN = "import numpy as np\nimport tensorflow as tf\n"


def names_of(text: str) -> dict:
    """Return the names of a ported program after it has run."""
    outcome = ported(GIVEN + text)
    assert outcome.by_hand == ()
    names: dict = {"__name__": "program"}
    exec(outcome.new, names)
    return names


def test_a_condition_of_a_data_set_is_pythons():
    text = (
        "def noisy(x):\n    return x + tf.random.normal(tf.shape(x))\n"
        "def nothing():\n    return None\n"
        "def augment(x):\n"
        "    x = tf.cond(tf.random.uniform([]) < 0.5, lambda: noisy(x), lambda: x)\n"
        "    return tf.cond(tf.random.uniform([]) < 2.0, true_fn=lambda: x, false_fn=nothing) + 0.0\n"
        "rows = tf.data.Dataset.from_tensor_slices(np.zeros((64, 3), 'float32')).map(augment)\n"
    )
    rows = np.stack(list(names_of(text)["rows"]))
    changed = (rows != 0).any(axis=1)
    assert 0 < changed.sum() < 64
    assert "x = noisy(x, rng=rng) if np.float32(rng.uniform(0, 1, [])) < 0.5 else x" in ported(GIVEN + text).new
    assert "(x if np.float32(rng.uniform(0, 1, [])) < 2.0 else nothing()) + 0.0" in ported(GIVEN + text).new


def test_an_array_of_numpy_is_indexed_in_a_loop():
    text = (
        "names = np.arange(10)\n"
        "def body(i, total):\n    return i + 1, total + names[i]\n"
        "end = tf.while_loop(lambda i, total: i < 10, body, [tf.constant(0), tf.constant(0)])\n"
    )
    assert [int(part) for part in names_of(text)["end"]] == [10, 45]


@pytest.mark.parametrize("size", ["tf.shape(x)[0]", "tf.shape(x)[1]"])
def test_a_size_stays_an_integer(size: str):
    text = f"def ones(x):\n    n = tf.cast({size}, 'int64')\n    return tf.ones((n, 2))\n"
    assert names_of(text)["ones"](np.zeros((3, 3))).shape == (3, 2)
    new = ported(GIVEN + "c = tf.cast(tf.shape(x)[0], tf.float32)\n").new
    assert new.splitlines()[-1] == 'c = keras.ops.cast(keras.ops.shape(x)[0], "float32")'


@pytest.mark.parametrize(
    ("size", "new"),
    [
        ("tf.cast(tf.shape(x)[1:3], tf.int32) * 2", 'keras.ops.cast(keras.ops.shape(x)[1:3], "int32") * 2'),
        ("tf.cast(tf.shape(x)[0], 'uint8')", "keras.ops.cast(keras.ops.shape(x)[0], 'uint8')"),
        ("tf.cast(tf.shape(x)[0], point_dtype)", "keras.ops.cast(keras.ops.shape(x)[0], point_dtype)"),
        ("tf.cast(tf.shape(x)[0], tf.int32)", "keras.ops.shape(x)[0]"),
    ],
)
def test_only_one_size_loses_its_cast_to_integers(size: str, new: str):
    text = f"point_dtype = 'float32'\nx = np.zeros((2, 3, 4))\nsizes = {size}\n"
    made = ported(GIVEN + text).new
    assert made.splitlines()[-1] == f"sizes = {new}"
    names = names_of(text)
    assert np.asarray(names["sizes"]).tolist() == ([6, 8] if "1:3" in size else 2)


def test_a_random_function_that_is_passed_on_gets_its_generator():
    text = (
        "def noisy(x):\n    return x + tf.random.normal(tf.shape(x))\n"
        "def plain(x):\n    return x\n"
        "def sometimes(function, x):\n"
        "    return tf.cond(tf.random.uniform([]) < 2.0, lambda: function(x), lambda: x)\n"
        "def augment(x):\n    return sometimes(plain, x), sometimes(noisy, x)\n"
        "rows = tf.data.Dataset.from_tensor_slices(np.zeros((8, 3), 'float32')).map(augment)\n"
    )
    plain, noisy = (np.stack(part) for part in zip(*names_of(text)["rows"], strict=True))
    assert not plain.any()
    assert noisy.all()


def test_a_layer_that_makes_its_generator_takes_the_arguments_of_its_base():
    text = (
        "class Wide(tf.keras.layers.Layer):\n    def __init__(self, width):\n        super().__init__()\n"
        "        self.width = width\n"
        "class Noise(Wide):\n    def call(self, x):\n        return x + tf.random.normal([self.width])\n"
        "noise = Noise(3)\n"
    )
    assert names_of(text)["noise"](np.zeros(3, np.float32)).shape == (3,)


def test_lists_of_different_lengths_are_padded_as_in_tensorflow():
    text = (
        "def rows():\n    yield [1, 2, 3], 4\n    yield [5], 6\n"
        "d = tf.data.Dataset.from_generator(rows, (tf.int32, tf.int32))\n"
        "batch = next(iter(d.padded_batch(2, padded_shapes=([None], []))))\n"
    )
    words, labels = names_of(text)["batch"]
    assert words.tolist() == [[1, 2, 3], [5, 0, 0]]
    assert labels.tolist() == [4, 6]


def test_what_is_computed_from_sizes_is_a_shape_in_a_step():
    text = (
        "@tf.function\ndef step(x):\n"
        "    s = tf.shape(x)[1:] * 2\n"
        "    big = tf.zeros(s)\n"
        "    flat = tf.reshape(x, [tf.shape(x)[0], tf.reduce_prod(tf.shape(x)[1:])])\n"
        "    split = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [2, -1]], axis=0))\n"
        "    return big, flat, split\n"
    )
    step = names_of(text)["step"]
    assert [part.shape for part in jax.jit(step)(jnp.ones((2, 3, 4)))] == [(6, 8), (2, 12), (2, 3, 2, 2)]


def test_the_gradient_by_a_watched_tensor_is_the_same():
    text = (
        "def slopes(x):\n    with tf.GradientTape() as tape:\n        tape.watch(x)\n"
        "        score = tf.reduce_sum(x ** 2, axis=1)\n    return tape.gradient(score, x)\n"
    )
    slopes = names_of(text)["slopes"](np.array([[1.0, 2.0], [3.0, 4.0]], "float32"))
    assert slopes.tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_the_names_of_a_data_set_are_those_of_the_class():
    public = [name for name in dir(tpu.pipeline.Dataset) if not name.startswith("_")]
    assert "prefetch" in public
    given = f"{GIVEN}dataset = tf.data.Dataset.from_tensor_slices(x)\n"
    assert [name for name in public if ported(f"{given}a = dataset.{name}\n").by_hand] == []
