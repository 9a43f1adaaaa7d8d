"""Record TensorFlow 2.15.1's results of custom training loops: the golden values of tests/strategy/test_tensorflow.py.

    python3.11 -m venv tf && tf/bin/pip install tensorflow-cpu==2.15.1 "numpy<2"
    tf/bin/python scripts/golden_custom_loops.py > tests/golden/custom_loops.json

A MirroredStrategy over 8 logical CPUs replaces the TPU; TPUStrategy shares its code.
"""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
STRATEGY = tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(8)])


def run(fn, *args):
    return tf.function(lambda *given: STRATEGY.run(fn, args=given))(*args)


def numpy(value):
    return np.asarray(value).tolist()


def parts(value):
    return [numpy(part) for part in STRATEGY.experimental_local_results(value)]


def values() -> dict:
    a, b = tf.constant([[1.0, 2, 3], [4, 5, 6]]), tf.constant([[1.0, 2], [3, 4], [5, 6]])
    z = run(tf.matmul, a, b)

    def ids():
        context = tf.distribute.get_replica_context()
        index = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return context.all_reduce("SUM", index), context.all_reduce("MEAN", index), context.all_gather(index[None], 0)

    def gradient():
        context = tf.distribute.get_replica_context()
        x = tf.constant(2.0)
        scale = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = scale * context.all_reduce("SUM", x)
        return tape.gradient(y, x)

    total, mean, gathered = run(ids)
    return {
        "matmul_sum": numpy(STRATEGY.reduce("SUM", z, axis=None)),
        "matmul_mean_of_rows": numpy(STRATEGY.reduce("MEAN", z, axis=0)),
        "gathered_shape": list(STRATEGY.gather(z, axis=0).shape),
        "printed_keys": [line.split(":")[0] for line in str(run(lambda: tf.constant(1))).splitlines()],
        "sum_of_ids": parts(total),
        "mean_of_ids": parts(mean),
        "gathered_ids": parts(gathered),
        "gradient_of_sum": parts(run(gradient)),
    }


def splits() -> dict:
    def counts(dataset):
        return [[int(part.shape[0]) for part in STRATEGY.experimental_local_results(batch)] for batch in dataset]

    made = {
        f"{rows} by {size}": counts(STRATEGY.experimental_distribute_dataset(tf.data.Dataset.range(rows).batch(size)))
        for rows, size in [(10, 10), (12, 12), (21, 10), (40, 16)]
    }
    function = STRATEGY.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(21).batch(2))
    contexts = []
    STRATEGY.distribute_datasets_from_function(
        lambda context: contexts.append(str(context)) or tf.data.Dataset.range(8).batch(1)
    )
    return {"global": made, "from_function": counts(function), "context": contexts}


def variables() -> dict:
    made = {}
    for name in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"):
        with STRATEGY.scope():
            variable = tf.Variable(0.0, aggregation=getattr(tf.VariableAggregation, name))

        def add(variable=variable):
            context = tf.distribute.get_replica_context()
            variable.assign_add(tf.cast(context.replica_id_in_sync_group, tf.float32) + 1)

        run(add)
        made[name.lower()] = float(variable.numpy())
    with STRATEGY.scope():
        mean = tf.keras.metrics.Mean()

    def update():
        mean.update_state(tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32))

    run(update)
    return {"assign_add": made, "metric_mean_of_ids": float(mean.result())}


def aggregates() -> dict:
    """Variables that start at 2 and are read after an assignment in the same step: a replica's reading, and the end."""

    def number():
        return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)

    def reading(aggregation, synchronization, write):
        with STRATEGY.scope():
            variable = tf.Variable(
                0.0 if synchronization == "ON_READ" else 2.0,
                aggregation=getattr(tf.VariableAggregation, aggregation),
                synchronization=getattr(tf.VariableSynchronization, synchronization),
            )

        def step():
            write(variable)
            return variable.read_value()

        return {"read": parts(run(step)), "after": float(variable.numpy())}

    outer = tf.constant(1.0)

    def twice(variable):
        variable.assign(number() + 1)
        variable.assign_add(number())

    writes = {
        "assign": lambda variable: variable.assign(number() + 1),
        "assign_add": lambda variable: variable.assign_add(number() + 1),
        "assign_sub": lambda variable: variable.assign_sub(number() + 1),
        "assign of a change": lambda variable: variable.assign(variable + number()),
        "twice": twice,
        "made in the step": lambda variable: variable.assign_add(tf.constant(1.0)),
        "a number": lambda variable: variable.assign(1.0),
        "a number added": lambda variable: variable.assign_add(1.0),
        "made outside": lambda variable: variable.assign(outer),
    }
    made = {}
    for aggregation in ("SUM", "MEAN", "ONLY_FIRST_REPLICA"):
        for name, write in writes.items():
            made[f"{aggregation.lower()}, {name}"] = answer(lambda a=aggregation, w=write: reading(a, "AUTO", w))
        for name in ("assign_add", "a number"):
            made[f"{aggregation.lower()} on_read, {name}"] = reading(aggregation, "ON_READ", writes[name])
    return made


def plain_reductions() -> dict:
    """Results of `reduce` for a value that is not per replica."""
    given = {"3": np.float32(3), "0": np.float32(0), "vector": np.float32([1, 2]), "zeros": np.zeros(2, "float32")}
    return {
        f"{op} {axis} {name}": answer(
            lambda op=op, axis=axis, value=value: numpy(STRATEGY.reduce(op, value, axis=axis))
        )
        for op in ("SUM", "MEAN")
        for axis in (None, 0)
        for name, value in given.items()
        if axis is None or value.ndim
    }


def answer(call):
    """Return what a call returns, or the class of what it raises."""
    try:
        return call()
    except Exception as error:
        return {"raises": type(error).__name__}


def contexts() -> dict:
    """`has_strategy`, `in_cross_replica_context`, and whether the replica context is None."""
    distribute = tf.distribute

    def state(*_):
        found.append(
            [distribute.has_strategy(), distribute.in_cross_replica_context(), distribute.get_replica_context() is None]
        )

    def seen(call):
        found.clear()
        call()
        return found[0]

    def scoped(strategy):
        with strategy.scope():
            state()

    found, default = [], distribute.get_strategy()
    return {
        "outside": seen(state),
        "scope": seen(lambda: scoped(STRATEGY)),
        "run": seen(lambda: STRATEGY.run(state)),
        "merge": seen(lambda: STRATEGY.run(lambda: distribute.get_replica_context().merge_call(state))),
        "default run": seen(lambda: default.run(state)),
        "default scope": seen(lambda: scoped(default)),
        "default merge": seen(lambda: distribute.get_replica_context().merge_call(state)),
    }


def optionals() -> list:
    """Five calls of get_next_as_optional on 21 rows by 10."""
    iterator = iter(STRATEGY.experimental_distribute_dataset(tf.data.Dataset.range(21).batch(10)))
    found = [iterator.get_next_as_optional() for _ in range(5)]
    return [
        [bool(optional.has_value()), parts(optional.get_value()) if optional.has_value() else None]
        for optional in found
    ]


def gathered() -> dict:
    """all_gather of parts of different lengths, and of a batch that does not fill the replicas."""
    context = tf.distribute.get_replica_context
    lengths = STRATEGY.experimental_distribute_values_from_function(
        lambda one: tf.fill((one.replica_id_in_sync_group + 1, 2), one.replica_id_in_sync_group)
    )
    batches = STRATEGY.experimental_distribute_dataset(tf.data.Dataset.range(21).batch(10))
    return {
        "gather": numpy(STRATEGY.gather(lengths, axis=0)),
        "all_gather": parts(run(lambda x: context().all_gather(x, 0), lengths))[0],
        "of batches": [parts(run(lambda x: context().all_gather(x, 0), batch))[7] for batch in batches],
    }


def made_in_steps() -> dict:
    """Results of two runs of a step whose first run makes a variable, a layer, an optimizer and a metric."""

    def twice(make, use):
        made = []

        def step():
            if not made:
                made.append(make())
            return use(made[0])

        compiled = tf.function(lambda: STRATEGY.run(step))
        return [parts(compiled()), parts(compiled())]

    def anew():
        variable = tf.Variable(1.0)
        return variable.assign_add(1.0)

    with STRATEGY.scope():
        weight = tf.Variable(1.0)
    x = tf.ones((1, 2))

    def trained(optimizer):
        optimizer.apply_gradients([(tf.constant(1.0), weight)])
        return weight.read_value()

    return {
        "variable": twice(lambda: tf.Variable(1.0), lambda one: one.assign_add(1.0)),
        "variable of the first replica's value": twice(
            lambda: tf.Variable(tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)),
            lambda one: one.read_value(),
        ),
        "layer": twice(lambda: tf.keras.layers.Dense(2, kernel_initializer="ones"), lambda layer: layer(x)),
        "optimizer": twice(lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9), trained),
        "anew": answer(lambda: parts(tf.function(lambda: STRATEGY.run(anew))())),
    }


def losses() -> dict:
    per_replica = STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.constant([1.0, 2.0]) * (context.replica_id_in_sync_group + 1)
    )
    weights = tf.constant([1.0, 0.5])

    def summed(fn):
        return float(STRATEGY.reduce("SUM", run(fn, per_replica), axis=None))

    return {
        "average": summed(lambda x: tf.nn.compute_average_loss(x)),
        "average_of_20": summed(lambda x: tf.nn.compute_average_loss(x, global_batch_size=20)),
        "weighted": summed(lambda x: tf.nn.compute_average_loss(x, sample_weight=weights, global_batch_size=16)),
        "regularization": summed(lambda x: tf.nn.scale_regularization_loss(tf.constant([1.0, 3.0]))),
    }


def training() -> dict:
    """Three steps of SGD with momentum on 26 rows by 10: the last batch fills 6 of 8 replicas."""
    random = np.random.default_rng(0)
    x, w = random.normal(size=(26, 4)).astype("float32"), random.normal(size=(4, 3)).astype("float32")
    y = random.integers(0, 3, 26)
    with STRATEGY.scope():
        weights = tf.Variable(w)
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy()

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            logits = x @ weights
            per_row = tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            loss = tf.nn.compute_average_loss(per_row, global_batch_size=10)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        accuracy.update_state(y, logits)
        return loss

    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    losses = []
    compiled = tf.function(lambda batch: STRATEGY.run(step, args=(batch,)))
    for batch in STRATEGY.experimental_distribute_dataset(dataset):
        losses.append(float(STRATEGY.reduce("SUM", compiled(batch), axis=None)))
    return {
        "x": x.tolist(),
        "y": y.tolist(),
        "start": w.tolist(),
        "losses": losses,
        "weights": numpy(weights),
        "accuracy": float(accuracy.result()),
        "iterations": int(optimizer.iterations.numpy()),
    }


def uneven_fit() -> dict:
    """Keras 2's fit on batches that do not fill the replicas: known to differ from one device."""

    def weight(strategy, rows, size):
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
            model.compile(tf.keras.optimizers.SGD(0.1), "mse")
        x = np.linspace(-1, 1, rows, dtype="float32")[:, None]
        model.fit(x, x**2, batch_size=size, shuffle=False, verbose=0)
        return float(model.weights[0].numpy()[0, 0])

    return {
        f"{rows} by {size}": {
            "one_device": weight(tf.distribute.get_strategy(), rows, size),
            "eight_replicas": weight(STRATEGY, rows, size),
        }
        for rows, size in [(32, 16), (20, 16), (21, 10)]
    }


PARTS = (
    values,
    splits,
    variables,
    aggregates,
    plain_reductions,
    contexts,
    optionals,
    gathered,
    made_in_steps,
    losses,
    training,
    uneven_fit,
)

if __name__ == "__main__":
    golden = {
        "made_by": f"tensorflow {tf.__version__}, MirroredStrategy on 8 logical CPUs, scripts/golden_custom_loops.py",
        **{part.__name__: part() for part in PARTS},
    }
    print(json.dumps(golden, indent=1))
