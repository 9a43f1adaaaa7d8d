"""`tf.cond` with random functions, arrays of NumPy in `tf.while_loop`, and loops over `tf.range`."""

from __future__ import annotations

import numpy as np
import pytest

import anytpu as tpu
from anytpu.migrate.port import ported

GIVEN = "import numpy as np\nimport tensorflow as tf\n"


def names_of(text: str) -> dict:
    outcome = ported(GIVEN + text)
    assert outcome.by_hand == ()
    names: dict = {}
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


def test_both_branches_of_a_step_draw():
    text = (
        "strategy = tf.distribute.get_strategy()\n"
        "def noisy(x):\n    return x + tf.random.normal(tf.shape(x))\n"
        "@tf.function\n"
        "def step(x):\n    return tf.cond(tf.random.uniform([]) < 0.5, lambda: noisy(x), lambda: x)\n"
        "strategy.run(step, args=(np.zeros(2, 'float32'),))\n"
    )
    names = names_of(text)
    strategy = tpu.connect("virtual", cores=2)
    with strategy.scope():
        results = [strategy.run(names["step"], args=(np.zeros(2, "float32"),)).values for _ in range(8)]
    changed = [bool(np.any(value)) for values in results for value in values]
    assert any(changed) and not all(changed)


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ("lambda: (x, tf.random.normal([]))", "lambda: (x, x)"),
        ("pair", "pair"),
        ("lambda: pair()", "lambda: pair()"),
        ("lambda: tf.split(tf.random.normal([2]), 2)", "lambda: tf.split(x, 2)"),
        ("counted", "lambda: 0.0"),
        ("checked", "lambda: 0.0"),
        ("lambda: counted()", "lambda: 0.0"),
        ("lambda: count.assign_add(tf.random.normal([]))", "lambda: 0.0"),
        ("lambda: tf.random.normal([])", "lambda: unknown(x)"),
    ],
)
def test_a_branch_that_draws_and_does_more_than_return_one_array_is_listed(true: str, false: str):
    text = (
        "strategy = tf.distribute.get_strategy()\n"
        "count = tf.Variable(0.0)\n"
        "def pair():\n    return tf.random.normal([]), 1.0\n"
        "def counted():\n    count.assign_add(1.0)\n    return tf.random.normal([])\n"
        "def checked():\n    if debug:\n        print(1)\n    return tf.random.normal([])\n"
        f"def step(x):\n    return tf.cond(x[0] > 0, {true}, {false})\n"
        "strategy.run(step, args=(np.zeros(2),))\n"
    )
    outcome = ported(GIVEN + text)
    assert [(finding.line, finding.advice) for finding in outcome.by_hand] == [
        (15, "a branch of a step cannot draw random numbers: draw them before keras.ops.cond")
    ]
    assert "keras.ops.where" not in outcome.new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tf.cond(a if b else c, lambda: x, lambda: -x)", "x if (a if b else c) else -x"),
        ("tf.cond(lambda: b, lambda: x, lambda: -x)", "x if (lambda: b) else -x"),
        ("tf.cond(a, f if b else g, lambda: x)", "(f if b else g)() if a else x"),
        ("tf.cond(a >\n        b, lambda: x, lambda: -x)", "(x if a >\n        b else -x)"),
    ],
)
def test_a_condition_on_the_host_stays_whole(old: str, new: str):
    text = f"def one(x):\n    return {old}\nrows = tf.data.Dataset.from_tensor_slices(np.zeros(3)).map(one)\n"
    made = ported(GIVEN + text).new
    compile(made, "made", "exec")
    assert f"    return {new}\n" in made


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


def test_a_loop_of_steps_keeps_what_it_returns_and_its_comments():
    outcome = ported(
        "import tensorflow as tf\n# All of them.\nfor _ in tf.range(10):\n"
        "    loss = strategy.run(step_fn, (next(batches),))\n"
    )
    assert outcome.new == (
        "import anytpu as tpu\n# All of them.\nloss = strategy.run_steps(step_fn, batches, 10)\n"
    ).removeprefix("import anytpu as tpu\n")


@pytest.mark.parametrize(
    "body",
    [
        "strategy.run(step_fn, args=(next(batches), i))",
        "strategy.run(step_fn, args=(i,))",
        "strategy.run(lambda batch: batch * i, args=(next(batches),))",
        "strategy.run(step_fn, args=(next(batches),)); print(1)",
    ],
)
def test_a_loop_that_does_more_stays_a_loop(body: str):
    text = f"import tensorflow as tf\nfor i in tf.range(10):\n    {body}\n"
    assert ported(text).new == f"for i in range(10):\n    {body}\n"


def test_a_loop_that_becomes_one_call_keeps_its_comments():
    old = "# a\nfor _ in tf.range(9):  # b\n    # c\n    strategy.run(step, args=(next(rows),))  # d"
    new = ported(f"import tensorflow as tf\n{old}\n").new
    assert new.endswith("# a\n# b\n# c\nstrategy.run_steps(step, rows, 9)  # d\n")


def test_a_loop_whose_number_is_read_later_stays_a_loop():
    old = "for i in tf.range(9):\n    strategy.run(step, args=(next(rows),))"
    new = ported(f"import tensorflow as tf\n{old}\nprint(i)\n").new
    assert new.endswith("for i in range(9):\n    strategy.run(step, args=(next(rows),))\nprint(i)\n")
    assert "run_steps" in ported(f"import tensorflow as tf\n{old}\n\n\ndef f(i):\n    return 1\n").new
