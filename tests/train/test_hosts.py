"""Two processes with two devices each compute what one process with four cores computes, through every front door."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
LAUNCH = [sys.executable, "-m", "anytpu", "launch", "-n", "2", "--cores", "2"]


def start(*words: str | Path, **variables: str) -> subprocess.Popen:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", **variables}
    return subprocess.Popen(
        [str(word) for word in words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process: subprocess.Popen, status: int = 0) -> str:
    output, _ = process.communicate()
    assert process.returncode == status, output
    return output


@pytest.mark.timeout(600)
def test_every_front_door_computes_the_numbers_of_one_process(tmp_path: Path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    program = TESTS / "hosts_program.py"
    one = start(sys.executable, program, alone, JAX_ENABLE_X64="1")
    several = start(*LAUNCH, program, together, JAX_ENABLE_X64="1")
    ended(one)
    output = ended(several)

    assert "[0] anytpu: 2 hosts joined at 127.0.0.1:" in output
    expected = np.load(alone / "0.npz")
    for index in range(2):
        found = np.load(together / f"{index}.npz")
        assert found.files == expected.files
        for name in expected.files:
            # One summation order differs from another in float64.
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.timeout(600)
def test_a_signal_to_one_process_stops_all_after_the_same_step_and_the_next_launch_continues(tmp_path: Path):
    program = TESTS / "hosts_checkpoints.py"
    whole = start(*LAUNCH, program, tmp_path / "whole", tmp_path / "expected", SEED="3")
    stopped = start(*LAUNCH, program, tmp_path / "run", tmp_path / "stopped", "14", SEED="3")
    ended(whole)
    output = ended(stopped, status=75)

    # No seed: process 0 chooses the random state, and the checkpoint replaces it.
    ended(start(*LAUNCH, program, tmp_path / "run", tmp_path / "resumed", "0"))

    assert output.count("is saved in") == 2
    expected = [np.load(tmp_path / f"expected.{index}.npz") for index in range(2)]
    resumed = [np.load(tmp_path / f"resumed.{index}.npz") for index in range(2)]
    assert [int(each["steps"]) for each in [*expected, *resumed]] == [40] * 4
    for each in [*expected[1:], *resumed]:
        np.testing.assert_array_equal(each["weights"], expected[0]["weights"])
