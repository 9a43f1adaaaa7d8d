"""Lines that do something else in code that JAX traces."""

from __future__ import annotations

from anytpu.port import ported

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
