"""Random numbers, functions of data sets, and blocks with several tapes."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from anytpu.migrate.port import ported


def new_text(code: str) -> str:
    outcome = ported(textwrap.dedent(code))
    assert outcome.by_hand == (), outcome.by_hand
    return outcome.new


def test_functions_of_data_sets_become_numpys():
    assert new_text("""\
        import tensorflow as tf
        def scale(image, label):
            return half(tf.cast(image, tf.float32)), tf.one_hot(label, 3)
        def half(image):
            return tf.reduce_mean(image, axis=-1) / 2
        def both(image):
            return tf.exp(image)
        rows = tf.data.Dataset.from_tensor_slices((x, y)).map(scale).map(both)
        strategy = tf.distribute.get_strategy()
        strategy.run(both, args=(x,))
        """) == textwrap.dedent("""\
        import anytpu as tpu
        import keras
        import numpy as np
        def scale(image, label):
            return half(np.asarray(image, "float32")), \
np.equal(np.expand_dims(label, -1), np.arange(3)).astype("float32")
        def half(image):
            return np.mean(image, axis=-1) / 2
        def both(image):
            return keras.ops.exp(image)
        rows = tpu.pipeline.Dataset.from_tensor_slices((x, y)).map(lambda row: scale(*row)).map(both)
        strategy = tpu.get_strategy()
        strategy.run(both, args=(x,))
        """)


def test_a_function_of_a_data_set_that_stays_on_keras_ops_is_noted():
    text = (
        "import tensorflow as tf\n\n\ndef scale(row):\n    return tf.nn.softmax(tf.exp(row))\n\n\n"
        "rows = tf.data.Dataset.from_tensor_slices(x).map(scale)\n"
    )
    outcome = ported(text)
    assert "    return keras.ops.softmax(np.exp(row))\n" in outcome.new
    assert [(f.line, f.kind, f.old, f.advice) for f in outcome.findings] == [
        (
            5,
            "note",
            "tf.nn.softmax",
            "NumPy lacks it, so this function of a data set computes with keras.ops, which is slower there: map it "
            "behind batch, once for many rows, or write it with NumPy",
        )
    ]


def test_functions_of_data_sets_change_nothing_in_place():
    assert "    image = image / (1 + 2)\n" in new_text("""\
        import tensorflow as tf
        def scale(image):
            image /= 1 + 2
            return image
        rows = tf.data.Dataset.from_tensor_slices(x).map(scale)
        """)


def test_random_functions_of_data_sets_get_a_generator():
    assert new_text("""\
        import tensorflow as tf
        def flip(image):
            return tf.image.random_flip_left_right(image)
        def augment(image, label):
            if tf.random.uniform([]) > 0.5:
                image = flip(image)
            return image, label
        rows = tf.data.Dataset.from_tensor_slices((x, y)).map(augment, num_parallel_calls=4)
        """) == textwrap.dedent("""\
        import anytpu as tpu
        import numpy as np
        def flip(image, *, rng):
            return tpu.pipeline.random_flip(image, rng)
        def augment(image, label, *, rng):
            if np.float32(rng.uniform(0, 1, [])) > 0.5:
                image = flip(image, rng=rng)
            return image, label
        rows = tpu.pipeline.Dataset.from_tensor_slices((x, y)).random_map(lambda row, rng: augment(*row, rng=rng))
        """)


def test_random_numbers_of_steps_and_layers_get_a_seed():
    assert new_text("""\
        import tensorflow as tf
        first = tf.random.normal([2])
        class Noise(tf.keras.layers.Layer):
            def call(self, x):
                return x + tf.random.normal(tf.shape(x), seed=3)
        def step(x):
            return x + tf.random.normal([2])
        """) == textwrap.dedent("""\
        import anytpu as tpu
        import keras
        first = keras.random.normal([2])
        class Noise(keras.layers.Layer):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.seed_generator = keras.random.SeedGenerator()

            def call(self, x):
                return x + keras.random.normal(keras.ops.shape(x), seed=self.seed_generator)
        seed_generator = keras.random.SeedGenerator()
        def step(x):
            return x + keras.random.normal([2], seed=seed_generator)
        """)


def test_a_layer_that_makes_its_generator_takes_the_arguments_of_its_base():
    program = new_text("""\
        import tensorflow as tf
        class Wide(tf.keras.layers.Layer):
            def __init__(self, width):
                super().__init__()
                self.width = width
        class Noise(Wide):
            def call(self, x):
                return x + tf.random.normal([self.width])
        noise = Noise(3)
        """)
    names: dict[str, Any] = {"__name__": "program"}
    exec(program, names)
    assert names["noise"](np.zeros(3, np.float32)).shape == (3,)


def test_a_constructor_on_one_line_gets_a_line_for_its_generator():
    assert new_text("""\
        import tensorflow as tf
        class Noise(tf.keras.layers.Layer):
            def __init__(self): super().__init__(); self.width = 2
            def call(self, x):
                return x + tf.random.normal(tf.shape(x))
        """) == textwrap.dedent("""\
        import anytpu as tpu
        import keras
        class Noise(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.width = 2
                self.seed_generator = keras.random.SeedGenerator()
            def call(self, x):
                return x + keras.random.normal(keras.ops.shape(x), seed=self.seed_generator)
        """)


def test_the_functions_of_a_converted_model_are_registered():
    assert "@keras.saving.register_keras_serializable()\ndef double(x):" in new_text("""\
        import tensorflow as tf
        def double(x):
            return x * 2
        model = tf.keras.Sequential([tf.keras.layers.Lambda(double)])
        model = tf.contrib.tpu.keras_to_tpu_model(model)
        """)


def test_two_tapes_of_a_block():
    outcome = ported(
        textwrap.dedent("""\
        import tensorflow as tf
        def step(x):
            with tf.GradientTape() as a, tf.GradientTape() as b:
                fake = make(x)
                first, second = judge(fake), judge(x)
            ga = a.gradient(first, u)
            gb = b.gradient(second, v)
            apply_gradients(zip(ga, u))
            apply_gradients(zip(gb, v))
            return first, fake
        """)
    )
    assert outcome.by_hand == ()
    assert outcome.new == textwrap.dedent("""\
        import anytpu as tpu
        def step(x):
            def compute_losses():
                fake = make(x)
                first, second = judge(fake), judge(x)
                return (first, second), fake
            ((first, second), fake), (ga, gb) = tpu.value_and_grad(compute_losses, [u, v], has_aux=True)()
            apply_gradients(zip(ga, u))
            apply_gradients(zip(gb, v))
            return first, fake
        """)


def test_gradients_that_a_step_changes_are_each_replicas_own():
    assert "value_and_grad(compute_loss, w, local=True)()" in new_text("""\
        import tensorflow as tf
        def step(x):
            with tf.GradientTape() as tape:
                loss = f(x)
            grads = tape.gradient(loss, w)
            apply_gradients(zip([g / 2 for g in grads], w))
        """)
