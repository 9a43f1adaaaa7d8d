"""Only members and keywords that a value's class has pass; the rest is rewritten or listed."""

from __future__ import annotations

import pytest

from anytpu.port import ported

GIVEN = """\
import tensorflow as tf
dataset = tf.data.Dataset.from_tensor_slices(x)
resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
strategy = tf.distribute.TPUStrategy(resolver)
model = tf.keras.Sequential()
optimizer = tf.keras.optimizers.Adam()
"""


def last_line(old: str) -> str:
    outcome = ported(f"{GIVEN}{old}\n")
    assert outcome.by_hand == (), outcome.by_hand
    return outcome.new.splitlines()[-1]


def listed(text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.old) for finding in ported(text).by_hand]


@pytest.mark.parametrize(
    "old",
    [
        "a = dataset.rejection_resample(f)",
        "a = dataset.map(f).window(3)",
        "a = resolver.get_tpu_system_metadata()",
        "a = strategy.extended",
        "a = model.make_test_function_of_old()",
        "a = optimizer.get_gradients(loss, weights)",
    ],
)
def test_a_member_that_the_new_class_lacks_is_listed(old: str):
    ((line, code),) = listed(f"{GIVEN}{old}\n")
    assert line == 7
    assert code == old.removeprefix("a = ")


def test_the_names_of_a_data_set_are_those_of_the_class():
    import anytpu as tpu

    public = [name for name in dir(tpu.pipeline.Dataset) if not name.startswith("_")]
    assert "prefetch" in public
    assert [name for name in public if listed(f"{GIVEN}a = dataset.{name}\n")] == []


@pytest.mark.parametrize(
    "program",
    [
        "def load():\n    return dataset.batch(2)\na = load().unknown_step()",
        "def use(rows):\n    return rows.unknown_step()\nuse(dataset)",
        "class Input:\n    def __init__(self):\n        self.rows = dataset\n    def go(self):\n"
        "        return self.rows.unknown_step()",
        "train, test = dataset, dataset.take(3)\na = test.unknown_step()",
        "a = (dataset if big else dataset.batch(2)).unknown_step()",
        "for part in [1]:\n    rows = dataset\n    rows = rows.repeat()\nrows.unknown_step()",
    ],
)
def test_values_are_followed(program: str):
    (found,) = listed(f"{GIVEN}{program}\n")
    assert found[1].endswith("unknown_step()")


def test_a_value_of_unknown_class_is_not_listed():
    assert listed(f"{GIVEN}a = frame.rejection_resample(f)\nb = other(dataset).window(2)\n") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("h = model.fit_generator(rows, workers=2, epochs=3)", "h = model.fit(rows, epochs=3)"),
        ("model.compile('sgd', experimental_steps_per_execution=2)", "model.compile('sgd', steps_per_execution=2)"),
        ("b = dataset.shard(8, 1)", "b = dataset.shard(1, 8)"),
        ("b = dataset.shuffle(buffer_size=3, reshuffle_each_iteration=True)", "b = dataset.shuffle(buffer=3)"),
        ("w = resolver.cluster_spec().as_dict()['worker']", "w = resolver.cluster_spec().get('worker')"),
        ("w = resolver.cluster_spec().as_dict()", "w = resolver.cluster_spec()"),
        ("rate = model.optimizer.lr", "rate = model.optimizer.learning_rate"),
        (
            "o = tf.keras.optimizers.Adam(lr=0.1, decay=1e-3)",
            "o = keras.optimizers.Adam(learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1e-3))",
        ),
        (
            "p = tf.keras.mixed_precision.experimental.Policy('mixed_bfloat16')",
            "p = keras.mixed_precision.Policy('mixed_bfloat16')",
        ),
        ("step = tf.train.get_global_step()", "step = tpu.get_global_step()"),
        ("names = tf.io.gfile.glob(p)", "names = [file.full_name for file in fsspec.open_files(p)]"),
        ("tf.compat.v1.app.run(main=run)", "absl.app.run(run)"),
        ("model.save('saved')", "model.save('saved.keras')"),
        ("model.save_weights('w.h5')", "model.save_weights('w.weights.h5')"),
        ("c = tf.keras.callbacks.ModelCheckpoint(f'm{i}.h5')", "c = keras.callbacks.ModelCheckpoint(f'm{i}.keras')"),
    ],
)
def test_a_use_becomes(old: str, new: str):
    assert last_line(old) == new


def test_options_of_a_data_set_go():
    outcome = ported(
        f"{GIVEN}options = tf.data.Options()\nif not ordered:\n    options.experimental_deterministic = False\n"
        "dataset = dataset.with_options(options)\nother = dataset.with_options(options).batch(2)\n"
    )
    assert outcome.by_hand == ()
    assert outcome.new.splitlines()[-2:] == ["optimizer = keras.optimizers.Adam()", "other = dataset.batch(2)"]


def test_keywords_that_the_new_function_lacks_are_listed():
    text = f"{GIVEN}layer = tf.keras.layers.Dense(1, input_dim=3, no_such=2)\n"
    assert listed(text) == [(7, "no_such=2")]


def test_names_of_keras_that_are_gone_are_listed():
    assert listed("import tensorflow as tf\nx = tf.keras.layers.NoSuchLayer(1)\n") == [
        (2, "tf.keras.layers.NoSuchLayer")
    ]


def test_a_branch_on_a_tensor_in_a_step_is_listed():
    text = (
        f"{GIVEN}def step(x):\n    if tf.reduce_sum(x) > 1:\n        return x\n    if x is None or len(x) > 2:\n"
        "        return 1\nstrategy.run(step, args=(x,))\n"
    )
    assert listed(text) == [(8, "tf.reduce_sum(x) > 1")]


def test_a_cache_behind_an_endless_repeat_is_left_out():
    outcome = ported(f"{GIVEN}b = dataset.repeat().batch(2).cache()\nc = dataset.cache().repeat()\n")
    assert outcome.new.splitlines()[-2:] == ["b = dataset.repeat().batch(2)", "c = dataset.cache().repeat()"]
    assert [(finding.line, finding.kind) for finding in outcome.findings] == [(7, "note")]


def test_packages_built_on_tensorflow_are_listed():
    text = (
        "import tensorflow as tf\nfrom transformers import AutoTokenizer, TFAutoModel\n"
        "import efficientnet.tfkeras as e\n"
    )
    assert [line for line, _ in listed(text)] == [2, 3]
