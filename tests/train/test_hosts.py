"""Two processes with two devices each compute what one process with four cores computes, through every front door."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from forked import launch, python

TESTS = Path(__file__).parents[1]


def start(*words: str | Path, **variables: str) -> subprocess.Popen:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
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
    one = start(*python(), program, alone, JAX_ENABLE_X64="1")
    several = start(*launch(2, 2), program, together, JAX_ENABLE_X64="1")
    ended(one)
    output = ended(several)

    assert (together / "fit.weights.h5").exists()
    assert "[0] anytpu: 2 hosts joined at 127.0.0.1:" in output
    expected = np.load(alone / "0.npz")
    for index in range(2):
        found = np.load(together / f"{index}.npz")
        assert found.files == expected.files
        for name in expected.files:
            # One summation order differs from another in float64.
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.timeout(900)
def test_four_processes_compute_the_numbers_of_one(tmp_path: Path):
    """One case, `fit`, on eight cores: four processes with two each, and one process."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    program, variables = TESTS / "hosts_program.py", {"JAX_ENABLE_X64": "1", "CASES": "fit", "CORES": "8"}
    one = start(*python(), program, alone, **variables)
    ended(start(*launch(4, 2), program, together, **variables))
    ended(one)

    expected = np.load(alone / "0.npz")["fit"]
    for index in range(4):
        np.testing.assert_allclose(np.load(together / f"{index}.npz")["fit"], expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The weights of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    ended(start(*launch(2, 2), TESTS / "hosts_checkpoints.py", folder / "run", folder / "result", SEED="3"))
    results = [np.load(folder / f"result.{index}.npz") for index in range(2)]
    assert [int(each["steps"]) for each in results] == [40, 40]
    np.testing.assert_array_equal(results[0]["weights"], results[1]["weights"])
    return results[0]["weights"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "status", "saves"),
    [
        pytest.param(signal.SIGTERM, 75, 1, id="SIGTERM stops all hosts after the same step"),
        pytest.param(signal.SIGKILL, 128 + 9, 0, id="SIGKILL ends all hosts"),
    ],
)
def test_a_job_that_a_signal_to_one_process_ended_continues_bit_for_bit(
    tmp_path: Path, whole_run: np.ndarray, number: signal.Signals, status: int, saves: int
):
    program = TESTS / "hosts_checkpoints.py"
    output = ended(
        start(*launch(2, 2), program, tmp_path / "run", tmp_path / "stopped", "24", str(int(number)), SEED="3"), status
    )

    # No seed: process 0 chooses the random state, and the checkpoint replaces it.
    ended(start(*launch(2, 2), program, tmp_path / "run", tmp_path / "resumed"))

    assert output.count("is saved in") == saves
    for index in range(2):
        resumed = np.load(tmp_path / f"resumed.{index}.npz")
        assert int(resumed["steps"]) == 40
        np.testing.assert_array_equal(resumed["weights"], whole_run)


@pytest.mark.timeout(900)
def test_the_number_of_hosts_may_change_at_a_resume(tmp_path: Path):
    program, variables = TESTS / "hosts_checkpoints.py", {"SEED": "3", "COUNTS": "1", "JAX_ENABLE_X64": "1"}
    whole, run, fewer, more = (tmp_path / name for name in ("whole", "run", "fewer", "more"))
    ended(start(*launch(2, 2), program, whole / "run", tmp_path / "whole", **variables))
    ended(start(*launch(2, 2), program, run, tmp_path / "stopped", "14", str(int(signal.SIGTERM)), **variables), 75)
    for copy in (fewer, more):
        shutil.copytree(run, copy)
    resumed = {
        1: start(*python(), program, fewer, tmp_path / "fewer", **variables),
        4: start(*launch(4, 1), program, more, tmp_path / "more", **variables),
    }
    for process in resumed.values():
        ended(process)

    expected = np.load(tmp_path / "whole.0.npz")["weights"]
    # Each of four epochs trains on each example once.
    assert np.sum(expected == 4) >= 40
    for path in [tmp_path / "fewer.0.npz", *(tmp_path / f"more.{index}.npz" for index in range(4))]:
        found = np.load(path)
        assert int(found["steps"]) == 40
        np.testing.assert_allclose(found["weights"], expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(found["weights"] == 4, expected == 4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "model.fit(x + jax.process_index(), x, epochs=1, verbose=0)",
            "anytpu.errors.HostsError: host 1 of 2 put other data or weights on the cores than host 0. Every host must "
            "run the same program on the same arrays, with the same random seed: call keras.utils.set_random_seed(7) "
            "first",
        ),
        (
            "model.fit(x[: 8 - 4 * jax.process_index()], x[: 8 - 4 * jax.process_index()], epochs=1, verbose=0)",
            "anytpu.errors.HostsError: host 1 of 2 compiled another program than host 0 as 'sequential/train'. Every "
            "host must run the same script, with the same arguments and the same versions of JAX and Keras",
        ),
        (
            "tpu.rewrite(lambda: 1.0)",
            "anytpu.errors.HostsError: the cores belong to 1 of the 2 hosts, and all hosts of a job run the program: "
            "use all cores, tpu.connect()",
        ),
    ],
    ids=["data", "program", "one core of all"],
)
def test_hosts_that_do_not_run_one_program_are_refused(tmp_path: Path, program: str, why: str):
    script = tmp_path / "differs.py"
    script.write_text(
        "import anytpu as tpu\nimport jax\nimport keras\nimport numpy as np\n"
        "strategy = tpu.connect()\nx = np.ones((8, 1), 'float32')\n"
        "with strategy.scope():\n    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        f"    model.compile('sgd', 'mse')\n{program}\n{program}\n"
    )

    output = ended(start(*launch(2, 2), script), status=1)

    assert why in output
