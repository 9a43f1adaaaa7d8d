"""Table of replacements: the names of TensorFlow's TPU programs, and the anytpu code that replaces them.

Idea: one table serves three readers. `anytpu port` rewrites programs by it, `docs/migrate.md` is generated from it, and
names such as `tpu.GradientTape` raise an error that quotes it.

Rule: every `new` runs, and the porter turns every `old` into its `new`; the tests check both for each row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

How = Literal["rename", "call", "drop", "pattern", "method", "same", "hand"]
"""The porter's way of rewriting the old line.

- rename: the name becomes `target`, an expression; the arguments are unchanged.
- call: the arguments named by `parameters` are put into the template `target`.
- drop: the whole statement or decorator is removed.
- pattern: `anytpu.port` has code for it, because more than a name changes.
- method: the name after the dot, on any object, becomes `target`.
- same: nothing changes.
- hand: the author has to rewrite it.
"""


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The replacement of one name, or of several names with the same counterpart.

    Attributes:
        names: the old names, without `tensorflow.` and `compat.v1.`; a name includes all names below it.
        old: an example of an old line.
        new: the code that replaces it; "" for none.
        how: the porter's way of rewriting it.
        target: the new name, expression or template; in a template of a call `{x}` is the argument x.
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
        ("tpu.experimental.shutdown_tpu_system",),
        "tf.tpu.experimental.shutdown_tpu_system(resolver)",
        "tpu.shutdown_tpu_system",
    ),
    _rename(
        ("config.list_logical_devices", "config.experimental.list_logical_devices"),
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
        (".numpy",),
        "result = total.numpy()",
        "result = keras.ops.convert_to_numpy(total)",
        "pattern",
        note="arrays of JAX have no .numpy(); Keras variables and metrics keep theirs",
    ),
)

_CONVERSION = (
    Replacement(
        ("contrib.tpu.keras_to_tpu_model",),
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
        "train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())",
        "train_op = optimizer.minimize(loss)",
        "pattern",
        note="the estimator counts the steps",
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
        ("train.Saver", "train.Checkpoint", "train.CheckpointManager"),
        "tf.train.Checkpoint(model=model).save(path)",
        "model.save_weights('model.weights.h5')",
        "hand",
        note="model.load_weights reads it back; files are written where the program runs, also from a TPU",
    ),
    Replacement(
        ("summary", "contrib.summary"),
        "tf.summary.scalar('loss', loss)",
        "history = model.fit(x, y, epochs=1, verbose=0, callbacks=[keras.callbacks.CSVLogger('log.csv')])",
        "hand",
        note="what a step returns comes back to Python, which can write it anywhere",
    ),
    Replacement(
        ("app", "flags"),
        "tf.app.run()",
        "arguments = argparse.ArgumentParser().parse_args([])",
        "hand",
        note="argparse reads the command line; call main() at the end of the file",
    ),
    Replacement(
        ("logging.set_verbosity", "get_logger", "autograph.set_verbosity"),
        "tf.logging.set_verbosity(tf.logging.INFO)",
        "",
        "drop",
        note="nothing: what is worth saying is said",
    ),
    _rename(("logging",), "tf.logging.info('loss %f', 0.5)", "logging", note="the module of the standard library"),
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
        "layer = keras.layers.Embedding(100, 8)",
        "rename",
        target="keras.layers.Embedding",
        keywords={"input_length": None},
        note="sequences of any length may come",
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
    _rename(
        ("keras.mixed_precision.experimental.set_policy",),
        "tf.keras.mixed_precision.experimental.set_policy('float32')",
        "keras.mixed_precision.set_global_policy",
    ),
    Replacement((), "K.clear_session()", "K.clear_session()", "same", note="with from keras import backend as K"),
    *(
        Replacement(
            (f"keras.backend.{name}",),
            f"result = tf.keras.backend.{name}(x)",
            f"result = keras.ops.{name}(x)",
            "rename",
            target=f"keras.ops.{name}",
        )
        for name in _words("abs exp log max mean min round shape sigmoid softmax sqrt square sum tanh zeros_like")
    ),
    Replacement(
        tuple(
            f"keras.backend.{name}"
            for name in _words(
                "function get_session get_value learning_phase placeholder set_learning_phase set_session set_value "
                "variable"
            )
        ),
        "value = tf.keras.backend.get_value(variable)",
        "result = keras.ops.convert_to_numpy(variable)",
        "hand",
        note="Keras 3 has no session, and variables have assign and numpy",
    ),
    Replacement(
        ("keras.preprocessing.image.ImageDataGenerator", "keras.preprocessing.text", "keras.wrappers"),
        "tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True)",
        "layer = keras.layers.RandomFlip('horizontal')",
        "hand",
        note="Keras 3 has layers for this",
    ),
    Replacement(
        ("keras.utils.multi_gpu_model", "keras.estimator"),
        "tf.keras.utils.multi_gpu_model(model, gpus=2)",
        "strategy = tpu.connect()",
        "hand",
        note="compile the model in strategy.scope()",
    ),
    Replacement(
        ("keras.experimental", "keras.layers.experimental"),
        "tf.keras.layers.experimental.preprocessing.Rescaling(0.5)",
        "layer = keras.layers.Rescaling(0.5)",
        "hand",
        note="what was experimental is in keras.layers or gone",
    ),
)

_SAME = _words(
    "abs add ceil cond convert_to_tensor cos cumsum divide einsum equal exp expand_dims eye floor greater "
    "greater_equal less less_equal linspace log logical_and logical_not logical_or logical_xor matmul maximum minimum "
    "mod multiply norm not_equal ones ones_like pad power repeat reshape round rsqrt shape sigmoid sign sin size sort "
    "sqrt square squeeze stack stop_gradient subtract tanh tensordot tile top_k transpose unstack where while_loop "
    "zeros zeros_like"
)
_ACTIVATIONS = _words("relu elu selu gelu softmax log_softmax sigmoid tanh softplus leaky_relu")
_DTYPES = _words("float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool")
_NAMED_OTHERWISE = {
    "concat": ("concatenate", "[a, a], 0"),
    "constant": ("convert_to_tensor", "[1.0, 2.0]"),
    "cast": ("cast", "a, 'float32'"),
    "pow": ("power", "a, 2"),
    "range": ("arange", "3"),
    "reduce_all": ("all", "a > 0"),
    "reduce_any": ("any", "a > 0"),
    "reduce_max": ("max", "a"),
    "reduce_mean": ("mean", "a, axis=0"),
    "reduce_min": ("min", "a"),
    "reduce_prod": ("prod", "a"),
    "reduce_sum": ("sum", "a, axis=-1"),
}
_KEYWORDS = {"keep_dims": "keepdims", "reduction_indices": "axis", "perm": "axes", "name": None, "input_tensor": "x"}


def _tensors(names: tuple[str, ...], *prefixes: str) -> tuple[str, ...]:
    return tuple(prefix + name for name in names for prefix in prefixes)


_TENSORS = (
    Replacement(
        _tensors(_SAME, "", "math.", "linalg."),
        "c = tf.matmul(a, b)",
        "c = keras.ops.matmul(a, b)",
        "rename",
        target="keras.ops.*",
        keywords=_KEYWORDS,
    ),
    Replacement(
        _tensors(_ACTIVATIONS, "nn."),
        "c = tf.nn.relu(a)",
        "c = keras.ops.relu(a)",
        "rename",
        target="keras.ops.*",
        keywords={"name": None, "logits": "x", "features": "x"},
    ),
    *(
        Replacement(
            (name, f"math.{name}"),
            f"c = tf.{name}({arguments})",
            f"c = keras.ops.{ours}({arguments})",
            "rename",
            target=f"keras.ops.{ours}",
            keywords=_KEYWORDS,
        )
        for name, (ours, arguments) in _NAMED_OTHERWISE.items()
    ),
    *(
        Replacement(
            (name, f"math.{name}"),
            f"c = tf.{name}(a, 1)",
            f"c = keras.ops.{name}(a, axis=1)",
            "call",
            target=f"keras.ops.{name}({{input}}, axis={{axis}})",
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
        parameters={"indices": None, "depth": None},
        keywords={"dtype": "dtype", "axis": "axis", "name": None},
    ),
    Replacement(
        ("gather",),
        "c = tf.gather(a, [0, 1])",
        "c = keras.ops.take(a, [0, 1], axis=0)",
        "call",
        target="keras.ops.take({params}, {indices}, axis={axis})",
        parameters={"params": None, "indices": None, "validate_indices": "None", "name": "None", "axis": "0"},
    ),
    Replacement(
        ("clip_by_value",),
        "c = tf.clip_by_value(a, 0.0, 1.0)",
        "c = keras.ops.clip(a, 0.0, 1.0)",
        "call",
        target="keras.ops.clip({t}, {clip_value_min}, {clip_value_max})",
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
    _rename(
        ("random.normal", "random_normal"),
        "c = tf.random_normal([2, 3], stddev=0.1)",
        "keras.random.normal",
        keywords={"name": None},
    ),
    _rename(
        ("random.uniform", "random_uniform"),
        "c = tf.random.uniform([2, 3], minval=-1.0)",
        "keras.random.uniform",
        keywords={"name": None},
    ),
    _rename(
        ("random.truncated_normal", "truncated_normal"),
        "c = tf.truncated_normal([2, 3], stddev=0.1)",
        "keras.random.truncated_normal",
        keywords={"name": None},
    ),
    _rename(
        ("random.set_seed", "set_random_seed", "random.set_random_seed"),
        "tf.random.set_seed(1)",
        "keras.utils.set_random_seed",
    ),
)

_INPUT = (
    _rename(
        ("data.Dataset.from_tensor_slices",),
        "dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).repeat().batch(16, drop_remainder=True)",
        "tpu.pipeline.Dataset.from_arrays",
        note="map, filter, batch, shuffle, repeat, shard and prefetch are called the same",
        also=("data",),
    ),
    Replacement(
        ("data.Dataset.from_generator",),
        "dataset = tf.data.Dataset.from_generator(rows, output_types=tf.float32)",
        "dataset = tpu.pipeline.Dataset.from_generator(rows)",
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
    _rename(("image.resize",), "image = tf.image.resize(image, [8, 8])", "tpu.pipeline.resize"),
    _rename(
        ("image.per_image_standardization",),
        "image = tf.image.per_image_standardization(image)",
        "tpu.pipeline.standardize",
    ),
    Replacement(
        ("image.random_flip_left_right",),
        "dataset = images.map(tf.image.random_flip_left_right)",
        "dataset = images.random_map(tpu.pipeline.random_flip)",
        "hand",
        note="random_map gives the function a generator of its own",
    ),
    Replacement(
        ("gfile", "io.gfile"),
        "file = tf.io.gfile.GFile(path)",
        "file = fsspec.open(path)",
        "hand",
        note="fsspec opens gs://, s3:// and https:// too",
    ),
    Replacement(
        ("data",),
        "options = tf.data.Options()",
        "dataset = tpu.pipeline.Dataset.from_arrays((x, y))",
        "hand",
        note="its methods are map, random_map, filter, batch, shuffle, repeat, shard and prefetch",
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


def advice_for(attribute: str) -> str | None:
    """Return the error text for a TensorFlow name used on anytpu; None when the table has no such name.

    Args:
        attribute: the attribute requested of anytpu, such as "GradientTape".

    Example:
        >>> print(advice_for("set_random_seed"))
        anytpu has no set_random_seed: in place of tf.set_random_seed write `keras.utils.set_random_seed(1)`. \
docs/migrate.md has the rest
    """
    for row in (row for rows in REPLACEMENTS.values() for row in rows):
        old = next((name for name in row.names if name.rpartition(".")[2] == attribute), None)
        if old is not None or attribute in row.also:
            old_name = f"in place of tf.{(old or attribute).lstrip('.')} "
            return f"anytpu has no {attribute}: {old_name}{advice_of(row, attribute)}. docs/migrate.md has the rest"
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
