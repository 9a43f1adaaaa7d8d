from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, EstimatorError
from anytpu.migrate.estimator.deployment import Deployment
from anytpu.migrate.estimator.inputs import HostBatches, pad_rows, split_rows
from error_texts import error_text

X, Y = np.arange(10.0, dtype="float32")[:, None], np.arange(10)
P = tpu.InputPipelineConfig


@pytest.fixture(scope="module")
def strategy() -> Any:
    return tpu.connect("virtual", cores=2)


def batches(strategy: Any, input_fn: Any, mode: str = "train", rows: int = 4, pipeline: Any = P.PER_HOST_V1) -> Any:
    return HostBatches(input_fn, Deployment(mode, strategy, True, rows, pipeline), {"key": 1}, tpu.RunConfig())


def labels(iterator: Any, most: int = 20) -> list[list[int]]:
    return [batch[1].tolist() for batch, _ in zip(iterator, range(most), strict=False)]


def test_arrays_go_on_for_ever_in_training(strategy):
    assert labels(batches(strategy, lambda params: (X, Y)), 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_arrays_are_gone_through_once_otherwise(strategy):
    assert labels(batches(strategy, lambda params: (X, Y), "infer")) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_features_alone(strategy):
    features, nothing = next(batches(strategy, lambda params: {"x": X}, "infer"))
    assert features["x"].shape == (4, 1)
    assert nothing is None


def test_a_generator_function(strategy):
    def input_fn(params):
        for start in range(0, 8, params["batch_size"]):
            yield X[start : start + 4], Y[start : start + 4]

    assert labels(batches(strategy, input_fn)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_data_set(strategy):
    def input_fn(params):
        return tpu.pipeline.Dataset.from_arrays((X, Y)).batch(params["batch_size"], drop_remainder=True)

    assert labels(batches(strategy, input_fn)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_it_is_called_with_what_it_names_a26(strategy):
    seen = {}

    def input_fn(params, mode, config):
        seen.update(params=params, mode=mode, config=config)
        return X, Y

    batches(strategy, input_fn, "eval")
    assert (seen["params"]["key"], seen["params"]["batch_size"], seen["mode"]) == (1, 4, "eval")
    assert seen["params"]["context"].num_replicas == 2
    assert seen["config"] == tpu.RunConfig()


def test_one_call_a_replica_a26(strategy):
    def input_fn(params):
        _, number, calls, _ = params["context"].current_input_fn_deployment()
        return [(X[:2] + number, np.array([number, calls, params["batch_size"]])[:2])] * 3

    found = list(batches(strategy, input_fn, pipeline=P.PER_SHARD_V1))
    assert [batch[1].tolist() for batch in found] == [[0, 2, 1, 2]] * 3
    assert found[0][0].ravel().tolist() == [0, 1, 1, 2]


def test_batches_of_one_replica_after_the_other_a26(strategy):
    def input_fn(params):
        return tpu.pipeline.Dataset.from_arrays((X, Y)).batch(params["batch_size"])

    assert labels(batches(strategy, input_fn, pipeline=P.PER_HOST_V2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert labels(batches(strategy, input_fn, "infer", pipeline=P.PER_HOST_V2))[-1] == [8, 9]


def test_a_position_goes_on_where_it_was_saved(strategy):
    def input_fn(params):
        rows = tpu.pipeline.Dataset.from_arrays((X, Y)).shuffle(seed=3).repeat()
        return rows.batch(params["batch_size"], drop_remainder=True)

    for function in (input_fn, lambda params: (X, Y)):
        first, second = batches(strategy, function), batches(strategy, function)
        next(first)
        assert second.go_to(first.position())
        assert labels(second, 4) == labels(first, 4)


def test_a_position_in_arrays_belongs_to_their_rows(strategy):
    first = batches(strategy, lambda params: (X, Y))
    next(first)
    position = first.position()
    assert position["states"] == [{"batches": 1, "rows": len(X), "batch_size": 4}]
    assert batches(strategy, lambda params: (X, Y)).go_to(position)
    assert not batches(strategy, lambda params: (X[:-1], Y[:-1])).go_to(position)
    dataset = tpu.pipeline.Dataset.from_arrays((X, Y)).batch(4)
    other = batches(strategy, lambda params: dataset)
    next(other)
    assert not batches(strategy, lambda params: (X, Y)).go_to(other.position())


def test_who_has_no_position_starts_again(strategy):
    def generator(params):
        yield from [(X[:4], Y[:4])] * 2

    made = batches(strategy, generator)
    next(made)
    assert made.position() is None
    assert not batches(strategy, lambda params: (X, Y)).go_to({"input_fn": "another", "states": [{"batches": 1}]})


def test_there_is_no_position_behind_the_end(strategy):
    made = batches(strategy, lambda params: (X, Y), "infer")
    assert len(labels(made)) == 3
    assert made.position() is None


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda params: 7,
            "input_fn must return a data set, such as a tpu.pipeline.Dataset of batches (features, labels), another "
            "iterable of batches, or the arrays (features, labels), not 7",
        ),
        (
            lambda params: [(X, Y, Y)],
            "a batch of input_fn is (features, labels), or features alone, not a tuple of 3: put several features into "
            "a dictionary",
        ),
        (
            lambda params: (X[:3], Y[:3]),
            "input_fn returns arrays of 3 rows, and a batch has 4: pass more rows, or a smaller batch size",
        ),
    ],
)
def test_what_an_input_fn_may_not_return(strategy, made, message):
    assert error_text(lambda: next(batches(strategy, made)), kind=EstimatorError) == message


def test_strings_are_refused_by_name(strategy):
    with pytest.raises(DataError, match=r"^features\['name'\] holds <U1, which no TPU computes with"):
        next(batches(strategy, lambda params: [({"name": np.array(["a", "b"])}, Y[:2])]))


def test_params_are_needed_a28(strategy):
    def input_fn():
        return X, Y

    assert error_text(lambda: batches(strategy, input_fn), kind=EstimatorError) == (
        "input_fn (input_fn) does not include params argument, required by TPUEstimator to pass batch size as "
        'params["batch_size"]: write def input_fn(params)'
    )


def test_rows_along_another_axis():
    leaf = np.arange(12).reshape(3, 4)
    assert split_rows(leaf, 2, axis=1).tolist() == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]
    assert pad_rows(leaf, 4)[3].tolist() == [8, 9, 10, 11]
