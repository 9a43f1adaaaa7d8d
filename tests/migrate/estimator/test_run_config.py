from __future__ import annotations

import pytest

import anytpu as tpu
from anytpu.errors import SettingError, SettingTypeError
from anytpu.migrate.estimator.run_config import LoopLength
from error_texts import error_text


def test_defaults_a24():
    config = tpu.RunConfig()
    assert config.tpu_config == tpu.TPUConfig()
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 600)
    assert (config.keep_checkpoint_max, config.log_step_count_steps) == (5, 100)


def test_evaluation_master_is_master_a24():
    assert tpu.RunConfig(master="virtual").evaluation_master == "virtual"


def test_one_interval_takes_the_place_of_the_other():
    config = tpu.RunConfig(save_checkpoints_steps=10)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (10, None)
    assert config.replace(model_dir="out").save_checkpoints_steps == 10
    assert tpu.RunConfig(save_checkpoints_steps=None).save_checkpoints_secs is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"master": "virtual", "cluster": tpu.TPUClusterResolver("virtual", cores=2)},
            "Both master and cluster are set. Leave master out: the cluster names the TPU",
        ),
        ({"cluster": "v2-8"}, "cluster must be a tpu.TPUClusterResolver, not 'v2-8'"),
        ({"tpu_config": 100}, "tpu_config must be a tpu.TPUConfig, not 100"),
        (
            {"save_checkpoints_steps": 10, "save_checkpoints_secs": 60},
            "save_checkpoints_steps is 10 and save_checkpoints_secs 60: pass one of the two",
        ),
        ({"save_checkpoints_steps": 0}, "RunConfig save_checkpoints_steps must be positive, got 0"),
        (
            {"master": "virtual", "evaluation_master": "v2-8"},
            "evaluation_master is 'v2-8' and master 'virtual': an estimator evaluates where it trains, or, with "
            "eval_on_tpu=False, on this machine. Leave evaluation_master out",
        ),
    ],
)
def test_what_is_refused(given, message):
    assert error_text(lambda: tpu.RunConfig(**given), kind=SettingError) == message


def test_defaults_a23():
    config = tpu.TPUConfig()
    assert config.iterations_per_loop == 2
    assert config.per_host_input_for_training is tpu.InputPipelineConfig.PER_HOST_V1
    assert config.experimental_host_call_every_n_steps == 1
    assert [member.value for member in tpu.InputPipelineConfig] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("given", "name"), [(True, "PER_HOST_V1"), (False, "PER_SHARD_V1"), (3, "PER_HOST_V2")])
def test_the_pipelines_of_old(given, name):
    assert tpu.TPUConfig(per_host_input_for_training=given).per_host_input_for_training.name == name


@pytest.mark.parametrize(("value", "steps", "seconds"), [(7, 7, 0), ("30s", None, 30), ("5m", None, 300)])
def test_iterations_per_loop(value, steps, seconds):
    assert LoopLength.of(value) == LoopLength(steps, seconds)


@pytest.mark.parametrize("value", [0, -3, "5d", "0s", "", 2.5, True, None, "1h30m"])
def test_iterations_per_loop_is_refused_a23(value):
    assert error_text(lambda: tpu.TPUConfig(iterations_per_loop=value), kind=SettingError) == (
        "Invalid TPUConfig `iterations_per_loop` value. Value must be positive integer value or time-based value "
        f'`<N><s|m|h>` but received {value!r}: type iterations_per_loop=100, or "30s", "5m", "1h"'
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_shards": 0}, "TPUConfig num_shards must be positive, got 0"),
        (
            {"num_cores_per_replica": 2},
            "num_cores_per_replica is 2 and input_partition_dims None, and a model runs on one core here: leave both "
            "out. Every core then has its own replica",
        ),
        (
            {"per_host_input_for_training": 9},
            "per_host_input_for_training must be True, False or one of tpu.InputPipelineConfig (PER_SHARD_V1, "
            "PER_HOST_V1, PER_HOST_V2, BROADCAST, SLICED), not 9",
        ),
        (
            {"eval_training_input_configuration": 3},
            "eval_training_input_configuration must be PER_HOST_V1 or SLICED; got 3. Leave it out",
        ),
    ],
)
def test_settings_of_the_cores_that_are_refused(given, message):
    assert error_text(lambda: tpu.TPUConfig(**given), kind=SettingError) == message


def test_a_number_that_is_no_integer():
    assert (
        error_text(lambda: tpu.TPUConfig(experimental_host_call_every_n_steps=1.5), kind=SettingTypeError)
        == "TPUConfig experimental_host_call_every_n_steps must be int, got float: 1.5"
    )
