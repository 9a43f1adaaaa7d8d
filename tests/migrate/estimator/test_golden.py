"""What TensorFlow's own TPUEstimator did with the same model and data (tests/golden/estimator.json)."""

from __future__ import annotations

import json
import logging
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.migrate.estimator.run_config import LoopLength

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/estimator.json").read_text())
ROWS, FEATURES, CLASSES, BATCH = 21, 4, 3, 8
SEEN: dict[str, set] = {"input_fn": set(), "model_fn": set()}


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = (np.arange(ROWS * FEATURES).reshape(ROWS, FEATURES) % 7 - 3).astype("float32") / 3
    return x, (np.arange(ROWS) % CLASSES).astype("int32")


def sixteen(params: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    SEEN["input_fn"].add(tuple(sorted(params)))
    x, y = arrays()
    return x[:16], y[:16]


def metric_fn(labels: Any, logits: Any) -> dict[str, Any]:
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(labels, logits)
    return {"accuracy": accuracy}


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    SEEN["model_fn"].add(tuple(sorted(params)))
    kernel = keras.Variable(np.zeros((FEATURES, CLASSES), "float32"), name="kernel")
    logits = keras.ops.matmul(features, kernel)
    if mode == tpu.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits, "class": keras.ops.argmax(logits, -1)})
    loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
    if mode == tpu.ModeKeys.EVAL:
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, global_step=tpu.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator(folder: Path, use_tpu: bool) -> Any:
    config = tpu.RunConfig(
        model_dir=str(folder),
        tpu_config=tpu.TPUConfig(iterations_per_loop=4),
        cluster=tpu.TPUClusterResolver("virtual", cores=4),
    )
    sizes = {"train_batch_size": BATCH, "eval_batch_size": BATCH, "predict_batch_size": BATCH}
    return tpu.TPUEstimator(model_fn, config=config, use_tpu=use_tpu, **sizes)


@pytest.fixture(scope="module", params=[False, True], ids=["off the TPU", "on four cores"])
def trained(request, tmp_path_factory) -> Any:
    """The program of scripts/golden_estimator.py, line by line, and what it gave."""
    one = estimator(tmp_path_factory.mktemp("golden"), request.param)
    returned = one.train(sixteen, max_steps=10)
    first = one.evaluate(sixteen, steps=2)
    predictions = [list(one.predict(lambda params: arrays()[0])) for _ in range(2)]
    left = one.predict(lambda params: arrays()[0])
    next(left)
    one.train(sixteen, steps=5)
    return types.SimpleNamespace(
        one=one,
        use_tpu=request.param,
        returned=returned,
        first=first,
        predictions=predictions,
        second=one.evaluate(sixteen, steps=1),
    )


def test_train_returns_the_estimator_a34(trained):
    assert GOLDEN["train returns the estimator"] is (trained.returned is trained.one) is True


def test_evaluate_returns_the_same_numbers_a34(trained):
    for ours, golden in ((trained.first, GOLDEN["first"]), (trained.second, GOLDEN["second"])):
        assert sorted(ours) == sorted(golden)
        for name, value in golden.items():
            np.testing.assert_allclose(ours[name], value, rtol=2e-6, err_msg=name)
    assert {name: type(value).__name__ for name, value in trained.first.items()} == GOLDEN["types"]


def test_predictions_are_the_same_a32_a34(trained):
    first, second = trained.predictions
    assert sorted(first[0]) == GOLDEN["prediction keys"]
    assert (len(first), len(second)) == (ROWS, GOLDEN["predict twice"])
    np.testing.assert_allclose([row["logits"] for row in first], GOLDEN["predictions"], rtol=2e-5, atol=1e-6)
    assert [int(row["class"]) for row in first] == GOLDEN["classes"]


def test_the_weights_are_the_same(trained):
    np.testing.assert_allclose(trained.one.get_variable_value("kernel"), GOLDEN["kernel"], rtol=2e-5, atol=1e-6)
    assert {"kernel", "global_step"} <= set(trained.one.get_variable_names()) & set(GOLDEN["variables"])


def test_max_steps_that_are_reached_a34(trained, caplog):
    with caplog.at_level(logging.INFO, logger="anytpu"):
        trained.one.train(sixteen, max_steps=10)
    assert caplog.messages == [line for line in GOLDEN["skipped"] if line.startswith("Skipping")]


def test_params_off_the_tpu_a26(trained):
    if not trained.use_tpu:
        assert {tuple(keys) for keys in GOLDEN["params"]["model_fn"]} == SEEN["model_fn"]
        assert {tuple(keys) for keys in GOLDEN["params"]["input_fn"]} <= SEEN["input_fn"]


@pytest.mark.parametrize("text", GOLDEN["iterations_per_loop"])
def test_iterations_per_loop_a23(text):
    value, unit = GOLDEN["iterations_per_loop"][text]
    parsed = LoopLength.of(text)
    assert (parsed.steps if unit == "count" else parsed.seconds_s) == value


def spec(**given: Any) -> Any:
    return lambda folder: tpu.TPUEstimatorSpec("train", **given)


def no_params():
    return None


REFUSED = {
    "config": lambda folder: tpu.TPUEstimator(model_fn, config=None, train_batch_size=8),
    "reserved": lambda folder: tpu.TPUEstimator(
        model_fn, config=tpu.RunConfig(), train_batch_size=8, params={"batch_size": 3}
    ),
    "train_batch_size": lambda folder: tpu.TPUEstimator(model_fn, config=tpu.RunConfig()),
    "not positive": lambda folder: tpu.TPUEstimator(model_fn, config=tpu.RunConfig(), train_batch_size=-8),
    "not an integer": lambda folder: tpu.TPUEstimator(model_fn, config=tpu.RunConfig(), train_batch_size=8.0),
    "iterations": lambda folder: tpu.TPUConfig(iterations_per_loop="5d"),
    "host_call no pair": spec(host_call=3),
    "host_call one": spec(host_call=(print,)),
    "host_call not callable": spec(host_call=(3, [])),
    "host_call no list": spec(host_call=(print, 3)),
    "host_call count": spec(host_call=(lambda a, b: None, [1])),
    "no params": lambda folder: estimator(folder, use_tpu=False).train(no_params, steps=1),
}
# Where the old text goes on about the value in another way.
STARTS = {
    "config": "`config` must be provided with type `tpu_config.RunConfig`",
    "not an integer": "train_batch_size must be int, got ",
    "iterations": "Invalid TPUConfig `iterations_per_loop` value. Value must be positive integer value or time-based ",
    "host_call one": "host_call should have two elements",
    "host_call not callable": "host_call[0] should be callable",
    "host_call no list": "host_call[1] should be tuple or list, or dict",
    "no params": "input_fn (",
}


@pytest.mark.parametrize("name", GOLDEN["refusals"])
def test_errors_begin_as_they_did_a27_a28_a29(name, tmp_path):
    kind, text = GOLDEN["refusals"][name]
    start = STARTS.get(name, text).rstrip(".")
    assert text.startswith(start)
    expected = {"ValueError": ValueError, "TypeError": (TypeError, ValueError), "RuntimeError": ValueError}[kind]
    with pytest.raises(expected) as caught:
        REFUSED[name](tmp_path)
    assert str(caught.value).startswith(start)
