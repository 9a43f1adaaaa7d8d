"""A run that is resumed is the run that was never stopped, bit for bit: weights, slots, seeds, and the data."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import anytpu as tpu
from anytpu.train.checkpoint import Checkpoints
from estimator_samples import arrays, check_same, estimator, input_fn
from migrate.estimator import resuming

pytestmark = pytest.mark.new_processes

HERE = Path(__file__).parent
STEPS = 20


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Any:
    return resuming.run(str(tmp_path_factory.mktemp("uninterrupted")), STEPS)


def test_two_estimators_one_after_the_other_p20(tmp_path, uninterrupted):
    resuming.run(str(tmp_path), 13)
    check_same(resuming.run(str(tmp_path), STEPS), uninterrupted)


def test_one_estimator_in_two_calls_p20(tmp_path, uninterrupted):
    one = resuming.run(str(tmp_path), 7)
    one.evaluate(resuming.shuffled, steps=2)
    check_same(one.train(resuming.shuffled, max_steps=STEPS), uninterrupted)


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
    check_same(resuming.run(str(tmp_path), STEPS), uninterrupted)
