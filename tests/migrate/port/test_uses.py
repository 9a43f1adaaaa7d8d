"""Only members and keywords that a value's class has pass; the rest is rewritten or listed."""

from __future__ import annotations

import pytest

from anytpu.migrate.port import ported

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


def test_a_method_of_the_programs_own_takes_its_own_keywords():
    text = (
        "import tensorflow as tf\n\n\nclass GAN(tf.keras.Model):\n    def compile(self, d_optimizer):\n"
        "        super().compile()\n        self.d_optimizer = d_optimizer\n\n\n"
        "gan = GAN()\ngan.compile(d_optimizer='sgd')\n"
    )
    assert listed(text) == []


def test_a_name_of_keras_2_has_the_row_of_its_public_name():
    old = "a = tf.keras.layers.experimental.preprocessing.TextVectorization(10)"
    (finding,) = ported(f"{GIVEN}{old}\n").by_hand
    assert finding.advice.endswith("look the words up in a function of the data set)")


def test_options_beside_a_variable_of_the_same_name_in_another_function():
    text = (
        "import tensorflow as tf\n\n\ndef options(dataset):\n    opt = tf.data.Options()\n"
        "    opt.experimental_deterministic = False\n    return dataset.with_options(opt)\n\n\n"
        "def optimizer():\n    opt = 3\n    return opt\n\n\nrows = options(tf.data.Dataset.range(3))\n"
    )
    assert ported(text).by_hand == ()
    assert "opt.experimental_deterministic" not in ported(text).new


def test_steps_that_are_a_quotient_are_rounded_up():
    assert last_line("model.predict(x, steps=count / 8)") == "model.predict(x, steps=int(np.ceil(count / 8)))"
    assert last_line("n = 2 * count / 8\nmodel.fit(x, steps_per_epoch=n)") == (
        "model.fit(x, steps_per_epoch=int(np.ceil(n)))"
    )
    assert last_line("model.predict(x, steps=count // 8)") == "model.predict(x, steps=count // 8)"


def test_a_rate_that_a_step_computes_is_listed():
    text = (
        "import tensorflow as tf\n\n\ndef model_fn(features, labels, mode, params):\n"
        "    rate = 0.1 * tf.sqrt(tf.cast(tf.train.get_global_step(), tf.float32))\n"
        "    optimizer = tf.train.MomentumOptimizer(rate, 0.9)\n"
    )
    (finding,) = ported(text).by_hand
    assert (finding.line, finding.old, finding.advice) == (
        6,
        "rate,",
        "this rate is a tensor that a step computes: pass a schedule, a function of the step that optax calls, such "
        "as optax.exponential_decay(0.1, 100, 0.9)",
    )


def test_a_block_that_writes_summaries_is_one_finding():
    text = (
        "import tensorflow as tf\nwriter = 3\nwith tf.summary.create_file_writer('logs').as_default():\n"
        "    tf.summary.scalar('a', 1)\n    tf.summary.scalar('b', 2)\n"
    )
    assert [line for line, _ in listed(text)] == [3]


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
        ("h = model.fit_generator(rows, 20, 3)", "h = model.fit(rows, steps_per_epoch=20, epochs=3)"),
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


def test_a_decay_of_zero_goes():
    assert last_line("o = tf.keras.optimizers.Adam(decay=0.0)") == "o = keras.optimizers.Adam()"


def test_a_decay_without_a_rate_is_listed():
    outcome = ported(f"{GIVEN}o = tf.keras.optimizers.Adam(decay=1e-6)\n")
    assert [finding.advice for finding in outcome.by_hand] == [
        "Keras 3 has no decay: pass keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay) as the rate"
    ]


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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rate = optimizer.learning_rate(optimizer.iterations)", "rate = optimizer.learning_rate"),
        ("rate = optimizer._decayed_lr(tf.float32)", "rate = optimizer.learning_rate"),
        ("rate = model.optimizer.lr(3)", "rate = model.optimizer.learning_rate"),
        ("dataset = dataset.map(scale, tf.data.AUTOTUNE)", "dataset = dataset.map(scale)"),
        ("dataset = dataset.interleave(read, 2, 1, 8)", "dataset = dataset.interleave(read, 2, 1)"),
        (
            "model.compile(tf.train.AdamOptimizer(0.1), 'mse')",
            "model.compile(keras.optimizers.Adam(0.1, epsilon=1e-08), 'mse')",
        ),
        ("a = tf.nn.gelu(b)", "a = keras.activations.gelu(b)"),
        ("a = tf.argsort(b, direction='DESCENDING')", "a = keras.ops.argsort(-b, axis=-1)"),
        ("a = tf.keras.backend.cast(b, 'float')", 'a = keras.ops.cast(b, "float32")'),
    ],
)
def test_a_use_of_2019_becomes(old: str, new: str):
    assert last_line(old) == new


def test_a_callbacks_model_is_a_model_of_any_class():
    outcome = ported("""\
import tensorflow as tf
class Save(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save_weights('best.h5')
        self.model.beta.assign(self.model.optimizer.lr)
""")
    assert outcome.by_hand == ()
    assert "self.model.save_weights('best.weights.h5')" in outcome.new
    assert "self.model.beta.assign(self.model.optimizer.learning_rate)" in outcome.new


def test_the_weights_of_a_metric_get_their_keywords():
    new = ported("""\
import tensorflow as tf
class Count(tf.keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.total = self.add_weight('total', (2, 2), initializer='zeros')
""").new
    assert "self.add_weight(name='total', shape=(2, 2), initializer='zeros')" in new


def test_gradients_of_an_optimizer_are_listed():
    text = """\
import tensorflow as tf
class Mine(tf.keras.Model):
    def test_step(self, data):
        return {}
pairs = tf.train.AdamOptimizer(0.1).compute_gradients(loss)
"""
    assert listed(text) == [(5, "tf.train.AdamOptimizer(0.1).compute_gradients(loss)")]


def test_an_optimizer_for_keras_2_is_listed():
    text = """\
import tensorflow as tf
class Decay(tf.keras.optimizers.Adam):
    def _resource_apply_dense(self, gradient, variable):
        return tf.no_op()
"""
    assert listed(text) == [(2, "class Decay")]


def test_logs_get_the_names_of_keras_3():
    text = """\
import tensorflow as tf
model = tf.keras.Sequential()
model.compile("sgd", "mse", metrics=["accuracy"])
h = model.fit(x, y)
print(h.history["val_acc"], h.history["lr"], d["acc"])
stop = tf.keras.callbacks.EarlyStopping(monitor="val_acc")
"""
    new = ported(text).new
    assert 'h.history["val_accuracy"], h.history["learning_rate"], d["acc"]' in new
    assert 'monitor="val_accuracy"' in new
    own = "import tensorflow as tf\nclass F(tf.keras.callbacks.Callback):\n    history = {}\nprint(F().history['lr'])\n"
    assert "F().history['lr']" in ported(own).new


def test_windows_in_batches_of_another_size_are_listed():
    text = """\
import tensorflow as tf
steps = tf.data.Dataset.from_tensor_slices(x).window(5, shift=1, drop_remainder=True)
whole = steps.flat_map(lambda w: w.batch(5))
"""
    outcome = ported(text)
    assert outcome.by_hand == ()
    assert outcome.new.endswith("Dataset.from_tensor_slices(x), 5, 1, 1)\nwhole = steps\n")
    assert listed(text.replace("batch(5)", "batch(4)")) == [(3, "steps.flat_map(lambda w: w.batch(4))")]


def test_a_schedule_of_a_computed_step_is_listed():
    text = "import tensorflow as tf\nrate = tf.train.exponential_decay(0.1, step * 64, 1000, 0.9)\n"
    assert listed(text) == [(2, "tf.train.exponential_decay(0.1, step * 64, 1000, 0.9)")]
    assert listed(text.replace(" * 64", "")) == []


def test_a_models_own_compute_loss_is_kept():
    text = """\
import tensorflow as tf
class Mine(tf.keras.Model):
    def compute_loss(self, x):
        return tf.reduce_mean(x)
    def test_step(self, data):
        return {"loss": self.compute_loss(data)}
"""
    assert "self.compute_loss(data)}" in ported(text).new


def test_summaries_are_printed():
    text = """\
import tensorflow as tf
writer = tf.summary.create_file_writer("logs")
with writer.as_default():
    tf.summary.scalar("loss", loss, step=3)
"""
    outcome = ported(text)
    assert outcome.by_hand == ()
    assert outcome.new == "print(\"loss\", float(loss), 'at step', int(3))\n"


def test_a_summary_that_is_not_printed_keeps_its_writer():
    text = """\
import tensorflow as tf
writer = tf.summary.create_file_writer("logs")
with writer.as_default():
    tf.summary.scalar("loss", loss, step=3)
    tf.summary.image("drawn", images, step=3)
writer.close()
"""
    assert listed(text) == [
        (2, "tf.summary.create_file_writer"),
        (5, "tf.summary.image"),
    ]
    assert ported(text).new == text.replace(
        'tf.summary.scalar("loss", loss, step=3)', "print(\"loss\", float(loss), 'at step', int(3))"
    )


def test_a_test_that_calls_a_function_stays_without_its_summaries():
    text = """\
import tensorflow as tf
writer = tf.summary.create_file_writer("logs")
if not set_up():
    writer.flush()
if not is_quiet:
    writer.flush()
"""
    outcome = ported(text)
    assert outcome.by_hand == ()
    assert outcome.new == "if not set_up():\n    pass\n"


def test_models_without_variables_are_listed_behind_a_variable():
    text = """\
import tensorflow as tf
class Mine(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)
first, second = Mine(), Mine()
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(second(first(x)))
    weights = first.trainable_variables + second.trainable_variables
    grads = tape.gradient(loss, weights)
"""
    assert listed(text) == [(10, "first.trainable_variables"), (10, "second.trainable_variables")]


def test_modes_that_keras_2_chose_by_the_name():
    text = "import tensorflow as tf\nstop = tf.keras.callbacks.{}(monitor='{}')\n"
    for name, monitor, mode in (
        ("ReduceLROnPlateau", "val_f1", ', mode="min"'),
        ("ReduceLROnPlateau", "fmeasure", ', mode="min"'),
        ("ModelCheckpoint", "fmeasure", ', mode="max"'),
        ("ModelCheckpoint", "val_auc", ', mode="min"'),
        ("EarlyStopping", "val_binary_accuracy", ', mode="max"'),
        ("EarlyStopping", "val_loss", ""),
    ):
        outcome = ported(text.format(name, monitor))
        assert outcome.new.splitlines()[-1] == f"stop = keras.callbacks.{name}(monitor='{monitor}'{mode})"
        assert [finding.kind for finding in outcome.findings] == ["note"] * bool(mode)


@pytest.mark.parametrize("monitor", ["val_auc", "acc_top5"])
def test_a_mode_that_the_versions_of_keras_2_chose_differently_is_listed(monitor: str):
    outcome = ported(f"import tensorflow as tf\nstop = tf.keras.callbacks.EarlyStopping(monitor='{monitor}')\n")
    assert outcome.new.splitlines()[-1] == f"stop = keras.callbacks.EarlyStopping(monitor='{monitor}')"
    assert [finding.advice for finding in outcome.by_hand] == [
        f'the versions of Keras 2 took different modes for \'{monitor}\': write mode="max" or mode="min"'
    ]


def test_the_first_input_of_a_model_with_several():
    text = "import tensorflow as tf\nmodel = tf.keras.{}\nx = model.layers[0].input\n"
    for made, new in (
        ("Model([b, a], c)", "model.layers[0].output"),
        ("Model(a, c)", "model.inputs[0]"),
        ("Sequential([layer])", "model.inputs[0]"),
    ):
        assert ported(text.format(made)).new.splitlines()[-1] == f"x = {new}"


def test_only_an_example_loses_its_serialization():
    text = (
        "import tensorflow as tf\nexample = tf.train.Example(features=f)\na = example.SerializeToString()\n"
        "b = other.SerializeToString()\n"
    )
    outcome = ported(text)
    assert outcome.new.splitlines()[-2:] == ["a = example", "b = other.SerializeToString()"]
    assert [(finding.line, finding.old) for finding in outcome.by_hand] == [(4, "other.SerializeToString()")]
    assert ported("import tensorflow as tf\nb = other.SerializeToString()\n").findings == ()


def test_a_function_that_is_passed_on_becomes_a_lambda():
    text = "import tensorflow as tf\nc = apply(tf.image.flip_left_right, x)\n"
    assert ported(text).new.splitlines()[-1] == "c = apply((lambda image: np.flip(image, -2)), x)"


def test_options_of_a_record_writer():
    text = (
        "import tensorflow as tf\noptions = tf.io.TFRecordOptions(compression_type='GZIP')\n"
        "writer = tf.io.TFRecordWriter(path, options)\n"
    )
    assert ported(text).new.splitlines()[-2:] == [
        "options = 'gzip'",
        "writer = tpu.pipeline.RecordWriter(path, options)",
    ]


def test_the_input_of_a_named_layer():
    text = (
        "import tensorflow as tf\na = tf.keras.Input((3,), name='a')\nx = model.get_layer(name='a').input\n"
        "y = model.get_layer('b').input\n"
    )
    assert ported(text).new.splitlines()[-2:] == [
        "x = model.get_layer(name='a').output",
        "y = model.get_layer('b').input",
    ]


def test_an_argument_that_asks_for_nothing_is_left_out():
    assert (
        last_line("s = tf.distribute.TPUStrategy(resolver, device_assignment=None)") == "s = tpu.TPUStrategy(resolver)"
    )
    assert listed(f"{GIVEN}s = tf.distribute.TPUStrategy(resolver, device_assignment=a)\n") == [
        (7, "device_assignment=a")
    ]


def test_a_layer_of_tensorflow_1_gives_a_tensor():
    body = "    y = tf.layers.dense(features, 3)\n    return y.shape\n"
    assert listed(f"import tensorflow as tf\ndef model_fn(features, labels, mode):\n{body}") == []


def test_a_signature_that_only_tf_function_reads_goes_with_it():
    function = "def f(x):\n    return x\n"
    text = f"import tensorflow as tf\nspec = [tf.TensorSpec([None])]\n@tf.function(input_signature=spec)\n{function}"
    assert ported(text).new == function
    assert listed(f"{text}print(spec)\n") == [(2, "tf.TensorSpec")]


def test_the_log_keeps_its_level_where_it_hides_lines():
    text = "import tensorflow as tf\ntf.logging.set_verbosity(tf.logging.INFO)\ntf.logging.info('a')\n"
    assert (
        ported(text).new
        == "import absl.logging\nabsl.logging.set_verbosity(absl.logging.INFO)\nabsl.logging.info('a')\n"
    )


def test_the_inputs_of_a_model_are_known():
    assert (
        last_line("m = tf.keras.Model(model.inputs, model.outputs)") == "m = keras.Model(model.inputs, model.outputs)"
    )
    assert listed("import tensorflow as tf\nm = tf.keras.Model(x, y)\nprint(m.inputs, m.inputz)\n") == [(3, "m.inputz")]
