"""Table of replacements: the names of TensorFlow's TPU programs, and the anytpu code that replaces them.

Idea: one table serves three readers. `anytpu port` rewrites programs by it, `docs/migrate.md` is generated from it, and
names such as `tpu.GradientTape` raise an error that quotes it.

Rule: every `new` runs, and the porter turns every `old` into its `new`; the tests check both for each row.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

How = Literal["rename", "call", "drop", "pattern", "method", "same", "hand"]
"""The porter's way of rewriting the old line.

- rename: the name becomes `target`, an expression; the arguments are unchanged.
- call: the arguments named by `parameters` are put into the template `target`.
- drop: the whole statement or decorator is removed.
- pattern: `anytpu.migrate.port` has code for it, because more than a name changes.
- method: the name after the dot, on any object, becomes `target`.
- same: nothing changes.
- hand: the author has to rewrite it.

A name of a class and a method, such as "keras.Model.fit_generator", is that method on objects of the class. A name with
arguments, such as "matmul(transpose_b)", is a call with that argument set, or with these arguments after the first.
"""


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The replacement of one name, or of several names with the same counterpart.

    Attributes:
        names: the old names, without `tensorflow.` and `compat.v1.`; a name includes all names below it.
        old: an example of an old line.
        new: the code that replaces it; "" for none.
        how: the porter's way of rewriting it.
        target: the new name, expression or template. In a template of a call `{x}` is the argument x. `{self}` is the
            object whose method is called.
        host: the target in functions of data sets, which run on the host: NumPy's, which is faster there; "" for
            `target`.
        parameters: for a call, the old parameters in order, each with the template text for a missing argument; None
            for a required parameter.
        keywords: keyword arguments that are renamed, or dropped (None).
        note: further information, one sentence.
        line: the replacement in one line, where `new` has several.
        also: further attributes of `anytpu` whose error quotes this row, beyond the last part of each name.
    """

    names: tuple[str, ...]
    old: str
    new: str
    how: How
    target: str = ""
    host: str = ""
    parameters: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    keywords: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    note: str = ""
    also: tuple[str, ...] = ()
    line: str = ""


_RESOLVERS = ("distribute.cluster_resolver.TPUClusterResolver", "contrib.cluster_resolver.TPUClusterResolver")
_LOW_LEVEL = ("contrib.tpu.", "tpu.")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _low_level(name: str) -> tuple[str, ...]:
    return tuple(prefix + name for prefix in _LOW_LEVEL)


def _estimators(name: str) -> tuple[str, ...]:
    return f"contrib.tpu.{name}", f"estimator.tpu.{name}"


def _rename(names: tuple[str, ...], old: str, target: str, **details: Any) -> Replacement:
    """Return a row for names whose only change is `target`, so that the new line follows from the old line."""
    shown = next(f"{prefix}{name}" for name in names for prefix in ("tf.compat.v1.", "tf.") if f"{prefix}{name}" in old)
    return Replacement(names, old, old.replace(shown, target), "rename", target=target, **details)


def _calls() -> dict[str, list[Replacement]]:
    """Return the rows of calls.toml by group: templates of calls, with the old parameters as one text."""
    groups = tomllib.loads(Path(__file__).with_name("calls.toml").read_text(encoding="utf-8"))
    return {name: [_call(**row) for row in rows] for name, rows in groups.items()}


def _call(names: list[str], parameters: str, old: str, new: str, target: str, host: str = "") -> Replacement:
    pairs = (part.partition("=") for part in parameters.split(", "))
    defaults = {name: default if equal else None for name, equal, default in pairs}
    return Replacement(tuple(names), old, new, "call", target, host, defaults)


_CALLS = _calls()

_FIND = (
    Replacement(
        _RESOLVERS,
        "resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu='')",
        "resolver = tpu.TPUClusterResolver(tpu='')",
        "pattern",
        target="tpu.TPUClusterResolver",
        note="it looks for a TPU, then a GPU, and makes 8 virtual cores of the CPU otherwise. The name or address of a "
        "TensorFlow worker is left out: such a worker does not speak to JAX",
        also=("cluster_resolver",),
    ),
    Replacement(
        (),
        "tpu_address = 'grpc://' + os.environ['COLAB_TPU_ADDR']",
        'tpu_address = tpu.TPUClusterResolver("").master()',
        "pattern",
        note='the resolver reads the environment; master() is "" when the cores are in this process',
    ),
    Replacement(
        tuple(f"{name}.connect" for name in _RESOLVERS),
        "resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect('node-1')",
        'resolver = tpu.TPUClusterResolver("")',
        "call",
        target='tpu.TPUClusterResolver("")',
        parameters={"tpu": '""', "zone": '""', "project": '""'},
        note="TPUStrategy(resolver) starts the cores",
    ),
    Replacement(
        (f"{_RESOLVERS[0]}.cluster_spec",),
        "print(resolver.cluster_spec().as_dict()['worker'])",
        "print(resolver.cluster_spec().get('worker'))",
        "pattern",
        target="cluster_spec",
        note="it is a dictionary, and empty when the cores are in this process",
    ),
    Replacement(
        ("config.experimental_connect_to_host",),
        "tf.config.experimental_connect_to_host(tpu_address)",
        "",
        "drop",
        note="nothing: the resolver connects",
    ),
    _rename(
        ("config.experimental_connect_to_cluster",),
        "tf.config.experimental_connect_to_cluster(resolver)",
        "tpu.experimental_connect_to_cluster",
        note="the short form of this line and the ones around it is strategy = tpu.connect()",
        also=("config",),
    ),
    _rename(
        ("tpu.experimental.initialize_tpu_system",),
        "tf.tpu.experimental.initialize_tpu_system(resolver)",
        "tpu.initialize_tpu_system",
        note="a second call loses nothing",
        also=("experimental", "tpu"),
    ),
    _rename(
        ("tpu.experimental.embedding.TPUEmbedding",),
        "with strategy.scope():\n    tf.tpu.experimental.embedding.TPUEmbedding(feature_config, optimizer)",
        "tpu.embedding.TPUEmbedding",
        note="its tables can be read and written at any time; differentiate by the arrays of dequeue() themselves",
        also=("TPUEmbedding",),
    ),
    _rename(
        ("tpu.experimental.embedding.TableConfig",),
        "table = tf.tpu.experimental.embedding.TableConfig(100, 8)",
        "tpu.embedding.TableConfig",
    ),
    _rename(
        ("tpu.experimental.embedding.FeatureConfig",),
        "feature = tf.tpu.experimental.embedding.FeatureConfig(table)",
        "tpu.embedding.FeatureConfig",
    ),
    _rename(
        ("estimator.tpu.experimental.EmbeddingConfigSpec",),
        "spec = tf.estimator.tpu.experimental.EmbeddingConfigSpec(\n"
        "    feature_to_config_dict=feature_configs, optimization_parameters=optimizer\n)",
        "tpu.embedding.EmbeddingConfigSpec",
        note="each feature is a tpu.embedding.FeatureConfig(table); there is no table_to_config_dict",
    ),
    *(
        _rename(
            (f"tpu.experimental.embedding.{old}",),
            f"optimizer = tf.tpu.experimental.embedding.{old}(0.01)",
            f"keras.optimizers.{new}",
            note="it is lazy: rows that a batch does not use stay as they are",
        )
        for old, new in (("SGD", "SGD"), ("Adagrad", "Adagrad"), ("Adam", "Adam"), ("FTRL", "Ftrl"))
    ),
    _rename(
        ("tpu.experimental.shutdown_tpu_system",),
        "tf.tpu.experimental.shutdown_tpu_system(resolver)",
        "tpu.shutdown_tpu_system",
    ),
    _rename(
        (
            "config.list_logical_devices",
            "config.experimental.list_logical_devices",
            "config.list_physical_devices",
            "config.experimental.list_physical_devices",
        ),
        "tf.config.list_logical_devices('TPU')",
        "tpu.list_logical_devices",
    ),
    Replacement(
        ("device",),
        "with tf.device('/TPU:0'):\n    c = tf.matmul(a, b)",
        "with tpu.device('/TPU:0'):\n    c = keras.ops.matmul(a, b)",
        "rename",
        target="tpu.device",
        line="with tpu.device('/TPU:0'): ...",
    ),
)

_STRATEGY = (
    _rename(
        ("distribute.TPUStrategy", "distribute.experimental.TPUStrategy", "contrib.distribute.TPUStrategy"),
        "strategy = tf.distribute.TPUStrategy(resolver)",
        "tpu.TPUStrategy",
        keywords={"steps_per_run": None},
        also=("distribute",),
    ),
    Replacement(
        ("distribute.MirroredStrategy", "distribute.experimental.CentralStorageStrategy"),
        "strategy = tf.distribute.MirroredStrategy()",
        "strategy = tpu.connect()",
        "call",
        target="tpu.connect()",
        note="a TPU, a GPU, or virtual cores: whatever is there",
    ),
    Replacement(
        ("distribute.OneDeviceStrategy",),
        "strategy = tf.distribute.OneDeviceStrategy('/gpu:0')",
        'strategy = tpu.connect("", cores=1)',
        "call",
        target='tpu.connect("", cores=1)',
        parameters={"device": '""'},
    ),
    _rename(("distribute.get_strategy",), "strategy = tf.distribute.get_strategy()", "tpu.get_strategy"),
    Replacement(
        (),
        "z = strategy.run(matmul_fn, args=(a, b))\nprint(z)",
        "z = strategy.run(matmul_fn, args=(a, b))\nprint(z)",
        "same",
        note="it prints PerReplica:{ ... } as before; z.values has the parts",
    ),
    Replacement(
        (".experimental_run_v2",),
        "strategy.experimental_run_v2(step_fn, args=(batch,))",
        "strategy.run(step_fn, args=(batch,))",
        "method",
        target="run",
    ),
    Replacement(
        (".experimental_distribute_dataset",),
        "batches = strategy.experimental_distribute_dataset(dataset)",
        "batches = strategy.distribute_dataset(dataset)",
        "method",
        target="distribute_dataset",
        note="any iterable of batches will do",
    ),
    Replacement(
        (".experimental_distribute_datasets_from_function",),
        "batches = strategy.experimental_distribute_datasets_from_function(dataset_fn)",
        "batches = strategy.distribute_datasets_from_function(dataset_fn)",
        "method",
        target="distribute_datasets_from_function",
    ),
    Replacement(
        ("distribute.Strategy.unwrap",),
        "parts = strategy.unwrap(per_replica)",
        "parts = strategy.experimental_local_results(per_replica)",
        "method",
        target="experimental_local_results",
    ),
    *(
        Replacement(
            (f"distribute.Strategy.{name}",),
            f"strategy.{name}()",
            "",
            "drop",
            note="nothing: the strategy is ready when it is made",
        )
        for name in ("initialize", "finalize")
    ),
    _rename(("distribute.InputContext",), "context = tf.distribute.InputContext()", "tpu.InputContext"),
    Replacement(
        ("GradientTape",),
        "def step_fn(x, y):\n"
        "    with tf.GradientTape() as tape:\n"
        "        logits = model(x, training=True)\n"
        "        loss = tf.reduce_mean((logits - y) ** 2)\n"
        "    grads = tape.gradient(loss, model.trainable_variables)\n"
        "    optimizer.apply_gradients(zip(grads, model.trainable_variables))\n"
        "    accuracy.update_state(y, logits)",
        "def step_fn(x, y):\n"
        "    def compute_loss():\n"
        "        logits = model(x, training=True)\n"
        "        loss = keras.ops.mean((logits - y) ** 2)\n"
        "        return loss, logits\n"
        "    (loss, logits), grads = tpu.value_and_grad(compute_loss, model.trainable_variables, has_aux=True)()\n"
        "    optimizer.apply_gradients(zip(grads, model.trainable_variables))\n"
        "    accuracy.update_state(y, logits)",
        "pattern",
        line="loss, grads = tpu.value_and_grad(lambda: keras.ops.mean(model(x)), model.trainable_variables)()",
        note="the body of the tape becomes a function that returns the loss, and beside it what is used later",
    ),
    Replacement(
        ("function",),
        "@tf.function\ndef train_step(x):\n    return x",
        "def train_step(x):\n    return x",
        "drop",
        note="nothing: strategy.run compiles the step",
        also=("autograph",),
    ),
    Replacement(
        ("autograph.experimental.do_not_convert",),
        "@tf.autograph.experimental.do_not_convert\ndef train_step(x):\n    return x",
        "def train_step(x):\n    return x",
        "drop",
        note="nothing: Python is not rewritten",
    ),
    Replacement(
        (),
        "for _ in tf.range(steps):\n    strategy.run(step_fn, args=(next(iterator),))",
        "strategy.run_steps(step_fn, iterator, int(steps))",
        "pattern",
        note="many steps in one compiled loop",
    ),
    _rename(
        ("nn.compute_average_loss",),
        "loss = tf.nn.compute_average_loss(losses, global_batch_size=16)",
        "tpu.compute_average_loss",
        also=("nn",),
    ),
    _rename(
        ("nn.scale_regularization_loss",),
        "loss = tf.nn.scale_regularization_loss(loss)",
        "tpu.scale_regularization_loss",
    ),
    _rename(
        ("distribute.get_replica_context",),
        "replica = tf.distribute.get_replica_context().replica_id_in_sync_group",
        "tpu.get_replica_context",
    ),
    _rename(("distribute.has_strategy",), "is_distributed = tf.distribute.has_strategy()", "tpu.has_strategy"),
    _rename(
        ("distribute.in_cross_replica_context",),
        "sees_all = tf.distribute.in_cross_replica_context()",
        "tpu.in_cross_replica_context",
    ),
    _rename(
        ("distribute.ReduceOp",),
        "total = strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)",
        "tpu.ReduceOp",
    ),
    Replacement(
        (),
        "print(optimizer.iterations.numpy(), round(float(training_loss.result()), 4))",
        "print(optimizer.iterations.numpy(), round(float(training_loss.result()), 4))",
        "same",
    ),
    Replacement((), "training_loss.reset_states()", "training_loss.reset_states()", "same"),
    Replacement(
        (".get_shape",),
        "shape = total.get_shape()",
        "shape = total.shape",
        "call",
        target="{self}.shape",
    ),
    Replacement(
        (".as_list",),
        "shape = total.get_shape().as_list()",
        "shape = list(total.shape)",
        "call",
        target="list({self})",
        note="a shape is a tuple",
    ),
    Replacement(
        (".set_shape",),
        "total.set_shape([2])",
        "",
        "drop",
        note="nothing: an array has its shape",
    ),
    Replacement(
        (".numpy",),
        "result = total.numpy()",
        "result = keras.ops.convert_to_numpy(total)",
        "pattern",
        note="arrays of JAX have no .numpy(); Keras variables and metrics keep theirs",
    ),
)

_CONVERSION = (
    Replacement(
        (
            "contrib.tpu.keras_to_tpu_model",
            "contrib.tpu.python.tpu.keras_support.tpu_model",
            "python.tpu.keras_support.tpu_model",
        ),
        "tpu_model = tf.contrib.tpu.keras_to_tpu_model(model, strategy=tf.contrib.tpu.TPUDistributionStrategy(\n"
        "    tf.contrib.cluster_resolver.TPUClusterResolver(tpu_address)))",
        "tpu_model = tpu.keras_to_tpu_model(model, strategy=tpu.TPUDistributionStrategy(\n"
        "    tpu.TPUClusterResolver(tpu_address)))",
        "rename",
        target="tpu.keras_to_tpu_model",
        note="any batch size is right: nothing has to be divisible by the cores",
        line="tpu_model = tpu.keras_to_tpu_model(model)",
        also=("contrib",),
    ),
    _rename(
        (
            "contrib.tpu.TPUDistributionStrategy",
            "contrib.tpu.python.tpu.keras_support.TPUDistributionStrategy",
        ),
        "strategy = tf.contrib.tpu.TPUDistributionStrategy(resolver)",
        "tpu.TPUDistributionStrategy",
    ),
    Replacement(
        (),
        "tpu_model.save_weights('./tpu_model.h5', overwrite=True)\ncpu_model = tpu_model.sync_to_cpu()",
        "tpu_model.save_weights('./tpu_model.h5', overwrite=True)\ncpu_model = tpu_model.sync_to_cpu()",
        "same",
        note="a plain .h5 is read back by converted models; for a model of Keras by itself call it model.weights.h5. "
        "predict needs no sync_to_cpu() any more",
    ),
)

_ESTIMATOR = (
    _rename(
        _estimators("TPUEstimator"),
        "estimator = tf.contrib.tpu.TPUEstimator(model_fn=model_fn, config=config, train_batch_size=16)",
        "tpu.TPUEstimator",
        also=("estimator",),
    ),
    _rename(
        _estimators("TPUEstimatorSpec"),
        "spec = tf.contrib.tpu.TPUEstimatorSpec(mode='infer', predictions={'classes': classes})",
        "tpu.TPUEstimatorSpec",
    ),
    _rename(
        ("estimator.EstimatorSpec",),
        "spec = tf.estimator.EstimatorSpec(mode='infer', predictions={'classes': classes})",
        "tpu.TPUEstimatorSpec",
        keywords={"eval_metric_ops": "eval_metrics"},
    ),
    Replacement(
        _estimators("RunConfig"),
        "config = tf.contrib.tpu.RunConfig(tpu_config=tf.contrib.tpu.TPUConfig(iterations_per_loop=100))",
        "config = tpu.RunConfig(tpu_config=tpu.TPUConfig(iterations_per_loop=100))",
        "rename",
        target="tpu.RunConfig",
        keywords={"session_config": None},
    ),
    _rename(_estimators("TPUConfig"), "config = tf.contrib.tpu.TPUConfig(100)", "tpu.TPUConfig"),
    _rename(
        _estimators("InputPipelineConfig"),
        "where = tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2",
        "tpu.InputPipelineConfig",
    ),
    _rename(("estimator.ModeKeys",), "is_training = mode == tf.estimator.ModeKeys.TRAIN", "tpu.ModeKeys"),
    Replacement(
        ("train.get_global_step", "train.get_or_create_global_step"),
        "step = tf.train.get_global_step()",
        "step = tpu.get_global_step()",
        "rename",
        target="tpu.get_global_step",
        note="in a model_fn; the estimator counts the steps",
    ),
    Replacement(
        (),
        "train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())",
        "train_op = optimizer.minimize(loss)",
        "pattern",
    ),
    Replacement(
        ("estimator.Estimator",),
        "estimator = tf.estimator.Estimator(model_fn=model_fn)",
        "estimator = tpu.TPUEstimator(model_fn=model_fn, use_tpu=False, config=tpu.RunConfig())",
        "pattern",
        target="tpu.TPUEstimator",
        note="it trains on one device, as before. For all cores leave use_tpu=False out, pass train_batch_size, and "
        "let input_fn(params) make batches of params['batch_size'] rows",
    ),
    Replacement(
        ("estimator.DNNClassifier", "estimator.LinearClassifier"),
        "estimator = tf.estimator.DNNClassifier([16], columns)",
        "model = keras.Sequential([keras.layers.Dense(16, 'relu'), keras.layers.Dense(10)])",
        "hand",
        note="a model of Keras has compile, fit, evaluate and predict in place of input functions",
    ),
    Replacement(
        ("estimator.RunConfig",),
        "config = tf.estimator.RunConfig(model_dir='model', save_checkpoints_steps=100)",
        "config = tpu.RunConfig(model_dir='model', save_checkpoints_steps=100)",
        "rename",
        target="tpu.RunConfig",
    ),
    Replacement(
        ("train.SessionRunHook", "estimator.SessionRunHook"),
        "hook = tf.train.SessionRunHook()",
        "hook = tpu.SessionRunHook()",
        "rename",
        target="tpu.SessionRunHook",
        note="its methods run once a loop, not once a step",
    ),
    Replacement(
        (
            "train.SessionRunArgs",
            "estimator.SessionRunArgs",
            "train.SecondOrStepTimer",
            "estimator.SecondOrStepTimer",
            "train.load_variable",
            "GraphKeys.GLOBAL_STEP",
        ),
        "wanted = tf.train.SessionRunArgs(tf.train.get_global_step())",
        "estimator.train(input_fn, max_steps=1)\nstep = estimator.get_variable_value('global_step')",
        "hand",
        line="step = estimator.get_variable_value('global_step')",
        note="a hook fetches no tensors: after a loop it reads variables from the estimator",
    ),
    Replacement(
        tuple(
            f"{home}.{kind}Hook"
            for kind in _words("LoggingTensor StepCounter SummarySaver CheckpointSaver Profiler NanTensor StopAtStep")
            for home in ("train", "estimator")
        ),
        "hook = tf.train.LoggingTensorHook({'loss': 'loss'}, every_n_iter=100)",
        "config = tpu.RunConfig(log_step_count_steps=100, save_checkpoints_steps=1000)",
        "hand",
        note="leave the hook out: the config sets when the loss is logged and checkpoints are saved, and train(steps=) "
        "when it ends",
    ),
    Replacement(
        ("estimator.export", "estimator.FinalExporter", "estimator.LatestExporter", "estimator.BestExporter"),
        "exporter = tf.estimator.FinalExporter('exporter', serving_input_fn)",
        "estimator.train(input_fn, max_steps=1)\npath = estimator.export_saved_model('export', x)",
        "hand",
        line="path = estimator.export_saved_model('export', x)",
        note="called after the training; x is the features of a batch, or a function that returns them: "
        "`anytpu docs estimator` has an example",
    ),
    Replacement(
        ("estimator.inputs",),
        "input_fn = tf.estimator.inputs.numpy_input_fn({'x': x}, y, 16, num_epochs=None, shuffle=True)",
        "input_fn = lambda params, x={'x': x}, y=y: "
        "tpu.pipeline.Dataset.from_arrays((x, y)).shuffle().repeat().batch(16)",
        "pattern",
    ),
    Replacement(
        (
            "estimator.train_and_evaluate",
            "estimator.TrainSpec",
            "estimator.EvalSpec",
            "train.checkpoints_iterator",
            "contrib.training.checkpoints_iterator",
        ),
        "tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)",
        "estimator.train(input_fn, max_steps=1)\nestimator.evaluate(input_fn, steps=1)",
        "hand",
        line="estimator.train(input_fn, max_steps=1); estimator.evaluate(input_fn, steps=1)",
        note="a loop around the two lines evaluates between trainings",
    ),
)

_LAYER_KEYWORDS: dict[str, str | None] = {
    **{
        f"{part}_{kind}": f"{part}_{kind}"
        for part in ("kernel", "bias", "activity", "depthwise", "pointwise")
        for kind in ("initializer", "regularizer", "constraint")
    },
    **{
        name: name
        for name in ("activation", "use_bias", "data_format", "dilation_rate", "trainable", "depth_multiplier")
    },
    "name": None,
}
_IMAGE_GENERATOR = "keras.src.legacy.preprocessing.image.ImageDataGenerator"
"""Keras 2's augmentation of images, which Keras 3 keeps and exports to TensorFlow's users only."""
_IN_FLOAT32 = "keras.ops.cast({images}, 'float32')"
"""TensorFlow resizes to floats, Keras to the type of the image."""
_STEP = {"learning_rate": None, "global_step": None}
_SCHEDULES = (
    (
        "exponential_decay",
        "100, 0.9, staircase=True",
        "exponential_decay(0.1, 100, 0.9, staircase=True)",
        "exponential_decay({learning_rate}, {decay_steps}, {decay_rate}, staircase={staircase})",
        {**_STEP, "decay_steps": None, "decay_rate": None, "staircase": "False", "name": "None"},
    ),
    (
        "cosine_decay",
        "100",
        "cosine_decay_schedule(0.1, 100, 0.0)",
        "cosine_decay_schedule({learning_rate}, {decay_steps}, {alpha})",
        {**_STEP, "decay_steps": None, "alpha": "0.0", "name": "None"},
    ),
    (
        "polynomial_decay",
        "100, 0.01, power=2.0",
        "polynomial_schedule(0.1, 0.01, 2.0, 100)",
        "polynomial_schedule({learning_rate}, {end_learning_rate}, {power}, {decay_steps})",
        {**_STEP, "decay_steps": None, "end_learning_rate": "0.0001", "power": "1.0", "cycle": "False", "name": "None"},
    ),
)

_LOW_LEVEL_ROWS = (
    Replacement(
        ("contrib.tpu.CrossShardOptimizer", "tpu.CrossShardOptimizer"),
        "optimizer = tf.contrib.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.01))",
        "optimizer = tpu.CrossShardOptimizer(optax.sgd(0.01))",
        "rename",
        target="tpu.CrossShardOptimizer",
        note="around an optax or Keras optimizer; the number of shards is that of the cores",
    ),
    Replacement(
        ("contrib.tpu.python.tpu.tpu_function.get_tpu_context", "python.tpu.tpu_function.get_tpu_context"),
        "tpu_function.get_tpu_context().set_number_of_shards(8)",
        "",
        "drop",
        note="nothing: the number of shards is right without being set",
        also=("tpu_function",),
    ),
    *(
        Replacement(
            _low_level(name),
            f"{left}tf.contrib.tpu.{name}({arguments})",
            f"{left}tpu.{name}({arguments})",
            "rename",
            target=f"tpu.{name}",
        )
        for name, left, arguments in (
            ("initialize_system", "", ""),
            ("shutdown_system", "", ""),
            ("rewrite", "outputs = ", "matmul_fn, inputs=[a, b]"),
            ("shard", "outputs = ", "double, inputs=[x], num_shards=2"),
            ("batch_parallel", "outputs = ", "double, inputs=[x], num_shards=2"),
            ("replicate", "outputs = ", "double, inputs=[[x], [x]]"),
            ("cross_replica_sum", "total_fn = lambda one: ", "one"),
            ("repeat", "outputs = ", "3, double, [x]"),
            ("while_loop", "outputs = ", "is_small, double, [x]"),
            ("outside_compilation", "logged_fn = lambda one: ", "print, one"),
            ("bfloat16_scope", "scope = ", ""),
            ("core", "name = ", "0"),
        )
    ),
    Replacement(
        ("Session", "InteractiveSession"),
        "with tf.Session(tpu_address) as session:\n    devices = session.list_devices()",
        "devices = tpu.list_devices()",
        "pattern",
        line="strategy.run(train_step, args=(x, y))",
        note="there are no sessions: a function of arrays is a step, and strategy.run runs it on every core",
        also=("session",),
    ),
    Replacement(
        (),
        "with tf.Session(target) as sess:\n    sess.run(tf.contrib.tpu.initialize_system())\n"
        "    sess.run(tf.contrib.tpu.shutdown_system())",
        "tpu.initialize_system()\ntpu.shutdown_system()",
        "pattern",
    ),
    Replacement(
        ("placeholder", "placeholder_with_default", "Graph", "get_default_graph", "reset_default_graph"),
        "x = tf.placeholder('float', shape=[None, 5])",
        "outputs = strategy.run(train_step, args=(x, y))",
        "hand",
        note="a placeholder is an argument of the step",
        also=("feed_dict",),
    ),
    Replacement(
        ("global_variables_initializer", "local_variables_initializer", "initialize_all_variables"),
        "init = tf.global_variables_initializer()",
        "",
        "hand",
        note="variables have their values when they are made",
    ),
    Replacement(
        (
            *(f"contrib.tpu.{way}feed_{end}" for way in ("in", "out") for end in ("dequeue", "dequeue_tuple")),
            *(f"contrib.tpu.{way}feed_{end}" for way in ("in", "out") for end in ("enqueue", "enqueue_tuple")),
            "contrib.tpu.InfeedQueue",
        ),
        "batch = tf.contrib.tpu.infeed_dequeue(tf.float32, shape=[16, 4])",
        "outputs = strategy.run_steps(double, iter(strategy.distribute_dataset([x, x])), 2)",
        "hand",
        note="the loop feeds itself from an iterator, and returns what the last step returned",
    ),
    _rename(
        ("train.GradientDescentOptimizer",),
        "optimizer = tf.train.GradientDescentOptimizer(learning_rate=0.01)",
        "optax.sgd",
        keywords={"use_locking": None, "name": None},
    ),
    Replacement(
        ("train.AdamOptimizer",),
        "optimizer = tf.train.AdamOptimizer(beta1=0.8)",
        "optimizer = optax.adam(0.001, b1=0.8)",
        "call",
        target="optax.adam({learning_rate})",
        parameters={"learning_rate": "0.001"},
        keywords={"beta1": "b1", "beta2": "b2", "epsilon": "eps", "use_locking": None, "name": None},
    ),
    Replacement(
        ("train.MomentumOptimizer",),
        "optimizer = tf.train.MomentumOptimizer(0.1, 0.9)",
        "optimizer = optax.sgd(0.1, momentum=0.9)",
        "call",
        target="optax.sgd({learning_rate}, momentum={momentum})",
        parameters={"learning_rate": None, "momentum": None},
        keywords={"use_nesterov": "nesterov", "use_locking": None, "name": None},
    ),
    Replacement(
        ("train.RMSPropOptimizer",),
        "optimizer = tf.train.RMSPropOptimizer(0.1, decay=0.95)",
        "optimizer = optax.rmsprop(0.1, decay=0.95, momentum=0.0, eps=1e-10)",
        "call",
        target="optax.rmsprop({learning_rate}, decay={decay}, momentum={momentum}, eps={epsilon})",
        parameters={"learning_rate": None, "decay": "0.9", "momentum": "0.0", "epsilon": "1e-10"},
        keywords={"centered": "centered", "use_locking": None, "name": None},
    ),
    Replacement(
        ("train.AdagradOptimizer",),
        "optimizer = tf.train.AdagradOptimizer(0.1)",
        "optimizer = optax.adagrad(0.1, initial_accumulator_value=0.1)",
        "call",
        target="optax.adagrad({learning_rate}, initial_accumulator_value={initial_accumulator_value})",
        parameters={"learning_rate": None, "initial_accumulator_value": "0.1"},
        keywords={"use_locking": None, "name": None},
    ),
    Replacement(
        ("train.Checkpoint", "train.CheckpointManager", "train.latest_checkpoint"),
        "tf.train.Checkpoint(model=model).save(path)",
        "steps = tpu.Checkpointer(path, keep=3).steps(1000, model=model, optimizer=optimizer)",
        "hand",
        note="loop over these steps: they restore the named objects, save them at intervals, and continue a killed "
        "run; fit takes checkpoint_dir=path; model.save_weights('model.weights.h5') saves weights alone",
    ),
    Replacement(
        ("train.Saver",),
        "saver = tf.train.Saver()",
        "model.save_weights('model.weights.h5')",
        "hand",
        note="model.load_weights reads it back; files are written where the program runs, also from a TPU",
    ),
    Replacement(
        ("summary", "contrib.summary"),
        "tf.summary.scalar('loss', loss)",
        "print('loss', float(loss))",
        "hand",
        note="return the value from the step: any writer takes it then; for fit there is keras.callbacks.CSVLogger",
    ),
    Replacement(
        (".compute_gradients",),
        "pairs = optimizer.compute_gradients(loss)",
        "optimizer = tpu.CrossShardOptimizer(optax.chain(optax.clip_by_global_norm(5.0), optax.sgd(0.1)))",
        "hand",
        note="then train_op = optimizer.minimize(loss): optax changes the gradients in a chain",
    ),
    Replacement(
        ("app.run",),
        "tf.app.run()",
        "absl.app.run(main)",
        "call",
        target="absl.app.run({main})",
        parameters={"main": "main", "argv": "None"},
        note="absl comes with Keras; it parses the flags and calls main",
        also=("app",),
    ),
    Replacement(
        ("app.flags", "flags"),
        "tf.app.flags.DEFINE_integer('train_batch_size', 64, 'Rows of a batch.')",
        "absl.flags.DEFINE_integer('train_batch_size', 64, 'Rows of a batch.')",
        "rename",
        target="absl.flags",
    ),
    Replacement(
        ("layers.dense",),
        "logits = tf.layers.dense(x, 10, activation=tf.nn.relu)",
        "logits = keras.layers.Dense(10, activation=keras.ops.relu)(x)",
        "call",
        target="keras.layers.Dense({units})({inputs})",
        parameters={"inputs": None, "units": None},
        keywords=_LAYER_KEYWORDS,
        note="in a model_fn; elsewhere make the layer once, outside of the step",
    ),
    *(
        Replacement(
            (f"layers.{old}",),
            f"c = tf.layers.{old}(pictures, 4, 3, 2, 'SAME')",
            f"c = keras.layers.{new}(4, 3, strides=2, padding='same')(pictures)",
            "call",
            target=f"keras.layers.{new}({{filters}}, {{kernel_size}}, strides={{strides}}, padding={{padding}})"
            "({inputs})",
            parameters={"inputs": None, "filters": None, "kernel_size": None, "strides": "1", "padding": '"valid"'},
            keywords=_LAYER_KEYWORDS,
        )
        for old, new in (
            ("conv2d", "Conv2D"),
            ("conv2d_transpose", "Conv2DTranspose"),
            ("separable_conv2d", "SeparableConv2D"),
        )
    ),
    *(
        Replacement(
            (f"layers.{old}",),
            f"c = tf.layers.{old}(pictures, 2, 2)",
            f'c = keras.layers.{new}(2, 2, padding="valid")(pictures)',
            "call",
            target=f"keras.layers.{new}({{pool_size}}, {{strides}}, padding={{padding}})({{inputs}})",
            parameters={"inputs": None, "pool_size": None, "strides": None, "padding": '"valid"'},
            keywords={"data_format": "data_format", "name": None},
        )
        for old, new in (("max_pooling2d", "MaxPooling2D"), ("average_pooling2d", "AveragePooling2D"))
    ),
    Replacement(
        ("layers.flatten",),
        "c = tf.layers.flatten(pictures)",
        "c = keras.layers.Flatten()(pictures)",
        "call",
        target="keras.layers.Flatten()({inputs})",
        parameters={"inputs": None, "name": "None"},
    ),
    Replacement(
        ("layers.dropout",),
        "c = tf.layers.dropout(x, rate=0.4, training=is_training)",
        "c = keras.layers.Dropout(0.4)(x, training=is_training)",
        "call",
        target="keras.layers.Dropout({rate})({inputs}, training={training})",
        parameters={"inputs": None, "rate": "0.5", "noise_shape": "None", "seed": "None", "training": "False"},
        keywords={"name": None},
    ),
    Replacement(
        ("layers.batch_normalization",),
        "c = tf.layers.batch_normalization(x, training=is_training, fused=True)",
        "c = keras.layers.BatchNormalization()(x, training=is_training)",
        "call",
        target="keras.layers.BatchNormalization()({inputs}, training={training})",
        parameters={"inputs": None, "training": "False"},
        keywords={
            **{name: name for name in ("axis", "momentum", "epsilon", "center", "scale", "gamma_initializer")},
            "trainable": "trainable",
            "fused": None,
            "name": None,
        },
    ),
    Replacement(
        ("get_collection", "control_dependencies"),
        "update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)\nwith tf.control_dependencies(update_ops):\n"
        "    train_op = optimizer.minimize(loss)",
        "train_op = optimizer.minimize(loss)",
        "pattern",
        line="",
        note="the body of the block: statements run in the order they are written, layers update their statistics",
    ),
    Replacement(
        ("variable_scope", "name_scope"),
        "with tf.variable_scope('generator'):\n    c = tf.exp(a)",
        "with keras.name_scope('generator'):\n    c = keras.ops.exp(a)",
        "call",
        target="keras.name_scope({name})",
        parameters={"name": None, "values": "None"},
        line="with keras.name_scope('generator'): ...",
        note="layers share their weights where the same layer is called",
    ),
    Replacement(
        ("trainable_variables", "global_variables", "get_variable"),
        "variables = tf.trainable_variables()",
        "variables = model.trainable_variables",
        "hand",
        note="a layer or a model has its variables; in a model_fn an L2 loss of all variables is "
        "optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1)) as the optimizer",
    ),
    *(
        Replacement(
            (f"train.{old}",),
            f"rate = tf.train.{old}(0.1, tf.train.get_global_step(), {rest})",
            f"rate = optax.{new}",
            "call",
            target=f"optax.{target}",
            parameters=parameters,
            note="a schedule: pass it to the optimizer, which counts the steps; at a step it is rate(step)",
        )
        for old, rest, new, target, parameters in _SCHEDULES
    ),
    Replacement(
        ("train.piecewise_constant",),
        "rate = tf.train.piecewise_constant(tf.train.get_global_step(), [30, 50], [0.1, 0.05, 0.01])",
        "rate = keras.optimizers.schedules.PiecewiseConstantDecay([30, 50], [0.1, 0.05, 0.01])",
        "call",
        target="keras.optimizers.schedules.PiecewiseConstantDecay({boundaries}, {values})",
        parameters={"x": None, "boundaries": None, "values": None, "name": "None"},
        note="a function of the step, which optax and Keras call",
    ),
    Replacement(
        ("logging.set_verbosity", "get_logger", "autograph.set_verbosity"),
        "tf.logging.set_verbosity(tf.logging.INFO)",
        "",
        "drop",
        note="nothing: what is worth saying is said",
    ),
    _rename(("logging",), "tf.logging.info('loss %f', 0.5)", "absl.logging", note="absl comes with Keras"),
    Replacement(
        (
            "config.experimental.set_memory_growth",
            "config.experimental.set_virtual_device_configuration",
            "config.optimizer",
            "config.threading",
            "config.set_visible_devices",
            "debugging.set_log_device_placement",
        ),
        "tf.config.optimizer.set_jit(True)",
        "",
        "drop",
        note="nothing: XLA compiles every step, and anytpu sets memory and threads",
    ),
    *(
        Replacement((old,), f"part = tf.{old}{call}", f"part = {new}{call}", "rename", target=new)
        for old, new, call in (
            ("newaxis", "None", ""),
            ("__version__", "keras.__version__", ""),
            ("VERSION", "keras.__version__", ""),
            ("Tensor", "jax.Array", ""),
            ("print", "print", "(1)"),
            ("Module", "keras.layers.Layer", "()"),
            ("test.is_gpu_available", "bool", "()"),
            ("errors.NotFoundError", "FileNotFoundError", ""),
            ("errors.InvalidArgumentError", "ValueError", ""),
            ("errors.OutOfRangeError", "StopIteration", ""),
            ("contrib.distribute.initialize_tpu_system", "tpu.initialize_tpu_system", "(resolver)"),
        )
    ),
    Replacement(
        ("errors",),
        "kind = tf.errors.UnavailableError",
        "kind = tpu.errors.AnyTPUError",
        "hand",
        note="the root of all errors of anytpu",
    ),
    Replacement(("executing_eagerly",), "eager = tf.executing_eagerly()", "eager = True", "call", target="True"),
    Replacement(
        ("TensorShape",),
        "shape = tf.TensorShape([2, 3])",
        "shape = [2, 3]",
        "call",
        target="{dims}",
        parameters={"dims": None},
    ),
    Replacement(
        ("ConfigProto", "OptimizerOptions", "GPUOptions"),
        "config = tf.ConfigProto(allow_soft_placement=True)",
        "config = None",
        "call",
        target="None",
        keywords={"allow_soft_placement": None, "log_device_placement": None, "isolate_session_state": None},
    ),
    Replacement(
        (
            "enable_eager_execution",
            "disable_eager_execution",
            "enable_v2_behavior",
            "disable_v2_behavior",
            "config.run_functions_eagerly",
            "config.experimental_run_functions_eagerly",
            "config.set_soft_device_placement",
        ),
        "tf.compat.v1.disable_eager_execution()",
        "",
        "drop",
        note="nothing: code is eager outside a step and compiled in it",
    ),
)

_WORKERS: dict[str, str | None] = {"workers": None, "use_multiprocessing": None, "max_queue_size": None}
_SAME_IN_BACKEND = _words(
    "abs all any cos exp log max mean min prod relu round shape sigmoid sign sin softmax softplus sqrt "
    "square squeeze std sum tanh transpose var zeros_like ones_like"
)
_NOT_IN_NUMPY = _words("relu sigmoid softmax softplus stop_gradient")
_OTHERWISE_IN_NUMPY = {"cast": "asarray", "convert_to_tensor": "asarray"}

_KERAS = (
    _rename(("keras",), "layer = tf.keras.layers.Dense(1)", "keras", note="import keras, after anytpu"),
    Replacement(
        (),
        "from tensorflow.keras.preprocessing.sequence import pad_sequences",
        "from keras.preprocessing.sequence import pad_sequences",
        "pattern",
    ),
    Replacement(
        ("keras.layers.Embedding",),
        "layer = tf.keras.layers.Embedding(100, 8, input_length=20)",
        "layer = keras.layers.Embedding(100, 8, input_shape=(20,))",
        "rename",
        target="keras.layers.Embedding",
        keywords={"input_length": "input_shape"},
        note="as the first layer of keras.Sequential it makes the shapes of all known",
    ),
    *(
        Replacement(
            (f"keras.Sequential.{name}",),
            f"tensor = model.{name}",
            f"tensor = model.{name}s[0]",
            "call",
            target=f"{{self}}.{name}s[0]",
        )
        for name in ("input", "output")
    ),
    Replacement(
        ("keras.Model.input_shape", "keras.Model.output_shape"),
        "shape = model.output_shape",
        "shape = model.output_shape",
        "same",
    ),
    *(
        Replacement(
            (f"keras.layers.Layer.{name}_shape",),
            f"shape = model.layers[-1].{name}_shape",
            f"shape = keras.tree.map_structure(lambda tensor: tensor.shape, model.layers[-1].{name})",
            "call",
            target=f"keras.tree.map_structure(lambda tensor: tensor.shape, {{self}}.{name})",
            line=f"shape = model.layers[-1].{name}.shape",
        )
        for name in ("input", "output")
    ),
    Replacement(
        ("Variable.name",),
        "names = [variable.name for variable in model.trainable_variables]",
        'names = [(variable.path + ":0") for variable in model.trainable_variables]',
        "call",
        target='({self}.path + ":0")',
        note="a name in Keras 3 is that within the layer, such as kernel",
    ),
    _rename(("keras.layers.CuDNNLSTM",), "layer = tf.keras.layers.CuDNNLSTM(8)", "keras.layers.LSTM"),
    _rename(("keras.layers.CuDNNGRU",), "layer = tf.keras.layers.CuDNNGRU(8)", "keras.layers.GRU"),
    Replacement(
        ("keras.optimizers.legacy", "keras.optimizers"),
        "optimizer = tf.keras.optimizers.legacy.Adam(lr=0.01)",
        "optimizer = keras.optimizers.Adam(learning_rate=0.01)",
        "rename",
        target="keras.optimizers",
        keywords={"lr": "learning_rate"},
    ),
    *(
        Replacement(
            (f"keras.losses.Reduction.{name}", f"losses.Reduction.{name}"),
            f"loss = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.{name})",
            f'loss = keras.losses.MeanSquaredError(reduction="{text}")',
            "rename",
            target=f'"{text}"',
        )
        for name, text in {
            "NONE": "none",
            "SUM": "sum",
            "SUM_OVER_BATCH_SIZE": "sum_over_batch_size",
            "AUTO": "sum_over_batch_size",
        }.items()
    ),
    *(
        Replacement(
            tuple(f"{home}.{name}" for home in ("keras.losses", "keras.metrics") for name in (short, short.upper())),
            f"loss = tf.keras.losses.{short}(y, x)",
            f"loss = keras.losses.{long}(y, x)",
            "rename",
            target=f"keras.losses.{long}",
        )
        for short, long in (
            ("mse", "mean_squared_error"),
            ("mae", "mean_absolute_error"),
            ("mape", "mean_absolute_percentage_error"),
            ("msle", "mean_squared_logarithmic_error"),
            ("kld", "kl_divergence"),
        )
    ),
    *(
        Replacement(
            (f"keras.mixed_precision.experimental.{old}",),
            f"{left}tf.keras.mixed_precision.experimental.{old}({argument})",
            f"{left}keras.mixed_precision.{new}({argument})",
            "rename",
            target=f"keras.mixed_precision.{new}",
            keywords={"loss_scale": None},
        )
        for old, new, left, argument in (
            ("set_policy", "set_global_policy", "", "'float32'"),
            ("Policy", "Policy", "policy = ", "'mixed_bfloat16'"),
            ("global_policy", "global_policy", "policy = ", ""),
        )
    ),
    *(
        Replacement(
            (f"keras.Model.{old}",),
            f"{left}model.{old}(pairs.batch(8), 2, workers=4)",
            f"{left}model.{new}(pairs.batch(8), {steps}=2)",
            "method",
            target=new,
            keywords={"generator": "x", **_WORKERS},
        )
        for old, new, left, steps in (
            ("fit_generator", "fit", "history = ", "steps_per_epoch"),
            ("evaluate_generator", "evaluate", "scores = ", "steps"),
            ("predict_generator", "predict", "guesses = ", "steps"),
        )
    ),
    Replacement(
        ("keras.Model.fit", "keras.Model.evaluate", "keras.Model.predict"),
        "history = model.fit(x, y, nb_epoch=1, use_multiprocessing=True)",
        "history = model.fit(x, y, epochs=1)",
        "same",
        keywords={"nb_epoch": "epochs", **_WORKERS},
        note="threads and processes are options of a keras.utils.PyDataset",
    ),
    Replacement(
        ("keras.Model.predict_proba",),
        "scores = model.predict_proba(x)",
        "scores = model.predict(x)",
        "method",
        target="predict",
    ),
    Replacement(
        ("keras.Model.predict_classes",),
        "classes = model.predict_classes(x)",
        'classes = (lambda scores: scores.argmax(-1) if scores.shape[-1] > 1 else (scores > 0.5).astype("int32"))'
        "(model.predict(x))",
        "call",
        target='(lambda scores: scores.argmax(-1) if scores.shape[-1] > 1 else (scores > 0.5).astype("int32"))'
        "({self}.predict({x}))",
        parameters={"x": None, "batch_size": "None", "verbose": "0"},
        line="model.predict(x).argmax(axis=-1)",
        note="(model.predict(x) > 0.5) for a single output",
    ),
    Replacement(
        ("keras.Model.save", "keras.Model.save_weights", "keras.Model.load_weights"),
        "model.save('my_model', save_format='tf')",
        "model.save('my_model.keras')",
        "pattern",
        keywords={"save_format": None, "include_optimizer": None, "by_name": None},
        note="a model is one file .keras, its weights are one file .weights.h5; both are names in all calls alike",
    ),
    Replacement(
        ("keras.Model.compile",),
        "model.compile('sgd', 'mse', experimental_steps_per_execution=4)",
        "model.compile('sgd', 'mse', steps_per_execution=4)",
        "same",
        keywords={
            "experimental_steps_per_execution": "steps_per_execution",
            "experimental_run_tf_function": None,
            "distribute": None,
        },
    ),
    *(
        Replacement(
            (f"compile.train.{name}Optimizer",),
            f"model.compile(tf.train.{name}Optimizer({arguments}), 'mse')",
            f"model.compile({new}, 'mse')",
            "call",
            target=target,
            parameters=parameters,
            keywords={
                "beta1": "beta_1",
                "beta2": "beta_2",
                "use_nesterov": "nesterov",
                "use_locking": None,
                "name": None,
            },
            note="with keras.optimizers, compile counts the steps; the numbers are those of the old optimizer",
        )
        for name, arguments, new, target, parameters in (
            (
                "Adam",
                "0.01",
                "keras.optimizers.Adam(0.01, epsilon=1e-08)",
                "keras.optimizers.Adam({learning_rate}, epsilon={epsilon})",
                {"learning_rate": "0.001", "epsilon": "1e-08"},
            ),
            (
                "GradientDescent",
                "0.01",
                "keras.optimizers.SGD(0.01)",
                "keras.optimizers.SGD({learning_rate})",
                {"learning_rate": None},
            ),
            (
                "Momentum",
                "0.01, 0.9",
                "keras.optimizers.SGD(0.01, momentum=0.9)",
                "keras.optimizers.SGD({learning_rate}, momentum={momentum})",
                {"learning_rate": None, "momentum": None},
            ),
            (
                "RMSProp",
                "0.01",
                "keras.optimizers.RMSprop(0.01, rho=0.9, momentum=0.0, epsilon=1e-10)",
                "keras.optimizers.RMSprop({learning_rate}, rho={decay}, momentum={momentum}, epsilon={epsilon})",
                {"learning_rate": None, "decay": "0.9", "momentum": "0.0", "epsilon": "1e-10"},
            ),
        )
    ),
    Replacement(
        ("keras.Model.reset_metrics", "keras.Model.make_predict_function"),
        "model.reset_metrics()",
        "model.reset_metrics()",
        "same",
    ),
    Replacement(
        ("keras.Model.reset_states",),
        "model.reset_states()",
        '[layer.reset_state() for layer in model.layers if hasattr(layer, "reset_state")]',
        "call",
        target='[layer.reset_state() for layer in {self}.layers if hasattr(layer, "reset_state")]',
    ),
    Replacement(
        ("keras.Model.add_metric",),
        "model.add_metric(loss, name='loss')",
        "model.compile('sgd', 'mse', metrics=['mae'])",
        "hand",
        note="a metric that a model computes is a layer of its own with a keras.metrics.Mean",
    ),
    *(
        Replacement(
            (f"keras.optimizers.Optimizer.{old}",),
            f"rate = optimizer.{old}",
            f"rate = optimizer.{new}",
            "method",
            target=new,
        )
        for old, new in (("lr", "learning_rate"), ("weights", "variables"))
    ),
    Replacement(
        tuple(f"keras.optimizers.Optimizer.{name}()" for name in ("learning_rate", "lr", "_decayed_lr")),
        "rate = optimizer.learning_rate(optimizer.iterations)",
        "rate = optimizer.learning_rate",
        "call",
        target="{self}.learning_rate",
        parameters={"step": None},
        note="the rate of this step, also of a schedule",
    ),
    Replacement(
        ("keras.optimizers.Optimizer.apply_gradients",),
        "optimizer.apply_gradients(gradients, experimental_aggregate_gradients=True)",
        "optimizer.apply_gradients(gradients)",
        "same",
        keywords={"experimental_aggregate_gradients": None, "name": None},
    ),
    Replacement((), "K.clear_session()", "K.clear_session()", "same", note="with from keras import backend as K"),
    *(
        Replacement(
            (f"keras.backend.{name}",),
            f"result = tf.keras.backend.{name}({arguments})",
            f"result = keras.ops.{new}({arguments})",
            "rename",
            target=f"keras.ops.{new}",
            host="" if new in _NOT_IN_NUMPY else f"np.{_OTHERWISE_IN_NUMPY.get(new, new)}",
            keywords={"name": None},
        )
        for name, new, arguments in (
            *((name, name, "a") for name in _SAME_IN_BACKEND),
            *(
                (old, new, arguments)
                for old, (new, arguments) in {
                    "concatenate": ("concatenate", "[a, a], -1"),
                    "constant": ("convert_to_tensor", "1.0"),
                    "dot": ("matmul", "a, b"),
                    "equal": ("equal", "a, b"),
                    "expand_dims": ("expand_dims", "a, -1"),
                    "greater": ("greater", "a, b"),
                    "less": ("less", "a, b"),
                    "maximum": ("maximum", "a, b"),
                    "minimum": ("minimum", "a, b"),
                    "not_equal": ("not_equal", "a, b"),
                    "pow": ("power", "a, 2"),
                    "arange": ("arange", "3, dtype='int32'"),
                    "argmax": ("argmax", "a, axis=-1"),
                    "argmin": ("argmin", "a, axis=-1"),
                    "cast": ("cast", "a, 'float32'"),
                    "clip": ("clip", "a, 0, 1"),
                    "ndim": ("ndim", "a"),
                    "permute_dimensions": ("transpose", "a, (1, 0)"),
                    "reshape": ("reshape", "a, (1, 4)"),
                    "repeat_elements": ("repeat", "a, 2, 0"),
                    "stack": ("stack", "[a, a]"),
                    "tile": ("tile", "a, (1, 2)"),
                    "zeros": ("zeros", "(2, 2)"),
                    "ones": ("ones", "(2, 2)"),
                    "stop_gradient": ("stop_gradient", "a"),
                }.items()
            ),
        )
    ),
    *_CALLS["keras_backend"],
    Replacement(
        tuple(
            f"keras.backend.{name}"
            for name in _words("get_session learning_phase placeholder set_learning_phase set_session gradients")
        ),
        "session = tf.keras.backend.get_session()",
        "outputs = model(x, training=False)",
        "hand",
        note="Keras 3 has no session: a model is called, and training=True or False says what for",
    ),
    Replacement(
        ("keras.backend.function",),
        "probe = tf.keras.backend.function(model.inputs, model.outputs)",
        "probe = keras.Function(model.inputs, model.outputs)",
        "call",
        target="keras.Function({inputs}, {outputs})",
        parameters={"inputs": None, "outputs": None},
        keywords={"name": None},
    ),
    Replacement(
        ("keras.backend.batch_dot",),
        "c = tf.keras.backend.batch_dot(pictures[0], pictures[1], axes=[2, 2])",
        "c = keras.layers.dot([pictures[0], pictures[1]], axes=[2, 2])",
        "call",
        target="keras.layers.dot([{x}, {y}], axes={axes})",
        parameters={"x": None, "y": None, "axes": None},
    ),
    Replacement(
        ("keras.backend.cast_to_floatx",),
        "rate = tf.keras.backend.cast_to_floatx(0.1)",
        "rate = np.asarray(0.1, keras.config.floatx())",
        "call",
        target="np.asarray({x}, keras.config.floatx())",
        parameters={"x": None},
    ),
    Replacement(
        ("nn.conv1d",),
        "c = tf.nn.conv1d(pictures[0], kernel[0], stride=1, padding='SAME')",
        "c = keras.ops.conv(pictures[0], kernel[0], 1, 'same')",
        "call",
        target="keras.ops.conv({input}, {filters}, {stride}, {padding})",
        parameters={"input": None, "filters": None, "stride": None, "padding": None},
        keywords={"name": None},
    ),
    Replacement(
        ("keras.preprocessing.image.ImageDataGenerator",),
        "images = tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True)",
        f"images = {_IMAGE_GENERATOR}(horizontal_flip=True)",
        "rename",
        target=_IMAGE_GENERATOR,
        note="Keras 3 keeps it for TensorFlow's users; shifts and rotations need scipy",
    ),
    Replacement(
        ("keras.wrappers",),
        "model = tf.keras.wrappers.scikit_learn.KerasClassifier(build)",
        "model = keras.Sequential([keras.layers.Dense(3)])",
        "hand",
        note="the package scikeras wraps Keras models for scikit-learn",
    ),
    *(
        Replacement(
            (f"strings.{name}" if name else "strings",),
            f"word = tf.strings.{name or 'upper'}({arguments})",
            f"word = {new}",
            "hand",
            note="a TPU has no strings: change them with Python, in a function of the data set or before it",
        )
        for name, arguments, new in (
            ("", "path", "path.upper()"),
            ("as_string", "3", "str(3)"),
            ("join", "[path, '.png'], separator='/'", "'/'.join([path, '.png'])"),
            ("length", "path", "len(path)"),
            ("lower", "path", "path.lower()"),
            ("regex_replace", "path, '[0-9]', 'n'", "__import__('re').sub('[0-9]', 'n', path)"),
            ("split", "path, '/'", "path.split('/')"),
            ("strip", "path", "path.strip()"),
            ("substr", "path, 0, 2", "path[0 : 0 + 2]"),
            ("to_number", "'3'", "float('3')"),
        )
    ),
    Replacement(
        ("feature_column",),
        "column = tf.feature_column.numeric_column('x')",
        "inputs = keras.Input((1,), name='x')",
        "hand",
        note="a model has an input for each column: keras.layers.Normalization scales numbers, keras.layers.Embedding "
        "takes the numbers of categories, and keras.layers.concatenate joins them",
    ),
    Replacement(
        ("lookup",),
        "table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(['a', 'b'], [0, 1]), -1)",
        "table = {word: number for number, word in enumerate(['a', 'b'])}",
        "hand",
        note="in a function of the data set, table.get(word, -1) is table.lookup(word); the words of records are "
        "bytes, such as b'a'",
    ),
    Replacement(
        ("TensorArray",),
        "parts = tf.TensorArray(tf.float32, size=3)",
        "parts = [a, a]",
        "hand",
        note="append to a list, then keras.ops.stack(parts); in keras.ops.while_loop it is an array of all steps, and "
        "keras.ops.slice_update(parts, (step, 0), value[None]) sets one",
    ),
    Replacement(
        ("slice",),
        "c = tf.slice(a, [0, 1], [1, -1])",
        "c = a[0:1, 1:]",
        "hand",
        note="Python's slices: from the begin to the begin plus the size; a size of -1 has no end",
    ),
    Replacement(
        ("debugging",),
        "tf.debugging.assert_shapes([(a, b.shape)])",
        "assert a.shape == b.shape",
        "hand",
        note="in a step only shapes and types can be tested; values behind it: assert np.isfinite(a).all(), "
        "np.testing.assert_allclose(a, b)",
    ),
    _rename(("nest",), "c = tf.nest.map_structure(double, [a, b])", "keras.tree"),
    Replacement(
        ("repeat",),
        "c = tf.repeat(a, repeats=[2], axis=0)",
        "c = keras.ops.repeat(a, np.asarray([2]), axis=0)",
        "call",
        target="keras.ops.repeat({input}, np.asarray({repeats}), axis={axis})",
        host="np.repeat({input}, {repeats}, axis={axis})",
        parameters={"input": None, "repeats": None, "axis": "None"},
        keywords={"name": None},
    ),
    Replacement(
        ("nn.in_top_k(predictions)",),
        "is_right = tf.nn.in_top_k(predictions=a, targets=classes, k=2)",
        "is_right = keras.ops.in_top_k(classes, a, 2)",
        "call",
        target="keras.ops.in_top_k({targets}, {predictions}, {k})",
        parameters={"predictions": None, "targets": None, "k": None},
        keywords={"name": None},
    ),
    Replacement(
        ("nn.in_top_k",),
        "is_right = tf.nn.in_top_k(a, classes, 2)",
        "is_right = keras.ops.in_top_k(classes, a, 2)",
        "hand",
        note="TensorFlow 1 takes the logits first, Keras the labels",
    ),
    Replacement(
        ("keras.preprocessing.text",),
        "tokenizer = tf.keras.preprocessing.text.Tokenizer()",
        "numbers = {word: number for number, word in enumerate(['[PAD]', '[UNK]', 'a', 'b'])}",
        "hand",
        note="Keras 3 has no Tokenizer: a dictionary numbers the words, and keras.utils.pad_sequences fills them up",
    ),
    Replacement(
        ("keras.callbacks.TensorBoard",),
        "callback = tf.keras.callbacks.TensorBoard('logs', histogram_freq=1)",
        "callback = keras.callbacks.CSVLogger('log.csv')",
        "call",
        target="keras.callbacks.CSVLogger('log.csv')",
        parameters=dict.fromkeys(
            _words("log_dir histogram_freq batch_size write_graph write_grads write_images update_freq profile_batch"),
            "None",
        ),
        note="Keras's TensorBoard writes with TensorFlow",
    ),
    Replacement(
        tuple(f"keras.layers.{name}" for name in ("TextVectorization", "StringLookup", "IntegerLookup", "Hashing")),
        "layer = tf.keras.layers.StringLookup(vocabulary=['a', 'b'])",
        "numbers = {word: number for number, word in enumerate(['[UNK]', 'a', 'b'])}",
        "hand",
        note="this layer computes with TensorFlow: look the words up in a function of the data set",
    ),
    Replacement(
        (
            "keras.utils.image_dataset_from_directory",
            "keras.preprocessing.image_dataset_from_directory",
            "keras.utils.text_dataset_from_directory",
            "keras.preprocessing.text_dataset_from_directory",
        ),
        "images = tf.keras.utils.image_dataset_from_directory('images')",
        "images = tpu.pipeline.Dataset.list_files(str(folder) + '/*.txt')",
        "hand",
        note="this function makes a tf.data.Dataset: list the files, then map a function that reads and decodes one",
    ),
    Replacement(
        (),
        "class Scale(tf.keras.layers.Layer):\n    def build(self, shape):\n"
        "        self.add_weight('scale', shape[-1:])",
        "class Scale(keras.layers.Layer):\n    def build(self, shape):\n"
        "        self.add_weight(name='scale', shape=shape[-1:])",
        "pattern",
        note="Keras 3 has the shape first, and wants the name as a keyword",
    ),
    Replacement(
        ("keras.utils.multi_gpu_model", "keras.estimator"),
        "tf.keras.utils.multi_gpu_model(model, gpus=2)",
        "strategy = tpu.connect()",
        "hand",
        note="compile the model in strategy.scope()",
    ),
    Replacement(
        (),
        "layer = tf.keras.layers.experimental.preprocessing.Rescaling(0.5)",
        "layer = keras.layers.Rescaling(0.5)",
        "pattern",
        note="a name of Keras 2 is found in its public home in Keras 3",
    ),
    *(
        Replacement(
            (old,),
            f"part = tf.{old}.{name}",
            f"part = keras.{old}.{name}",
            "rename",
            target=f"keras.{old}",
            keywords=keywords,
        )
        for old, name, keywords in (
            ("losses", "MeanSquaredError()", {}),
            ("metrics", "Mean()", {}),
            ("optimizers", "Adam()", {"lr": "learning_rate"}),
            ("regularizers", "L2(0.1)", {}),
            ("initializers", "Zeros()", {}),
        )
    ),
)

_IN_NUMPY = _words(
    "abs add ceil cos cumsum cumprod divide einsum equal exp expand_dims expm1 eye floor floor_divide greater "
    "greater_equal less less_equal linspace log log1p logical_and logical_not logical_or logical_xor matmul maximum "
    "minimum mod multiply negative not_equal ones ones_like power reshape roll round shape sign sin size sort "
    "sqrt square squeeze stack subtract tanh "
    "tensordot tile transpose where zeros zeros_like meshgrid outer searchsorted count_nonzero broadcast_to reciprocal "
    "isnan isinf isfinite sinh cosh tan arctan2"
)
_ONLY_IN_KERAS = _words(
    "cond convert_to_tensor erf norm rsqrt sigmoid stop_gradient top_k unstack while_loop in_top_k segment_sum "
    "segment_max logsumexp trace inv det cholesky divide_no_nan erfinv"
)
_ACTIVATIONS = _words(
    "relu relu6 elu selu softmax log_softmax sigmoid tanh softplus softsign leaky_relu silu moments top_k"
)
_DTYPES = _words("float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool")
_NAMED_OTHERWISE = {
    "concat": ("concatenate", "concatenate", "[a, a], 0"),
    "constant": ("convert_to_tensor", "asarray", "[1.0, 2.0]"),
    "cast": ("cast", "asarray", "a, 'float32'"),
    "pow": ("power", "power", "a, 2"),
    "div": ("divide", "divide", "a, b"),
    "truediv": ("divide", "divide", "a, b"),
    "floordiv": ("floor_divide", "floor_divide", "a, b"),
    "floormod": ("mod", "mod", "a, b"),
    "range": ("arange", "arange", "3"),
    "rank": ("ndim", "ndim", "a"),
    "reverse": ("flip", "flip", "a, [0]"),
    "is_nan": ("isnan", "isnan", "a"),
    "is_finite": ("isfinite", "isfinite", "a"),
    "is_inf": ("isinf", "isinf", "a"),
    "rint": ("round", "round", "a"),
    "atan2": ("arctan2", "arctan2", "a, b"),
    "reduce_all": ("all", "all", "a > 0"),
    "reduce_any": ("any", "any", "a > 0"),
    "reduce_max": ("max", "max", "a"),
    "reduce_mean": ("mean", "mean", "a, axis=0"),
    "reduce_min": ("min", "min", "a"),
    "reduce_prod": ("prod", "prod", "a"),
    "reduce_std": ("std", "std", "a"),
    "reduce_sum": ("sum", "sum", "a, axis=-1"),
    "reduce_variance": ("var", "var", "a"),
    "reduce_logsumexp": ("logsumexp", "", "a"),
}
_KEYWORDS = {
    "keep_dims": "keepdims",
    "reduction_indices": "axis",
    "perm": "axes",
    "name": None,
    "input_tensor": "x",
    "tensor": "x",
    "input": "x",
}


def _tensors(names: tuple[str, ...], *prefixes: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names for prefix in prefixes)


_TENSORS = (
    Replacement(
        _tensors(_IN_NUMPY, "", "math.", "linalg.", "manip."),
        "c = tf.matmul(a, b)",
        "c = keras.ops.matmul(a, b)",
        "rename",
        target="keras.ops.*",
        host="np.*",
        keywords=_KEYWORDS,
        note="in a function of a data set, which runs on the host, it is NumPy's: np.matmul(a, b)",
    ),
    Replacement(
        _tensors(_ONLY_IN_KERAS, "", "math.", "linalg."),
        "c = tf.stop_gradient(a)",
        "c = keras.ops.stop_gradient(a)",
        "rename",
        target="keras.ops.*",
        keywords=_KEYWORDS,
    ),
    Replacement(
        _tensors(_ACTIVATIONS, "nn.", "math."),
        "c = tf.nn.relu(a)",
        "c = keras.ops.relu(a)",
        "rename",
        target="keras.ops.*",
        keywords={"name": None, "logits": "x", "features": "x", "alpha": "negative_slope"},
    ),
    _rename(("nn.gelu",), "c = tf.nn.gelu(a)", "keras.activations.gelu", keywords={"features": "x", "name": None}),
    Replacement(("nn.swish",), "c = tf.nn.swish(a)", "c = keras.ops.silu(a)", "rename", target="keras.ops.silu"),
    *(
        Replacement(
            (name, f"math.{name}", f"dtypes.{name}"),
            f"c = tf.{name}({arguments})",
            f"c = keras.ops.{ours}({arguments})",
            "rename",
            target=f"keras.ops.{ours}",
            host=f"np.{numpy}" if numpy else "",
            keywords=_KEYWORDS | ({"value": "x"} if name == "constant" else {}),
        )
        for name, (ours, numpy, arguments) in _NAMED_OTHERWISE.items()
    ),
    *_CALLS["tensors"],
    *(
        Replacement(
            (f"metrics.{old}",),
            f"metric = tf.metrics.{old}(labels, predictions)",
            f"metric = keras.metrics.{new}()\nmetric.update_state(targets, targets)",
            "hand",
            line=f"metric = keras.metrics.{new}(); metric.update_state(targets, targets)",
            note="and return the metric; eval_metrics calls its function once with all rows",
        )
        for old, new in (("precision", "Precision"), ("recall", "Recall"), ("auc", "AUC"))
    ),
    *(
        Replacement(
            (*names, *(f"initializers.{name}" for name in names if "." not in name)),
            f"start = tf.{names[0]}({arguments})",
            f"start = keras.initializers.{new}({arguments})",
            "rename",
            target=f"keras.initializers.{new}",
            keywords={"dtype": None},
        )
        for names, new, arguments in (
            (("zeros_initializer",), "Zeros", ""),
            (("ones_initializer",), "Ones", ""),
            (("constant_initializer",), "Constant", "0.1"),
            (("random_normal_initializer",), "RandomNormal", "0.0, 0.02"),
            (("random_uniform_initializer",), "RandomUniform", "-0.1, 0.1"),
            (("truncated_normal_initializer",), "TruncatedNormal", "stddev=0.02"),
            (("variance_scaling_initializer",), "VarianceScaling", "scale=2.0"),
            (("glorot_uniform_initializer", "contrib.layers.xavier_initializer"), "GlorotUniform", ""),
            (("contrib.layers.variance_scaling_initializer",), "HeNormal", ""),
        )
    ),
    *(
        Replacement(
            (old,),
            f"part = tf.{old}(0.01)",
            f"part = keras.regularizers.{new}(0.01)",
            "rename",
            target=f"keras.regularizers.{new}",
        )
        for old, new in (("contrib.layers.l2_regularizer", "L2"), ("contrib.layers.l1_regularizer", "L1"))
    ),
    *(
        Replacement(
            (name, f"math.{name}"),
            f"c = tf.{name}(a, 1)",
            f"c = keras.ops.{name}(a, axis=1)",
            "call",
            target=f"keras.ops.{name}({{input}}, axis={{axis}})",
            host=f"np.{name}({{input}}, axis={{axis}})",
            parameters={"input": None, "axis": "0"},
            keywords={"output_type": None, "name": None},
        )
        for name in ("argmax", "argmin")
    ),
    Replacement(
        ("one_hot",),
        "c = tf.one_hot([0, 2], depth=3)",
        "c = keras.ops.one_hot([0, 2], 3)",
        "call",
        target="keras.ops.one_hot({indices}, {depth})",
        host='np.equal(np.expand_dims({indices}, -1), np.arange({depth})).astype("float32")',
        parameters={"indices": None, "depth": None},
        keywords={"dtype": "dtype", "axis": "axis", "name": None},
    ),
    Replacement(
        ("gather",),
        "c = tf.gather(a, [0, 1])",
        "c = keras.ops.take(a, [0, 1], axis=0)",
        "call",
        target="keras.ops.take({params}, {indices}, axis={axis})",
        host="np.take({params}, {indices}, axis={axis})",
        parameters={"params": None, "indices": None, "validate_indices": "None", "name": "None", "axis": "0"},
    ),
    Replacement(
        ("gather(batch_dims)",),
        "c = tf.gather(a, [[1], [0]], axis=1, batch_dims=1)",
        "c = keras.ops.take_along_axis(a, [[1], [0]], axis=1)",
        "hand",
        note="where a and the indices have the same number of axes; first add axes of length 1 to them otherwise",
    ),
    Replacement(
        ("clip_by_value",),
        "c = tf.clip_by_value(a, 0.0, 1.0)",
        "c = keras.ops.clip(a, 0.0, 1.0)",
        "call",
        target="keras.ops.clip({t}, {clip_value_min}, {clip_value_max})",
        host="np.clip({t}, {clip_value_min}, {clip_value_max})",
        parameters={"t": None, "clip_value_min": None, "clip_value_max": None},
        keywords={"name": None},
    ),
    Replacement(
        _DTYPES,
        "c = tf.cast(a, tf.float32)",
        'c = keras.ops.cast(a, "float32")',
        "rename",
        target='"*"',
        note="a type is its name",
    ),
    *(
        Replacement(
            (f"nn.{old}", f"nn.{old}_v2"),
            f"loss = tf.nn.{old}(labels=targets, logits=a)",
            f"loss = keras.ops.{new}(targets, a, from_logits=True)",
            "call",
            target=f"keras.ops.{new}({{labels}}, {{logits}}, from_logits=True)",
            parameters={"labels": None, "logits": None},
            keywords={"name": None},
        )
        for old, new in (
            ("softmax_cross_entropy_with_logits", "categorical_crossentropy"),
            ("sigmoid_cross_entropy_with_logits", "binary_crossentropy"),
        )
    ),
    Replacement(
        ("nn.sparse_softmax_cross_entropy_with_logits",),
        "loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=a)",
        "loss = keras.ops.sparse_categorical_crossentropy(classes, a, from_logits=True)",
        "call",
        target="keras.ops.sparse_categorical_crossentropy({labels}, {logits}, from_logits=True)",
        parameters={"labels": None, "logits": None},
        keywords={"name": None},
    ),
    Replacement(
        ("losses.sparse_softmax_cross_entropy",),
        "loss = tf.losses.sparse_softmax_cross_entropy(classes, a)",
        "loss = keras.ops.mean(keras.ops.sparse_categorical_crossentropy(classes, a, from_logits=True))",
        "call",
        target="keras.ops.mean(keras.ops.sparse_categorical_crossentropy({labels}, {logits}, from_logits=True))",
        parameters={"labels": None, "logits": None},
    ),
    Replacement(
        ("Variable",),
        "variable = tf.Variable(initial_value=a, trainable=False)",
        "variable = keras.Variable(initializer=a, trainable=False)",
        "rename",
        target="keras.Variable",
        keywords={"initial_value": "initializer"},
    ),
    *(
        Replacement(
            (f"VariableAggregation.{name.upper()}",),
            f"variable = tf.Variable(a, aggregation=tf.VariableAggregation.{name.upper()})",
            f'variable = keras.Variable(a, aggregation="{name}")',
            "rename",
            target=f'"{name}"',
        )
        for name in ("none", "sum", "mean", "only_first_replica")
    ),
    *(
        Replacement(
            (f"random.{name}", f"random_{name}") if name != "truncated_normal" else (f"random.{name}", name),
            f"c = tf.random.{name}([2, 3], {arguments})",
            f"c = keras.random.{name}([2, 3], {arguments})",
            "rename",
            target=f"keras.random.{name}",
            host=host,
            parameters=parameters,
            keywords={"name": None, "seed": None},
            note="in a step it draws from a keras.random.SeedGenerator, in a function of a data set from its generator",
        )
        for name, arguments, host, parameters in (
            (
                "normal",
                "stddev=0.1",
                "np.float32({rng}.normal({mean}, {stddev}, {shape}))",
                {"shape": None, "mean": "0.0", "stddev": "1.0", "dtype": "None", "seed": "None", "name": "None"},
            ),
            (
                "uniform",
                "minval=-1.0",
                "np.float32({rng}.uniform({minval}, {maxval}, {shape}))",
                {"shape": None, "minval": "0", "maxval": "1", "dtype": "None", "seed": "None", "name": "None"},
            ),
            (
                "truncated_normal",
                "stddev=0.1",
                "np.float32(np.clip({rng}.normal({mean}, {stddev}, {shape}), {mean} - 2 * {stddev}, "
                "{mean} + 2 * {stddev}))",
                {"shape": None, "mean": "0.0", "stddev": "1.0", "dtype": "None", "seed": "None", "name": "None"},
            ),
        )
    ),
    Replacement(
        ("random.uniform(integers)", "random_uniform(integers)"),
        "c = tf.random.uniform([2, 3], 0, 9, tf.int32)",
        'c = keras.random.randint([2, 3], 0, 9, "int32")',
        "call",
        target="keras.random.randint({shape}, {minval}, {maxval}, {dtype})",
        host="{rng}.integers({minval}, {maxval}, {shape})",
        parameters={"shape": None, "minval": "0", "maxval": None, "dtype": None, "seed": "None", "name": "None"},
    ),
    Replacement(
        ("random.shuffle", "random_shuffle"),
        "c = tf.random.shuffle(a)",
        "c = keras.random.shuffle(a)",
        "rename",
        target="keras.random.shuffle",
        host="{rng}.permutation({value})",
        parameters={"value": None, "seed": "None", "name": "None"},
        keywords={"seed": None, "name": None},
    ),
    Replacement(
        ("random.shuffle(files)", "random_shuffle(files)"),
        "names = tf.random.shuffle(os.listdir('.'))",
        "names = np.random.permutation(os.listdir('.'))",
        "call",
        target="np.random.permutation({value})",
        parameters={"value": None, "seed": "None", "name": "None"},
        note="a tensor holds no texts",
    ),
    Replacement(
        ("random.categorical", "multinomial", "random.multinomial"),
        "c = tf.random.categorical(a, 1)",
        "c = keras.random.categorical(a, 1)",
        "rename",
        target="keras.random.categorical",
        keywords={"seed": None, "name": None},
    ),
    _rename(
        ("random.set_seed", "set_random_seed", "random.set_random_seed"),
        "tf.random.set_seed(1)",
        "keras.utils.set_random_seed",
    ),
)

_RANDOM_IMAGES = (
    (
        "random_flip_left_right",
        "image",
        "tpu.pipeline.random_flip(image, rng)",
        "tpu.pipeline.random_flip({image}, {rng})",
        {"image": None, "seed": "None"},
    ),
    (
        "random_flip_up_down",
        "image",
        "np.flip(image, -3) if rng.random() < 0.5 else image",
        "(np.flip({image}, -3) if {rng}.random() < 0.5 else {image})",
        {"image": None, "seed": "None"},
    ),
    (
        "random_brightness",
        "image, 0.2",
        "tpu.pipeline.random_brightness(image, rng, 0.2)",
        "tpu.pipeline.random_brightness({image}, {rng}, {max_delta})",
        {"image": None, "max_delta": None, "seed": "None"},
    ),
    (
        "random_contrast",
        "image, 0.8, 1.2",
        "tpu.pipeline.random_contrast(image, rng, 0.8, 1.2)",
        "tpu.pipeline.random_contrast({image}, {rng}, {lower}, {upper})",
        {"image": None, "lower": None, "upper": None, "seed": "None"},
    ),
    (
        "random_saturation",
        "image, 0.8, 1.2",
        "tpu.pipeline.random_saturation(image, rng, 0.8, 1.2)",
        "tpu.pipeline.random_saturation({image}, {rng}, {lower}, {upper})",
        {"image": None, "lower": None, "upper": None, "seed": "None"},
    ),
    (
        "random_hue",
        "image, 0.1",
        "tpu.pipeline.random_hue(image, rng, 0.1)",
        "tpu.pipeline.random_hue({image}, {rng}, {max_delta})",
        {"image": None, "max_delta": None, "seed": "None"},
    ),
    (
        "random_crop",
        "image, [8, 8, 3]",
        "tpu.pipeline.random_crop(image, rng, [8, 8, 3], padding=0)",
        "tpu.pipeline.random_crop({value}, {rng}, {size}, padding=0)",
        {"value": None, "size": None, "seed": "None"},
    ),
)
_FILES = (
    (
        ("GFile", "Open", "FastGFile"),
        "file = ",
        "new_file, 'wb'",
        "fsspec.open(new_file, 'wb').open()",
        "fsspec.open({name}, {mode}).open()",
        {"name": None, "mode": '"r"'},
        "fsspec opens gs://, s3:// and https:// too",
    ),
    (
        ("glob", "Glob"),
        "names = ",
        "path",
        "[file.full_name for file in fsspec.open_files(path)]",
        "[file.full_name for file in fsspec.open_files({pattern})]",
        {"pattern": None},
        "a list of patterns will do",
    ),
    *(
        (
            names,
            left,
            sample,
            f"fsspec.url_to_fs({sample})[0].{method}({sample}{more})",
            f"fsspec.url_to_fs({{path}})[0].{method}({{path}}{more})",
            {"path": None},
            "",
        )
        for names, left, sample, method, more in (
            (("exists", "Exists"), "is_there = ", "path", "exists", ""),
            (("isdir", "IsDirectory"), "is_folder = ", "folder", "isdir", ""),
            (("makedirs", "MakeDirs", "mkdir", "MkDir"), "", "new_folder", "makedirs", ", exist_ok=True"),
            (("remove", "Remove"), "", "old_file", "rm_file", ""),
            (("rmtree", "DeleteRecursively"), "", "old_folder", "rm", ", recursive=True"),
        )
    ),
    (
        ("listdir", "ListDirectory"),
        "names = ",
        "folder",
        "[name.rpartition('/')[2] for name in fsspec.url_to_fs(folder)[0].ls(folder, detail=False)]",
        "[name.rpartition('/')[2] for name in fsspec.url_to_fs({path})[0].ls({path}, detail=False)]",
        {"path": None},
        "",
    ),
)

_INPUT = (
    _rename(
        ("data.Dataset.from_tensor_slices",),
        "dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).repeat().batch(16, drop_remainder=True)",
        "tpu.pipeline.Dataset.from_tensor_slices",
        note="map, filter, batch, shuffle, repeat, shard and prefetch are called the same",
        also=("data",),
    ),
    Replacement(
        ("data.Dataset",),
        "dataset = tf.data.Dataset.from_source([1, 2, 3])",
        "dataset = tpu.pipeline.Dataset.from_source([1, 2, 3])",
        "rename",
        target="tpu.pipeline.Dataset",
        note="its methods keep their names; one that it lacks is listed",
    ),
    *(
        Replacement(
            (f"data.Dataset.{name}",),
            f"dataset = pairs.{name}({old}={argument})",
            f"dataset = pairs.{name}({new}={argument})",
            "same",
            keywords={old: new},
        )
        for name, old, new, argument in (
            ("shuffle", "buffer_size", "buffer", "100"),
            ("batch", "batch_size", "rows", "16"),
            ("prefetch", "buffer_size", "buffer", "2"),
            ("map", "map_func", "function", "double"),
        )
    ),
    Replacement(
        ("data.Dataset.shard",),
        "dataset = pairs.shard(4, 1)",
        "dataset = pairs.shard(1, 4)",
        "call",
        target="{self}.shard({index}, {num_shards})",
        parameters={"num_shards": None, "index": None},
        note="the index comes first",
    ),
    Replacement(
        ("data.Dataset.with_options",),
        "options = tf.data.Options()\noptions.experimental_deterministic = False\n"
        "dataset = pairs.with_options(options).batch(16)",
        "dataset = pairs.batch(16)",
        "call",
        target="{self}",
        parameters={"options": None},
        line="",
        note="nothing: the options of tf.data tune its threads",
    ),
    Replacement(
        ("data.Dataset.as_numpy_iterator", "data.Dataset.make_one_shot_iterator"),
        "first = next(pairs.as_numpy_iterator())",
        "first = next(iter(pairs))",
        "call",
        target="iter({self})",
    ),
    Replacement(
        ("data.Dataset.make_initializable_iterator",),
        "iterator = pairs.make_initializable_iterator()",
        "batch = next(iter(pairs.batch(2)))",
        "hand",
        note="an input_fn returns the data set itself; a loop takes next(iter(dataset)) for each step",
    ),
    *(
        Replacement(
            (f"data.experimental.{old}", f"contrib.data.{old}"),
            f"dataset = pairs.apply(tf.data.experimental.{old}({arguments}))",
            f"dataset = pairs{new}",
            "pattern",
            target=f"{{self}}{target}",
            parameters=parameters,
            line=f"dataset = pairs{new}",
        )
        for old, arguments, new, target, parameters in (
            (
                "map_and_batch",
                "double, 16",
                ".map(double).batch(16, drop_remainder=False)",
                ".map({map_func}).batch({batch_size}, drop_remainder={drop_remainder})",
                {
                    "map_func": None,
                    "batch_size": None,
                    "num_parallel_batches": "None",
                    "drop_remainder": "False",
                    "num_parallel_calls": "None",
                },
            ),
            (
                "shuffle_and_repeat",
                "100",
                ".shuffle(100).repeat(None)",
                ".shuffle({buffer_size}).repeat({count})",
                {"buffer_size": None, "count": "None", "seed": "None"},
            ),
            (
                "batch_and_drop_remainder",
                "16",
                ".batch(16, drop_remainder=True)",
                ".batch({batch_size}, drop_remainder=True)",
                {"batch_size": None},
            ),
        )
    ),
    Replacement(
        ("data.experimental.parallel_interleave", "contrib.data.parallel_interleave"),
        "dataset = files.apply(tf.data.experimental.parallel_interleave(read, cycle_length=8))",
        "dataset = files.interleave(read, cycle_length=8)",
        "pattern",
        target="{self}.interleave({map_func}, cycle_length={cycle_length})",
        parameters={
            "map_func": None,
            "cycle_length": None,
            "block_length": "1",
            "sloppy": "False",
            "buffer_output_elements": "None",
            "prefetch_input_elements": "None",
        },
    ),
    Replacement(
        ("data.experimental.cardinality",),
        "count = tf.data.experimental.cardinality(pairs)",
        "count = len(pairs)",
        "call",
        target="len({dataset})",
        parameters={"dataset": None},
    ),
    Replacement(
        ("data.Dataset.from_generator",),
        "dataset = tf.data.Dataset.from_generator(rows, output_types=tf.float32)",
        'dataset = tpu.pipeline.Dataset.from_generator(rows).map(lambda row: np.asarray(row, "float32"))',
        "rename",
        target="tpu.pipeline.Dataset.from_generator",
        keywords={"output_types": None, "output_shapes": None, "output_signature": None},
    ),
    Replacement(
        ("data.AUTOTUNE", "data.experimental.AUTOTUNE", "contrib.data.AUTOTUNE"),
        "dataset = dataset.map(double, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)",
        "dataset = dataset.map(double).prefetch(None)",
        "rename",
        target="None",
        note="reading ahead in threads is what happens anyway",
    ),
    Replacement(
        ("data.TFRecordDataset",),
        "dataset = tf.data.TFRecordDataset(record_files)",
        "dataset = tpu.pipeline.Dataset.from_source(tpu.pipeline.records(record_files))",
        "call",
        target="tpu.pipeline.Dataset.from_source(tpu.pipeline.records({filenames}))",
        parameters={"filenames": None},
        keywords={"num_parallel_reads": None, "buffer_size": None},
    ),
    Replacement(
        ("data.TFRecordDataset(compression_type)",),
        "dataset = tf.data.TFRecordDataset(zipped_files, compression_type='GZIP')",
        "dataset = tpu.pipeline.Dataset.from_source(tpu.pipeline.records(zipped_files, compression='gzip'))",
        "call",
        target="tpu.pipeline.Dataset.from_source(tpu.pipeline.records({filenames}, compression={compression_type}))",
        parameters={"filenames": None, "compression_type": None},
        keywords={"num_parallel_reads": None, "buffer_size": None},
    ),
    Replacement(
        ("data.FixedLengthRecordDataset",),
        "dataset = tf.data.FixedLengthRecordDataset(fixed_files, 4)",
        "dataset = tpu.pipeline.Dataset.from_source(tpu.pipeline.fixed_records(fixed_files, 4))",
        "call",
        target="tpu.pipeline.Dataset.from_source(tpu.pipeline.fixed_records({filenames}, {record_bytes}))",
        parameters={"filenames": None, "record_bytes": None},
        keywords={"buffer_size": None, "num_parallel_reads": None},
    ),
    Replacement(
        ("data.TextLineDataset",),
        "dataset = tf.data.TextLineDataset(text_files)",
        "dataset = tpu.pipeline.Dataset.from_source(tpu.pipeline.lines(text_files))",
        "call",
        target="tpu.pipeline.Dataset.from_source(tpu.pipeline.lines({filenames}))",
        parameters={"filenames": None},
        keywords={"num_parallel_reads": None, "buffer_size": None},
    ),
    Replacement(
        (),
        "def scale(image, label):\n    return image / 255, label\ndataset = pairs.map(scale)",
        "def scale(image, label):\n    return image / 255, label\ndataset = pairs.map(lambda row: scale(*row))",
        "pattern",
        note="a function gets one element, a tuple when that is what the rows are",
    ),
    Replacement(
        ("io.FixedLenFeature", "FixedLenFeature"),
        "features = {'image': tf.io.FixedLenFeature([], tf.string), 'label': tf.io.FixedLenFeature([], tf.int64)}",
        "features = {'image': tpu.pipeline.FixedLenFeature([], bytes), "
        "'label': tpu.pipeline.FixedLenFeature([], \"int64\")}",
        "rename",
        target="tpu.pipeline.FixedLenFeature",
    ),
    *(
        Replacement(
            (f"train.{kind}List",),
            f"values = tf.train.{kind}List(value=[1])",
            f"values = {new.format(value='[1]')}",
            "call",
            target=new,
            parameters={"value": None},
        )
        for kind, new in (
            ("Int64", "{value}"),
            ("Bytes", "{value}"),
            ("Float", "np.asarray({value}, 'float32')"),
        )
    ),
    *(
        Replacement(
            (f"train.Feature({kind}_list)",),
            f"feature = tf.train.Feature({kind}_list=classes)",
            "feature = classes",
            "call",
            target=f"{{{kind}_list}}",
            parameters={f"{kind}_list": None},
        )
        for kind in ("int64", "bytes", "float")
    ),
    Replacement(
        ("train.Features",),
        "features = tf.train.Features(feature={'label': classes})",
        "features = {'label': classes}",
        "call",
        target="{feature}",
        parameters={"feature": None},
    ),
    Replacement(
        ("train.Example",),
        "record = tf.train.Example(features=tf.train.Features(feature={'label': classes})).SerializeToString()",
        "record = tpu.pipeline.encode_example({'label': classes})",
        "call",
        target="tpu.pipeline.encode_example({features})",
        parameters={"features": None},
    ),
    Replacement(
        (".SerializeToString",),
        "record = tf.train.Example(features=tf.train.Features(feature={'label': classes})).SerializeToString()",
        "record = tpu.pipeline.encode_example({'label': classes})",
        "call",
        target="{self}",
        parameters={},
        note="encode_example returns the bytes",
    ),
    Replacement(
        ("io.TFRecordWriter", "python_io.TFRecordWriter"),
        "writer = tf.io.TFRecordWriter(new_file)",
        "writer = tpu.pipeline.RecordWriter(new_file)",
        "call",
        target="tpu.pipeline.RecordWriter({path})",
        parameters={"path": None},
    ),
    Replacement(
        ("io.TFRecordOptions", "python_io.TFRecordOptions"),
        "options = tf.io.TFRecordOptions(compression_type='GZIP')",
        "options = 'gzip'",
        "call",
        target="{compression_type}",
        parameters={"compression_type": None},
        note="the second argument of RecordWriter",
    ),
    Replacement(
        ("ensure_shape",),
        "c = tf.ensure_shape(a, [2, 3])",
        "c = a",
        "call",
        target="{x}",
        parameters={"x": None, "shape": None, "name": "None"},
        note="an array has its shape",
    ),
    Replacement(
        ("keras.backend.ctc_decode",),
        "c = tf.keras.backend.ctc_decode(probabilities, [4, 4])",
        "words, scores = keras.ops.ctc_decode(np.log(probabilities), [4, 4], mask_index=probabilities.shape[-1] - 1)",
        "hand",
        note="words[0] has the labels of each row, and -1 behind them",
    ),
    Replacement(
        ("keras.layers.experimental.SyncBatchNormalization",),
        "c = tf.keras.layers.experimental.SyncBatchNormalization()(pictures)",
        "c = keras.layers.BatchNormalization()(pictures)",
        "hand",
        note="in fit its statistics are those of the whole batch, in strategy.run those of a core's rows",
    ),
    Replacement(
        ("signal.stft",),
        "c = tf.signal.stft(wave, 128, 64)",
        "real, imaginary = keras.ops.stft(wave, 128, 64, 128, center=False)",
        "hand",
        note="the absolute value is keras.ops.sqrt(real**2 + imaginary**2); the window is TensorFlow's",
    ),
    _rename(("string",), "kind = tf.string", "bytes"),
    Replacement(
        ("io.VarLenFeature", "VarLenFeature"),
        "features = {'words': tf.io.VarLenFeature(tf.int64)}",
        "features = {'words': tpu.pipeline.VarLenFeature(\"int64\")}",
        "rename",
        target="tpu.pipeline.VarLenFeature",
    ),
    _rename(
        ("io.parse_single_example", "parse_single_example"),
        "row = tf.io.parse_single_example(record, features)",
        "tpu.pipeline.parse_example",
    ),
    _rename(
        ("io.parse_example", "parse_example"),
        "rows = tf.io.parse_example([record, record], features)",
        "tpu.pipeline.parse_examples",
    ),
    _rename(
        ("image.decode_jpeg", "image.decode_png", "image.decode_image", "io.decode_jpeg", "io.decode_png"),
        "image = tf.image.decode_jpeg(content, channels=3)",
        "tpu.pipeline.decode_image",
    ),
    *(
        Replacement(
            (f"io.{name}", f"image.{name}"),
            f"content = tf.io.{name}(image)",
            f"content = tpu.pipeline.{name}(image)",
            "call",
            target=f"tpu.pipeline.{name}({{image}})",
            parameters={"image": None},
            keywords=keywords,
        )
        for name, keywords in (("encode_jpeg", {"quality": "quality", "name": None}), ("encode_png", {"name": None}))
    ),
    Replacement(
        ("sparse.to_dense", "sparse_tensor_to_dense"),
        "words = tf.sparse.to_dense(words)",
        "words = words",
        "call",
        target="{sp_input}",
        parameters={"sp_input": None},
        keywords={"name": None},
        note="parse_example makes arrays of features of any length",
    ),
    Replacement(
        ("image.resize_with_crop_or_pad", "image.resize_image_with_crop_or_pad"),
        "image = tf.image.resize_with_crop_or_pad(image, 36, 36)",
        "image = np.pad(image, [(2, 2), (2, 2), (0, 0)])",
        "hand",
        note="before a random crop, tpu.pipeline.random_crop(image, rng, [32, 32, 3], padding=2) does both; the middle "
        "of an image is image[top:-top, left:-left]",
    ),
    *(
        Replacement(
            (f"image.resize({keywords})" if keywords else "image.resize",),
            f"image = tf.image.resize(image, [8, 8]{old})",
            f"image = keras.ops.image.resize({operand.format(images='image')}, [8, 8]{new}, antialias={antialias[0]})",
            "call",
            target=f"keras.ops.image.resize({operand}, {{size}}{method[0]}, antialias={antialias[1]})",
            host=f"tpu.pipeline.resize({{images}}, {{size}}{method[1]}, antialias={antialias[1]})",
            parameters={"images": None, "size": None, "method": "'bilinear'", "antialias": "False"}
            if keywords
            else {"images": None, "size": None},
            keywords={"name": None},
            note="in a function of a data set it is tpu.pipeline.resize, which is faster for one image",
        )
        for keywords, operand, old, new, method, antialias in (
            ("", _IN_FLOAT32, "", "", ("", ""), ("False", "False")),
            (
                "method",
                "{images}",
                ", method='nearest'",
                ", interpolation='nearest'",
                (", interpolation={method}", ", method={method}"),
                ("False", "{antialias}"),
            ),
            ("antialias", _IN_FLOAT32, ", antialias=True", "", ("", ""), ("True", "{antialias}")),
        )
    ),
    *(
        Replacement(
            (f"image.ResizeMethod.{name}",),
            f"method = tf.image.ResizeMethod.{name}",
            f'method = "{ours}"',
            "rename",
            target=f'"{ours}"',
        )
        for name, ours in (("BILINEAR", "bilinear"), ("NEAREST_NEIGHBOR", "nearest"))
    ),
    Replacement(
        ("image.resize_with_pad",),
        "image = tf.image.resize_with_pad(image, 8, 12)",
        "image = np.pad(tpu.pipeline.resize(image, (8, 8)), [(0, 0), (2, 2), (0, 0)])",
        "hand",
        note="compute the sizes from those of your images",
    ),
    _rename(
        ("image.per_image_standardization",),
        "image = tf.image.per_image_standardization(image)",
        "tpu.pipeline.standardize",
    ),
    Replacement(
        ("image.resize_images",),
        "image = tf.image.resize_images(image, [8, 8])",
        "image = tpu.pipeline.resize(image, [8, 8])",
        "rename",
        target="tpu.pipeline.resize",
        keywords={"method": None},
    ),
    *(
        Replacement(
            (f"image.{old}",),
            f"image = tf.image.{old}(image)",
            f"image = {new.format(image='image')}",
            "call",
            target=new,
            parameters={"image": None},
        )
        for old, new in (
            ("flip_left_right", "np.flip({image}, -2)"),
            ("flip_up_down", "np.flip({image}, -3)"),
            ("transpose", "np.swapaxes({image}, -3, -2)"),
            ("rgb_to_grayscale", '({image} @ np.asarray([[0.299], [0.587], [0.114]], "float32"))'),
        )
    ),
    Replacement(
        ("image.rot90",),
        "image = tf.image.rot90(image, k=1)",
        "image = np.rot90(image, 1)",
        "call",
        target="np.rot90({image}, {k})",
        parameters={"image": None, "k": "1", "name": "None"},
    ),
    Replacement(
        ("image.convert_image_dtype",),
        "image = tf.image.convert_image_dtype(image, tf.float32)",
        'image = np.asarray(image, "float32") / 255',
        "call",
        target='np.asarray({image}, "float32") / 255',
        parameters={"image": None, "dtype": None, "saturate": "False"},
        note="of an image of bytes",
    ),
    Replacement(
        ("decode_raw", "io.decode_raw"),
        "values = tf.io.decode_raw(content, tf.uint8)",
        'values = np.frombuffer(content, "uint8")',
        "call",
        target="np.frombuffer({input_bytes}, {out_type})",
        parameters={"input_bytes": None, "out_type": None},
    ),
    Replacement(
        ("read_file", "io.read_file"),
        "content = tf.io.read_file(path)",
        "content = fsspec.url_to_fs(path)[0].cat_file(path)",
        "call",
        target="fsspec.url_to_fs({filename})[0].cat_file({filename})",
        parameters={"filename": None, "name": "None"},
    ),
    *(
        Replacement(
            (f"image.{old}",),
            f"image = tf.image.{old}({arguments})",
            f"images.random_map(lambda image, rng: {new})",
            "hand",
            host=host,
            parameters=parameters,
            note="random_map gives the function a generator; in a function of a data set this is done for you",
        )
        for old, arguments, new, host, parameters in _RANDOM_IMAGES
    ),
    *(
        Replacement(
            tuple(f"{home}.{name}" for home in ("gfile", "io.gfile") for name in names),
            f"{left}tf.io.gfile.{names[0]}({arguments})",
            f"{left}{new}",
            "call",
            target=target,
            parameters=parameters,
            note=note,
        )
        for names, left, arguments, new, target, parameters, note in _FILES
    ),
    Replacement(
        ("gfile", "io.gfile"),
        "tf.io.gfile.copy(path, other)",
        "files = fsspec.filesystem('file')",
        "hand",
        note="a file system of fsspec copies, moves and deletes; fsspec.filesystem('gs') is that of gs://",
    ),
    Replacement(
        ("data.Options", "data.experimental.AutoShardPolicy", "data.experimental.DistributeOptions"),
        "options = tf.data.Options()",
        "",
        "hand",
        note="nothing: the options of tf.data tune its threads",
    ),
    Replacement(
        ("data.experimental.ignore_errors",),
        "dataset = records.apply(tf.data.experimental.ignore_errors())",
        "dataset = tpu.pipeline.Dataset.from_source(tpu.pipeline.records(record_files, on_error='skip'))",
        "hand",
        note="what cannot be read is left out where it is read",
    ),
    Replacement(
        ("data.experimental.CsvDataset", "data.experimental.make_csv_dataset"),
        "dataset = tf.data.experimental.CsvDataset(csv_file, [tf.float32], header=True)",
        "dataset = tpu.pipeline.Dataset.from_arrays(np.loadtxt(csv_file, 'float32', delimiter=',', skiprows=1))",
        "hand",
        note="or any other reader of such files: csv, pandas",
    ),
    Replacement(
        ("data.Dataset.window",),
        "dataset = pairs.window(2, shift=1, drop_remainder=True).flat_map(lambda w: w.batch(2))",
        "dataset = tpu.pipeline.windows(pairs, 2, 1, 1)",
        "pattern",
        target="tpu.pipeline.windows({self}, {size}, {shift}, {stride})",
        parameters={"size": None, "shift": "None", "stride": "1", "drop_remainder": "False"},
        note="it takes arrays, too; the windows are views, and only whole ones",
    ),
    _rename(
        ("keras.utils.timeseries_dataset_from_array", "keras.preprocessing.timeseries_dataset_from_array"),
        "windows = tf.keras.utils.timeseries_dataset_from_array(x, y, 3)",
        "tpu.pipeline.timeseries_dataset_from_array",
    ),
    Replacement(
        ("data.experimental", "contrib.data"),
        "dataset = pairs.apply(tf.data.experimental.unique())",
        "dataset = pairs",
        "hand",
        note="a data set has map, filter, flat_map, interleave, batch, unbatch, shuffle and so on",
    ),
    Replacement(
        ("tensorflow_datasets",),
        "dataset, info = tfds.load(name='mnist', split=split, with_info=True, as_supervised=True, try_gcs=True)",
        "(x_train, y_train), (x_test, y_test) = tpu.pipeline.mnist()\n"
        "dataset = tpu.pipeline.Dataset.from_arrays((x_train, y_train))",
        "hand",
        line="(x_train, y_train), (x_test, y_test) = tpu.pipeline.mnist()",
        note="the named data sets are digits, iris, mnist, cifar10, imdb and flowers",
        also=("load",),
    ),
)

REPLACEMENTS: dict[str, tuple[Replacement, ...]] = {
    "Find and start the TPU": _FIND,
    "Strategies and loops of your own": _STRATEGY,
    "keras_to_tpu_model": _CONVERSION,
    "Estimators": _ESTIMATOR,
    "Sessions and the low level": _LOW_LEVEL_ROWS,
    "Keras": _KERAS,
    "Tensors": _TENSORS,
    "Input": _INPUT,
}
"""Every row, by section of the page."""


FOREIGN = {
    "transformers.TF": "it is a TensorFlow model: write it with keras.layers, or take one of keras_hub",
    "efficientnet": "it is built on TensorFlow's Keras: keras.applications has EfficientNetB0 to B7",
    "classification_models": "it is built on TensorFlow's Keras: keras.applications has such models",
    "segmentation_models": "it is built on TensorFlow's Keras: write the model with keras.layers",
    "vit_keras": "it is built on TensorFlow's Keras: keras_hub has vision transformers that run on JAX",
    "official": "it is the TensorFlow model garden: write the model with keras.layers, or take one of keras_hub",
    "tf_models": "it is the TensorFlow model garden: write the model with keras.layers, or take one of keras_hub",
    "bert": "it is built on TensorFlow: write the model with keras.layers, or take one of keras_hub",
    "tensorboard.plugins": "it imports TensorFlow: write the numbers to a file, with csv or json",
    "tf_agents": "it is built on TensorFlow; it has no counterpart here",
}
"""Packages built on TensorFlow, or beginnings of their names, with the advice for their imports."""


def advice_for(attribute: str) -> str | None:
    """Return the error text for a TensorFlow name used on anytpu; None when the table has no such name.

    Args:
        attribute: the attribute requested of anytpu, such as "GradientTape".

    Example:
        >>> print(advice_for("set_random_seed"))
        anytpu has no set_random_seed: in place of tf.set_random_seed write `keras.utils.set_random_seed(1)`. \
`anytpu docs migrate` has the rest
    """
    for row in (row for rows in REPLACEMENTS.values() for row in rows):
        old = next((name for name in row.names if name.rpartition(".")[2] == attribute), None)
        if old is not None or attribute in row.also:
            advice = f"in place of tf.{(old or attribute).lstrip('.')} {advice_of(row, attribute)}"
            return f"anytpu has no {attribute}: {advice}. `anytpu docs migrate` has the rest"
    return None


def advice_of(row: Replacement, attribute: str = "...") -> str:
    """Return the advice that replaces an old line, as one line of text.

    Args:
        row: the replacement.
        attribute: the name in the row, if the row has many names.
    """
    line = "" if row.how == "drop" else row.line or row.new
    if "*" in row.target:
        line = row.target.replace("*", attribute)
    note = f" ({row.note})" if row.note else ""
    return f"write `{line}`{note}" if line else f"write nothing{note.replace('nothing: ', '')}"
