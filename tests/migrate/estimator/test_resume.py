"""A run that is resumed is the run that was never stopped, bit for bit: weights, slots, seeds, and the data."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anytpu as tpu
from anytpu.train.checkpoint import Checkpoints, checkpoint_at
from estimator_samples import arrays, estimator, input_fn

pytestmark = pytest.mark.new_processes

HERE = Path(__file__).parent
STEPS = 20


def program() -> Any:
    spec = importlib.util.spec_from_file_location("resuming", HERE / "resuming.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    return checkpoint_at(program().run(str(folder), STEPS).model_dir).values


def check_same(values: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert sorted(values) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_two_estimators_one_after_the_other_p20(tmp_path, uninterrupted):
    program().run(str(tmp_path), 13)
    check_same(checkpoint_at(program().run(str(tmp_path), STEPS).model_dir).values, uninterrupted)


def test_one_estimator_in_two_calls_p20(tmp_path, uninterrupted):
    resuming = program()
    one = resuming.run(str(tmp_path), 7)
    one.evaluate(resuming.shuffled, steps=2)
    check_same(checkpoint_at(one.train(resuming.shuffled, max_steps=STEPS).model_dir).values, uninterrupted)


def test_a_position_of_other_data_is_not_taken(tmp_path, caplog):
    def by_replica(cores: int) -> Any:
        settings = {"per_host_input_for_training": tpu.InputPipelineConfig.PER_SHARD_V1}
        return estimator(tmp_path, cores=cores, tpu_config=settings)

    by_replica(4).train(input_fn, max_steps=4)
    with caplog.at_level(logging.WARNING, logger="anytpu"):
        by_replica(2).train(input_fn, max_steps=8)
        by_replica(2).train(lambda params: arrays(), max_steps=12)
    assert caplog.messages == [
        "The data start from the beginning. The checkpoint of step 4 holds a position for another input_fn "
        "('input_fn'), other arrays or another number of replicas (4).",
        "The data start from the beginning. The checkpoint of step 8 holds a position for another input_fn "
        "('input_fn'), other arrays or another number of replicas (2).",
    ]


def test_killed_in_the_middle_of_a_save_p20_p30(tmp_path, uninterrupted):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE.parents[1])])}
    command = [sys.executable, str(HERE / "resuming.py"), str(tmp_path), str(STEPS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        seen = []
        for line in child.stdout:
            seen.append(line.strip())
            if line == "saving 12\n":
                child.send_signal(signal.SIGKILL)
                break
        child.wait()
    assert child.returncode == -signal.SIGKILL
    last = int(seen[-2].removeprefix("saved "))
    there = Checkpoints(tmp_path)
    # What was being saved is not there, or, where it was quick, whole.
    assert there.latest() in (last, 12)
    there.load(there.latest() or 0)
    check_same(checkpoint_at(program().run(str(tmp_path), STEPS).model_dir).values, uninterrupted)
