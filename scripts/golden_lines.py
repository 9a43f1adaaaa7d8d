"""Record TensorFlow 2.15.1's answers to the programs of tests/tensorflow_lines.toml.

    python3.11 -m venv tf && tf/bin/pip install tensorflow-cpu==2.15.1 "numpy<2"
    tf/bin/python scripts/golden_lines.py > tests/golden/lines.json

A MirroredStrategy over 8 logical CPUs replaces the TPU; TPUStrategy shares its code.
"""

import json
import tomllib
from pathlib import Path

import numpy as np
import tensorflow as tf
from golden_custom_loops import STRATEGY, run

LINES = tomllib.loads((Path(__file__).resolve().parents[1] / "tests" / "tensorflow_lines.toml").read_text())["line"]
tf.get_logger().setLevel("ERROR")


def context():
    return tf.distribute.get_replica_context()


def do(step):
    run(lambda: [step(), None][1])


def variable(value, aggregation="none", synchronization="auto"):
    with STRATEGY.scope():
        return tf.Variable(
            value,
            aggregation=getattr(tf.VariableAggregation, aggregation.upper()),
            synchronization=getattr(tf.VariableSynchronization, synchronization.upper()),
        )


def gradients(loss, variables, local=False):
    with tf.GradientTape() as tape:
        value = loss()
    return tape.gradient(value, variables)


def rows(batch):
    return [int(part.shape[0]) if part.shape.rank else None for part in STRATEGY.experimental_local_results(batch)]


def same(run, step):
    found = []
    run(lambda: found.append(step()))
    return found[0] is STRATEGY


NAMES = {
    "np": np,
    "strategy": STRATEGY,
    "default": tf.distribute.get_strategy(),
    "run": run,
    "do": do,
    "context": context,
    "index": lambda: tf.cast(context().replica_id_in_sync_group, tf.float32),
    "each": lambda function: STRATEGY.experimental_distribute_values_from_function(
        lambda one: tf.constant(function(one.replica_id_in_sync_group))
    ),
    "variable": variable,
    "read": lambda variable: variable.read_value(),
    "gradients": gradients,
    "array": tf.constant,
    "total": tf.reduce_sum,
    "where": tf.where,
    "keras": tf.keras,
    "average_loss": tf.nn.compute_average_loss,
    "regularization": tf.nn.scale_regularization_loss,
    "dataset": tf.data.Dataset.range,
    "rows": rows,
    "same": same,
}


def plain(value):
    """Return a result as JSON: the parts of a value of the replicas as a list named "each"."""
    if type(value).__name__ in ("PerReplica", "Mirrored", "DistributedVariable"):
        return {"each": [plain(part) for part in value.values]}
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return np.asarray(value).tolist()


def answer(program):
    names = dict(NAMES)
    try:
        exec(program, names)
        return plain(names.get("answer"))
    except BaseException as error:
        return {"raises": type(error).__name__}


if __name__ == "__main__":
    tf.keras.utils.set_random_seed(0)
    made_by = f"tensorflow {tf.__version__}, MirroredStrategy on 8 logical CPUs, scripts/golden_lines.py"
    print(json.dumps({"made_by": made_by, **{line["name"]: answer(line["program"]) for line in LINES}}, indent=1))
