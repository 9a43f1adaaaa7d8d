"""Shapes are tuples in Keras: arithmetic of them is NumPy's, and what is computed from them is known in a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from anytpu.migrate.port import ported


def line(old: str) -> str:
    outcome = ported(f"import tensorflow as tf\n{old}\n")
    assert outcome.by_hand == (), outcome.by_hand
    return outcome.new.splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a = tf.shape(x)[1:3] * 2", "a = np.array(keras.ops.shape(x)[1:3]) * 2"),
        ("a = 2 * tf.shape(x)", "a = 2 * np.array(keras.ops.shape(x))"),
        ("a = -tf.shape(x)[:2]", "a = -np.array(keras.ops.shape(x)[:2])"),
        ("a = tf.shape(x)[0] * 2", "a = keras.ops.shape(x)[0] * 2"),
        ("a = x.shape[1:] * 2", "a = x.shape[1:] * 2"),
        ("a = tf.zeros([-1] + x.shape[1:])", "a = keras.ops.zeros([-1] + list(x.shape[1:]))"),
        ("a = tf.zeros(x.shape + [1])", "a = keras.ops.zeros(list(x.shape) + [1])"),
        ("a = tf.zeros((1,) + x.shape)", "a = keras.ops.zeros((1,) + x.shape)"),
        (
            "a = tf.image.resize(x, tf.shape(x)[1:3] * 2)",
            "a = keras.ops.image.resize("
            "keras.ops.cast(x, 'float32'), tuple(map(int, np.array(keras.ops.shape(x)[1:3]) * 2)), antialias=False)",
        ),
        ("s = tf.shape(x)[1:]; a = s // 2", "s = keras.ops.shape(x)[1:]; a = np.array(s) // 2"),
        ("s = tf.shape(x)[1:]; s *= n + 1", "s = keras.ops.shape(x)[1:]; s = np.array(s) * (n + 1)"),
        ("a = tf.reduce_prod(tf.shape(x)[1:])", "a = np.prod(keras.ops.shape(x)[1:])"),
        ("a = tf.reduce_prod(x)", "a = keras.ops.prod(x)"),
        ("a = tf.minimum(tf.shape(x)[0], n)", "a = np.minimum(keras.ops.shape(x)[0], n)"),
        ("a = tf.stack([tf.shape(x)[0], -1])", "a = np.stack([keras.ops.shape(x)[0], -1])"),
        ("a = tf.stack([tf.exp(x), x])", "a = keras.ops.stack([keras.ops.exp(x), x])"),
        ("b = tf.shape(x)[0]; a = tf.cast(b, tf.int32)", "b = keras.ops.shape(x)[0]; a = b"),
        ("b, c = tf.unstack(tf.shape(x))", "b, c = keras.ops.shape(x)"),
    ],
)
def test_a_line_becomes(old: str, new: str):
    assert line(old) == new


def test_what_is_computed_from_sizes_is_a_shape_in_a_step():
    outcome = ported(
        "import tensorflow as tf\n@tf.function\ndef step(x):\n"
        "    s = tf.shape(x)[1:] * 2\n"
        "    big = tf.zeros(s)\n"
        "    flat = tf.reshape(x, [tf.shape(x)[0], tf.reduce_prod(tf.shape(x)[1:])])\n"
        "    split = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [2, -1]], axis=0))\n"
        "    return big, flat, split\n"
    )
    names: dict = {}
    exec(outcome.new, names)
    assert [part.shape for part in jax.jit(names["step"])(jnp.ones((2, 3, 4)))] == [(6, 8), (2, 12), (2, 3, 2, 2)]


def test_a_branch_on_a_size_is_no_branch_on_a_tensor():
    text = (
        "import tensorflow as tf\nstrategy = tf.distribute.get_strategy()\n"
        "def step(x):\n    if tf.shape(x)[0] > 2:\n        x = x * 2\n    if tf.reduce_sum(x) > 2:\n        x = x * 2\n"
        "strategy.run(step, args=(x,))\n"
    )
    assert [finding.line for finding in ported(text).by_hand] == [6]
