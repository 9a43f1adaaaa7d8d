"""Lines that do something else in code that JAX traces."""

from __future__ import annotations

from anytpu.migrate.port import ported

STEP = """import tensorflow as tf
strategy = tf.distribute.get_strategy()
def step(x):
    {}
strategy.run(step, args=(x,))
"""


def in_step(line: str) -> str:
    outcome = ported(STEP.format(line))
    assert outcome.by_hand == ()
    return outcome.new.splitlines()[-2].strip()


def listed(text: str) -> list[str]:
    return [finding.advice for finding in ported(text).by_hand]


def test_print_in_a_step_prints_the_values_of_each_run():
    assert in_step("tf.print('{loss}:', tf.exp(x), x)") == "jax.debug.print('{{loss}}: {} {}', keras.ops.exp(x), x)"
    assert listed(STEP.format("tf.print(x, summarize=3)")) == [
        'print in a step would run once, when it is compiled: write jax.debug.print("loss {}", loss), which prints '
        "the values of each run"
    ]
    assert ported("import tensorflow as tf\ntf.print('loss', x)\n").new == "print('loss', x)\n"


def test_where_without_branches_gives_indices():
    assert (
        ported("import tensorflow as tf\ni = tf.where(x > 0)\n").new == "import numpy as np\ni = np.argwhere(x > 0)\n"
    )
    assert listed(STEP.format("i = tf.where(x > 0)")) == [
        "in a step all shapes are known, and the number of true values is not: write keras.ops.where(test, a, b), or "
        "multiply by keras.ops.cast(test, a.dtype)"
    ]


BOUND = (
    "a slice of a step or a model has a fixed size: take the whole axis and mask the rest with keras.ops.where, or cut "
    "the batch with NumPy, before the step"
)


def test_a_slice_whose_bound_is_a_tensor_is_listed():
    assert listed(STEP.format("y = x[:, : tf.reduce_max(x)]")) == [BOUND]
    assert listed(STEP.format("y = x[:, : tf.shape(x)[1] // 2]")) == []
    assert listed(STEP.format("for i in tf.range(3): y = x[i : i + 1]")) == []
    inputs = "import tensorflow as tf\nx = tf.keras.Input((4,))\n"
    assert listed(f"{inputs}n = tf.reduce_max(tf.abs(x))\ny = tf.nn.relu(x)[:, :n]\n") == [BOUND]
    assert listed("import tensorflow as tf\nn = tf.reduce_max(x)\ny = x[:n]\n") == []


def test_a_random_function_of_a_model_made_from_inputs_is_listed():
    inputs = "import tensorflow as tf\nx = tf.keras.layers.Dense(3)(tf.keras.Input((4,)))\n"
    assert listed(f"{inputs}y = tf.random.categorical(x, 1)\n") == [
        "a model that is made from inputs takes this function only in a layer: write a class derived from "
        "keras.layers.Layer whose call uses it, with seed=self.seed for a self.seed = keras.random.SeedGenerator()"
    ]
    assert listed("import tensorflow as tf\ny = tf.random.categorical(tf.zeros((1, 3)), 1)\n") == []


def test_arithmetic_of_a_rate_that_decays_is_listed():
    rate = "import tensorflow as tf\nrate = tf.train.polynomial_decay(0.1, step, 100)\n"
    assert listed(f"{rate}rate = warm * rate\n") == [
        "a rate that decays is a function of the step, which optax calls: for a warm-up write "
        "optax.join_schedules([optax.linear_schedule(0.0, rate, steps), schedule], [steps])"
    ]
    assert listed(f"{rate}optimizer = tf.train.AdamOptimizer(rate)\n") == []


def test_a_loss_of_symbolic_tensors_is_listed():
    model = "import tensorflow as tf\nm = tf.keras.Model(x, y)\n"
    assert listed(f"{model}m.add_loss(tf.reduce_mean(y))\n") == [
        "Keras 3 takes add_loss only in call: write a layer whose call gets these tensors, runs self.add_loss(...) and "
        "returns its input, and put it into the model"
    ]
    in_call = "class M(tf.keras.Model):\n    def call(self, x):\n        self.add_loss(tf.reduce_mean(x))\n"
    assert listed(f"import tensorflow as tf\n{in_call}") == []


def test_a_metric_that_keras_3_only_refuses_is_listed():
    model = "class M(tf.keras.Model):\n    def call(self, x):\n        self.add_metric(x, name='a')\n"
    assert listed(f"import tensorflow as tf\n{model}") == [
        "write `model.compile('sgd', 'mse', metrics=['mae'])` (a metric that a model computes is a layer of its own "
        "with a keras.metrics.Mean)"
    ]
