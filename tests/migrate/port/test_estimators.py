"""Plain Estimators become a TPUEstimator on one device."""

from __future__ import annotations

import numpy as np

from anytpu.migrate.port import ported

PROGRAM = """\
import numpy as np
import tensorflow as tf


def model_fn(features, labels, mode):
    logits = tf.layers.dense(features, 3)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions={"classes": tf.argmax(logits, 1)})
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=optimizer.minimize(loss))


def input_fn(rows):
    x, y = np.eye(3, dtype="float32"), np.arange(3)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(rows)


def train_fn():
    return input_fn(6)


estimator = tf.estimator.Estimator(model_fn=model_fn)
estimator.train(train_fn, steps=2)
estimator.train(input_fn=lambda: input_fn(6), steps=2)
rows = tf.estimator.inputs.numpy_input_fn(np.eye(3, dtype="float32"), batch_size=2, shuffle=False)
classes = [row["classes"] for row in estimator.predict(rows)]
"""


def test_a_plain_estimator_trains_on_one_device():
    outcome = ported(PROGRAM)
    assert outcome.by_hand == ()
    assert "def model_fn(features, labels, mode, params):" in outcome.new
    assert "estimator = tpu.TPUEstimator(model_fn=model_fn, use_tpu=False, config=tpu.RunConfig())" in outcome.new
    assert "estimator.train(lambda params: train_fn(), steps=2)" in outcome.new
    assert "estimator.train(input_fn=lambda params: input_fn(6), steps=2)" in outcome.new
    names: dict = {}
    exec(outcome.new, names)
    assert len(names["classes"]) == 3
    assert int(np.asarray(names["estimator"].get_variable_value("global_step"))) == 4


def test_the_arguments_of_an_input_function_are_evaluated_once():
    text = (
        "import tensorflow as tf\n"
        "made = [tf.estimator.inputs.numpy_input_fn(load(x), {'y': x}, 2, num_epochs=len(x), shuffle=False)"
        " for x in tables]\nx = None\n"
    )
    outcome = ported(text)
    assert outcome.by_hand == ()
    loads = []
    names: dict = {"tables": [np.zeros(1), np.ones(1)], "load": lambda x: loads.append(x) or x}
    exec(outcome.new, names)
    for _ in range(2):
        rows = [next(iter(make({}))) for make in names["made"]]
        assert [(np.asarray(x).tolist(), np.asarray(y["y"]).tolist()) for x, y in rows] == [
            ([0.0], [0.0]),
            ([1.0], [1.0]),
        ]
    assert len(loads) == 2
