from __future__ import annotations

from typing import Any

import pytest

import anytpu as tpu
from anytpu.errors import EstimatorError, SettingError
from anytpu.migrate.estimator.deployment import Deployment
from error_texts import error_text

P = tpu.InputPipelineConfig


@pytest.fixture(scope="module")
def strategy() -> Any:
    return tpu.connect("virtual", cores=4)


def deployment(
    strategy: Any, mode: str = "train", rows: int | None = 32, on_tpu: bool = True, pipeline: Any = P.PER_HOST_V1
):
    return Deployment(mode, strategy, on_tpu, rows, pipeline)


@pytest.mark.parametrize(
    ("mode", "pipeline", "input_rows"),
    [
        ("train", P.PER_SHARD_V1, 8),
        ("train", P.PER_HOST_V1, 32),
        ("train", P.PER_HOST_V2, 8),
        ("train", P.BROADCAST, 32),
        ("eval", P.PER_SHARD_V1, 32),
        ("eval", P.PER_HOST_V2, 8),
        ("infer", P.PER_HOST_V1, 32),
    ],
)
def test_batch_size_a26(strategy, mode, pipeline, input_rows):
    one = deployment(strategy, mode, pipeline=pipeline)
    assert one.input_params({}, 0)["batch_size"] == input_rows
    assert one.model_params({"rate": 1}) == {"rate": 1, "batch_size": 8, "use_tpu": True}


def test_off_the_tpu_both_see_the_global_batch_a35(strategy):
    one = deployment(strategy.part(1), on_tpu=False, pipeline=P.PER_SHARD_V1)
    assert one.input_params({}, 0) == {"batch_size": 32}
    assert one.model_params({}) == {"batch_size": 32, "use_tpu": False}


def test_the_context_of_an_input_fn_a26(strategy):
    one = deployment(strategy, pipeline=P.PER_SHARD_V1)
    context = one.input_params({}, 3)["context"]
    assert (context.num_replicas, context.num_hosts, context.current_host) == (4, 1, 0)
    assert context.current_input_fn_deployment() == ("/job:worker/replica:0/task:0/device:CPU:0", 3, 4, 1)
    whole = deployment(strategy).input_params({}, 0)["context"]
    assert whole.current_input_fn_deployment()[1:] == (0, 1, 4)


@pytest.mark.parametrize(
    ("mode", "rows", "message"),
    [
        (
            "train",
            30,
            "train batch size 30 must be divisible by number of replicas 4: pass train_batch_size=28 or 32",
        ),
        ("eval", 2, "eval batch size 2 must be divisible by number of replicas 4: pass eval_batch_size=4 or 8"),
        (
            "eval",
            None,
            "eval_batch_size in TPUEstimator constructor cannot be `None` if .evaluate is running on TPU. Pass "
            "eval_batch_size=32",
        ),
        (
            "infer",
            None,
            "predict_batch_size in TPUEstimator constructor cannot be `None` if .predict is running on TPU. Pass "
            "predict_batch_size=32",
        ),
    ],
)
def test_batch_sizes_that_are_refused_a27_a28(strategy, mode, rows, message):
    assert error_text(lambda: deployment(strategy, mode, rows).check(None), kind=EstimatorError) == message


def test_the_number_of_shards_is_checked_a28(strategy):
    deployment(strategy).check(4)
    assert error_text(lambda: deployment(strategy).check(8), kind=SettingError) == (
        "TPUConfig.num_shards is not set correctly. According to TPU system metadata there are 4 replicas, and "
        "num_shards is 8: leave num_shards out"
    )
