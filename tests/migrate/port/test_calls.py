from __future__ import annotations

import pytest

from anytpu.migrate.port import ported


def line(old: str) -> str:
    """Return what becomes of a line that names tf, when that is all."""
    outcome = ported(f"import tensorflow as tf\n{old}\n")
    assert outcome.by_hand == (), outcome.by_hand
    return outcome.new.splitlines()[-1]


def advice(old: str) -> list[str]:
    outcome = ported(f"import tensorflow as tf\n{old}\n")
    return [finding.advice for finding in outcome.by_hand]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step = tf.function(step)", "step = step"),
        ("step = tf.function(lambda x: tf.exp(x), jit_compile=True)", "step = lambda x: keras.ops.exp(x)"),
        ("tf.get_logger().setLevel('ERROR'); x = 1", "x = 1"),
        ("x = tf.reduce_sum(y, keep_dims=True, name='sum')", "x = keras.ops.sum(y, keepdims=True)"),
        ("x = tf.transpose(y, perm=[1, 0])", "x = keras.ops.transpose(y, axes=[1, 0])"),
        ("x = tf.argmax(y)", "x = keras.ops.argmax(y, axis=0)"),
        ("x = tf.train.AdamOptimizer(0.1, epsilon=1e-3)", "x = optax.adam(0.1, eps=1e-3)"),
        ("x = tf.train.MomentumOptimizer(momentum=0.9, learning_rate=lr)", "x = optax.sgd(lr, momentum=0.9)"),
        (
            "op = tf.train.AdamOptimizer().minimize(loss, global_step=step)",
            "op = tpu.CrossShardOptimizer(optax.adam(0.001)).minimize(loss)",
        ),
        ("x = [tf.int32, tf.dtypes] if 0 else tf.bool", None),
        ("x = strategy.run(f)[0].numpy().sum()", "x = keras.ops.convert_to_numpy(strategy.run(f)[0]).sum()"),
        ("x = frame.numpy", "x = frame.numpy"),
        (
            "x = tf.matmul(a, b, transpose_a=True, transpose_b=True)",
            "x = keras.ops.swapaxes(keras.ops.matmul(b, a), -1, -2)",
        ),
        ("x = tf.split(y, [1, -1], axis=1)", "x = keras.ops.split(y, np.cumsum([1, -1])[:-1], axis=1)"),
        ("x = tf.argsort(y, -1, 'DESCENDING')", "x = keras.ops.argsort(-y, axis=-1)"),
        ("x = tf.argsort(y, direction='DESCENDING', axis=0, stable=True)", "x = keras.ops.argsort(-y, axis=0)"),
        (
            "x = tf.split(y, num_or_size_splits=[1, 2], axis=1, num=2)",
            "x = keras.ops.split(y, np.cumsum([1, 2])[:-1], axis=1)",
        ),
        ("x = tf.split(y, [2] * 3)", "x = keras.ops.split(y, np.cumsum([2] * 3)[:-1], axis=0)"),
        (
            "sizes = [1, 2]; x = tf.split(y, sizes)",
            "sizes = [1, 2]; x = keras.ops.split(y, np.cumsum(sizes)[:-1], axis=0)",
        ),
        ("x = tf.split(y, heads)", "x = keras.ops.split(y, heads, axis=0)"),
        ("x = tf.dtypes.cast(y, tf.float32)", 'x = keras.ops.cast(y, "float32")'),
        ("for i in tf.range(3): print(i)", "for i in range(3): print(i)"),
        ("print(f'{tf.reduce_max(x)}')", "print(f'{keras.ops.max(x)}')"),
    ],
)
def test_a_line_becomes(old: str, new: str | None):
    if new is None:
        assert advice(old) == [
            "no counterpart is known: write it with keras.ops, or with NumPy in a function of a data set"
        ]
    else:
        assert line(old) == new


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("x = tf.placeholder('float')", "write `outputs = strategy.run(train_step, args=(x, y))`"),
        ("x = tf.one_hot(*arguments)", "write `c = keras.ops.one_hot([0, 2], 3)`"),
        ("x = tf.gather(y, z, batch_dims=1)", "write `c = keras.ops.take_along_axis(a, [[1], [0]], axis=1)`"),
        ("x = tf.split(y, [1, -1, 2])", "write `c = keras.ops.split(a, 2, axis=0)`"),
        ("x = tf.argsort(y, -1, direction)", "write `c = keras.ops.argsort(a, axis=-1)`"),
        ("decorate(tf.function)", "write nothing (strategy.run compiles the step)"),
        ("x = tf.keras.backend.learning_phase()", "write `outputs = model(x, training=False)`"),
    ],
)
def test_a_line_that_is_left(old: str, said: str):
    outcome = ported(f"import tensorflow as tf\n{old}\n")
    assert old in outcome.new
    assert "import tensorflow as tf" in outcome.new
    (found,) = advice(old)
    assert found.startswith(said)


def test_an_argument_that_is_needed_twice_is_evaluated_once():
    outcome = ported("import tensorflow as tf\nx = tf.clip_by_norm(slope(), 2.0)\n")
    scaled = "(lambda t: t * keras.ops.minimum(1.0, 2.0 / keras.ops.norm(t)))(slope())"
    assert outcome.new == f"import anytpu as tpu\nimport keras\nx = {scaled}\n"


def test_a_number_that_is_looked_up_with_stays_a_scalar():
    text = (
        "import tensorflow as tf\nindex = tf.argmax(scores).numpy()\nprint(words[index])\n"
        "mean = tf.reduce_mean(scores).numpy()\n"
    )
    assert ported(text).new == (
        "import anytpu as tpu\nimport keras\n"
        "index = keras.ops.convert_to_numpy(keras.ops.argmax(scores, axis=0))[()]\nprint(words[index])\n"
        "mean = keras.ops.convert_to_numpy(keras.ops.mean(scores))\n"
    )


def test_a_session_that_does_more_stays_and_is_listed():
    outcome = ported(
        "import tensorflow as tf\nx = tf.placeholder('float')\nwith tf.Session('') as s:\n"
        "    s.run(tf.contrib.tpu.initialize_system())\n    print(s.run(loss))\n"
    )
    assert outcome.new == (
        "import anytpu as tpu\nimport tensorflow as tf\nx = tf.placeholder('float')\nwith tf.Session('') as s:\n"
        "    tpu.initialize_system()\n    print(s.run(loss))\n"
    )
    assert [finding.line for finding in outcome.by_hand] == [2, 3, 5]


def test_a_session_without_a_graph_fetches_what_is_computed():
    outcome = ported(
        "import tensorflow as tf\noutputs = tf.contrib.tpu.rewrite(f, [1])\nwith tf.Session('') as s:\n"
        "    print(s.run(outputs))\n"
    )
    assert outcome.new == "import anytpu as tpu\noutputs = tpu.rewrite(f, [1])\nprint(outputs)\n"
    assert outcome.findings == ()


@pytest.mark.parametrize(
    ("argument", "kept", "said"),
    [
        ("", "", None),
        ("''", "''", None),
        ("tpu=''", "tpu=''", None),
        ("'local'", "'local'", None),
        ("'my-tpu'", "", "'my-tpu' is left out: the worker of a TensorFlow program does not speak to JAX"),
        ("address", "", "address is left out: the worker of a TensorFlow program does not speak to JAX"),
        ("FLAGS.tpu", "FLAGS.tpu", 'FLAGS.tpu is kept: it must be "", "local", "virtual" or a slice such as "v2-8"'),
    ],
)
def test_which_tpu(argument: str, kept: str, said: str | None):
    outcome = ported(
        "import tensorflow as tf\nimport os\nhost = os.environ['COLAB_TPU_ADDR']\naddress = f'grpc://{host}'\n"
        f"r = tf.contrib.cluster_resolver.TPUClusterResolver({argument})\n"
    )
    assert outcome.new.splitlines()[-1] == f"r = tpu.TPUClusterResolver({kept})"
    assert [finding.advice for finding in outcome.findings if finding.line == 5] == ([] if said is None else [said])
    assert all(finding.kind == "note" for finding in outcome.findings)


def test_a_loss_says_its_reduction_by_name():
    old = "loss = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)"
    assert line(old) == 'loss = keras.losses.MeanSquaredError(reduction="none")'
