from __future__ import annotations

import pytest

import anytpu as tpu
from anytpu.errors import SettingError


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
    with pytest.raises(SettingError) as caught:
        tpu.RunConfig(**given)
    assert str(caught.value) == message
