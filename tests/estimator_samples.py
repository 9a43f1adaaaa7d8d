"""A model function, its data and an estimator of it, for the tests of TPUEstimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

import anytpu as tpu
from anytpu.train.checkpoint import checkpoint_at

ROWS, FEATURES, CLASSES = 64, 6, 3


def arrays(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels that a linear model can learn."""
    x = np.random.default_rng(3).standard_normal((rows, FEATURES)).astype("float32")
    return x, np.argmax(x[:, :CLASSES], axis=1).astype("int32")


def input_fn(params: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return arrays()


def metric_fn(labels: Any, logits: Any) -> dict[str, Any]:
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(labels, logits)
    return {"accuracy": accuracy, "rows": len(labels)}


def loss_of(labels: Any, logits: Any) -> Any:
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))


def spec_of(mode: str, params: dict[str, Any], logits: Any, labels: Any, optimizer: Any, **more: Any) -> Any:
    """The spec of a classifier, as the old guides write it."""
    if mode == tpu.ModeKeys.PREDICT:
        classes = keras.ops.argmax(logits, -1)
        return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits, "class": classes}, **more)
    loss = loss_of(labels, logits)
    if mode == tpu.ModeKeys.EVAL:
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]), **more)
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, global_step=tpu.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, **more)


def linear_model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    logits = keras.layers.Dense(CLASSES)(features)
    return spec_of(mode, params, logits, labels, keras.optimizers.SGD(0.1))


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """With everything that has a state of its own: BatchNorm, dropout, Adam."""
    is_training = mode == tpu.ModeKeys.TRAIN
    x = keras.layers.Dense(8, activation="relu")(features)
    x = keras.layers.BatchNormalization()(x, training=is_training)
    x = keras.layers.Dropout(0.3)(x, training=is_training)
    return spec_of(mode, params, keras.layers.Dense(CLASSES)(x), labels, keras.optimizers.Adam(0.02))


def estimator(folder: Path | str, function: Any = linear_model_fn, cores: int = 2, loop: Any = 4, **more: Any) -> Any:
    """An estimator on some virtual cores; `run` and `tpu_config` hold further settings of those."""
    run, tpu_settings = more.pop("run", {}), more.pop("tpu_config", {})
    config = tpu.RunConfig(
        cluster=tpu.TPUClusterResolver("virtual", cores=cores),
        tpu_config=tpu.TPUConfig(iterations_per_loop=loop, **tpu_settings),
        **run,
    )
    sizes = {"train_batch_size": 16, "eval_batch_size": 16, "predict_batch_size": 8}
    return tpu.TPUEstimator(function, str(folder), config, **{**sizes, **more})


def check_same(one: Any, other: Any) -> None:
    """Check that the newest checkpoints of two estimators have the same names and values."""
    mine, theirs = (checkpoint_at(each.model_dir).values for each in (one, other))
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_array_equal(mine[name], value, err_msg=name)
