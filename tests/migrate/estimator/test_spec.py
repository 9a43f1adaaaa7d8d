from __future__ import annotations

import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import EstimatorError
from anytpu.migrate.estimator.spec import call_on_host, check_batch_axis
from anytpu.migrate.low_level.cross_shard import Minimization
from error_texts import error_text

LOSS = np.float32(1)
OP = Minimization(None, LOSS)


def two(a, b):
    return a + b


@pytest.mark.parametrize("name", ["host_call", "eval_metrics"])
@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (3, "{} should be tuple or list, not 3: "),
        ((print,), "{} should have two elements, not 1: "),
        ((3, []), "{}[0] should be callable, not 3: "),
        ((print, 3), "{}[1] should be tuple or list, or dict, not int: "),
    ],
)
def test_pairs_a29(name, pair, message):
    assert (
        error_text(lambda: tpu.TPUEstimatorSpec("train", loss=LOSS, train_op=OP, **{name: pair}), kind=EstimatorError)
        == message.format(name) + f"TPUEstimatorSpec(mode, {name}=(function, [tensor, ...]))"
    )


def test_as_many_tensors_as_arguments_a29():
    assert error_text(
        lambda: tpu.TPUEstimatorSpec("train", loss=LOSS, train_op=OP, host_call=(two, [LOSS])), kind=EstimatorError
    ) == (
        "In TPUEstimatorSpec.host_call, length of tensors 1 does not match method args of the function, which takes 2: "
        "two(a, b)"
    )


def test_a_function_of_any_number_of_tensors():
    spec = tpu.TPUEstimatorSpec("train", loss=LOSS, train_op=OP, host_call=(lambda *all_: None, [LOSS]))
    assert spec.host_call is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "fit", "loss": LOSS}, "mode must be one of tpu.ModeKeys ('train', 'eval', 'infer'), not 'fit'"),
        (
            {"mode": "eval"},
            "Missing loss: for mode 'eval' a model_fn returns TPUEstimatorSpec(mode, loss=loss, ...)",
        ),
        (
            {"mode": "train", "loss": LOSS},
            "Missing train_op: for mode 'train' a model_fn returns TPUEstimatorSpec(mode, loss=loss, "
            "train_op=optimizer.minimize(loss))",
        ),
        (
            {"mode": "eval", "loss": np.ones(3)},
            "Loss must be scalar, and it has the shape (3,): take keras.ops.mean(losses)",
        ),
        (
            {"mode": "infer", "predictions": [1]},
            "TPUEstimatorSpec.predictions must be dict of Tensors, not [1]: for mode 'infer' a model_fn returns "
            'TPUEstimatorSpec(mode, predictions={"probabilities": probabilities})',
        ),
    ],
)
def test_what_a_mode_needs_a28(given, message):
    assert error_text(lambda: tpu.TPUEstimatorSpec(**given), kind=EstimatorError) == message


def test_tensors_keep_their_rows_a29():
    check_batch_axis("host_call", {"loss": np.ones(1)})
    assert error_text(lambda: check_batch_axis("host_call", {"loss": LOSS}), kind=EstimatorError) == (
        "All tensors outfed from TPU should preserve batch size dimension, but got scalar 'loss' in "
        "TPUEstimatorSpec.host_call: give it one, for example keras.ops.reshape(loss, [1])"
    )


def test_a_function_is_called_by_position_or_by_name():
    assert call_on_host("host_call", (two, [0, 0]), [1, 2]) == 3
    assert call_on_host("host_call", (two, {"b": 0, "a": 0}), {"b": 1, "a": 2}) == 3
    assert error_text(lambda: call_on_host("host_call", (two, {"c": 0}), {"c": 1}), kind=EstimatorError) == (
        "the tensors of TPUEstimatorSpec.host_call are named ['c'], and two takes (a, b): the names of the dictionary "
        "must be those of its arguments"
    )
