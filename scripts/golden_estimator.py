"""Record the results, logs and errors of TensorFlow's own TPUEstimator off the TPU.

    python -m venv tf && tf/bin/pip install tensorflow-cpu==2.15.1
    tf/bin/python scripts/golden_estimator.py > tests/golden/estimator.json

It needs Python 3.11 or older, and not anytpu. tests/migrate/estimator/test_golden.py compares with the file.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
tpu = v1.estimator.tpu
ROWS, FEATURES, CLASSES, BATCH = 21, 4, 3, 8


def arrays():
    x = (np.arange(ROWS * FEATURES).reshape(ROWS, FEATURES) % 7 - 3).astype("float32") / 3
    return x, (np.arange(ROWS) % CLASSES).astype("int32")


seen = {"input_fn": [], "model_fn": []}


def train_input_fn(params):
    seen["input_fn"].append(sorted(params))
    x, y = arrays()
    return (
        tf.data.Dataset.from_tensor_slices((x[:16], y[:16])).batch(params["batch_size"], drop_remainder=True).repeat()
    )


def eval_input_fn(params):
    x, y = arrays()
    return tf.data.Dataset.from_tensor_slices((x[:16], y[:16])).batch(params["batch_size"], drop_remainder=True)


def predict_input_fn(params):
    x, _ = arrays()
    return tf.data.Dataset.from_tensor_slices(x).batch(params["batch_size"])


def no_params():
    return None


def metric_fn(labels, logits):
    return {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, -1))}


def model_fn(features, labels, mode, params):
    seen["model_fn"].append(sorted(params))
    kernel = v1.get_variable("kernel", [FEATURES, CLASSES], initializer=v1.zeros_initializer())
    logits = features @ kernel
    if mode == "infer":
        return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits, "class": tf.argmax(logits, -1)})
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == "eval":
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))
    optimizer = tpu_optimizer(params)
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def tpu_optimizer(params):
    optimizer = v1.train.MomentumOptimizer(0.5, 0.9)
    return v1.tpu.CrossShardOptimizer(optimizer) if params["use_tpu"] else optimizer


def estimator(**given):
    config = tpu.RunConfig(model_dir=tempfile.mkdtemp(), tpu_config=tpu.TPUConfig(iterations_per_loop=4))
    sizes = {"train_batch_size": BATCH, "eval_batch_size": BATCH, "predict_batch_size": BATCH}
    return tpu.TPUEstimator(model_fn, config=config, **{"use_tpu": False, **sizes, **given})


def refused(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, re.sub(r" at 0x\w+", "", str(error))]
    return None


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def refusals():
    config = tpu.RunConfig()
    return {
        "config": refused(lambda: tpu.TPUEstimator(model_fn, config=None, train_batch_size=8)),
        "reserved": refused(lambda: estimator(params={"batch_size": 3})),
        "train_batch_size": refused(lambda: tpu.TPUEstimator(model_fn, config=config)),
        "not positive": refused(lambda: tpu.TPUEstimator(model_fn, config=config, train_batch_size=-8)),
        "not an integer": refused(lambda: tpu.TPUEstimator(model_fn, config=config, train_batch_size=8.0)),
        "iterations": refused(lambda: tpu.TPUConfig(iterations_per_loop="5d")),
        "host_call no pair": refused(lambda: tpu.TPUEstimatorSpec("train", host_call=3)),
        "host_call one": refused(lambda: tpu.TPUEstimatorSpec("train", host_call=(print,))),
        "host_call not callable": refused(lambda: tpu.TPUEstimatorSpec("train", host_call=(3, []))),
        "host_call no list": refused(lambda: tpu.TPUEstimatorSpec("train", host_call=(print, 3))),
        "host_call count": refused(lambda: tpu.TPUEstimatorSpec("train", host_call=(lambda a, b: None, [1]))),
        "no params": refused(lambda: estimator().train(no_params, steps=1)),
    }


def main():
    lines = Lines()
    v1.logging.set_verbosity(v1.logging.INFO)
    logging.getLogger("tensorflow").addHandler(lines)
    one = estimator()
    returns_itself = one.train(train_input_fn, max_steps=10) is one
    first = one.evaluate(eval_input_fn)
    lines.lines.clear()
    one.train(train_input_fn, max_steps=10)
    skipped = list(lines.lines)
    predictions = [list(one.predict(predict_input_fn)) for _ in range(2)]
    left = one.predict(predict_input_fn)
    next(left)
    one.train(train_input_fn, steps=5)
    second = one.evaluate(eval_input_fn, steps=1)
    record = {
        "tensorflow": tf.__version__,
        "params": {name: sorted({tuple(keys) for keys in lists}) for name, lists in seen.items()},
        "train returns the estimator": returns_itself,
        "skipped": skipped,
        "first": {name: float(value) for name, value in first.items()},
        "types": {name: type(value).__name__ for name, value in first.items()},
        "second": {name: float(value) for name, value in second.items()},
        "predictions": [[float(v) for v in row["logits"]] for row in predictions[0]],
        "classes": [int(row["class"]) for row in predictions[0]],
        "prediction keys": sorted(predictions[0][0]),
        "predict twice": len(predictions[1]),
        "variables": one.get_variable_names(),
        "kernel": one.get_variable_value("kernel").tolist(),
        "refusals": refusals(),
        "iterations_per_loop": {text: list(parsed(text)) for text in ("7", "30s", "5m", "1h")},
    }
    print(json.dumps(record, indent=1))


def parsed(text):
    from tensorflow_estimator.python.estimator.tpu import util

    return util.parse_iterations_per_loop(text)


if __name__ == "__main__":
    main()
