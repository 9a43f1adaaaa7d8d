"""The job file of Slurm in a real cluster: signals, restarts, statuses, arrays and steps."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anytpu.launch.jobs import EngineJob, engine_named, job_file
from launch.slurm_cluster import DAEMONS, Cluster, cluster, until

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, DAEMONS)), reason="Slurm is not installed: apt-get install slurm-wlm"
)

PROGRAM = Path(__file__).parents[1] / "hosts_checkpoints.py"
SAVES = """
import os, signal, sys, time
index, count = os.environ["SLURM_PROCID"], os.environ.get("SLURM_RESTART_COUNT", "0")
name = os.environ.get("SLURM_ARRAY_TASK_ID", "job")
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("started", count, flush=True)
open(f"{name}-{index}-{count}", "w").close()
if count != "0":
    sys.exit(0)
while not stopped and not os.path.exists(f"go-{name}"):
    time.sleep(0.05)
time.sleep(0.5)
print("signals", len(stopped), flush=True)
sys.exit(75 if stopped else 0)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(autouse=True)
def emptied(slurm: Cluster) -> None:
    for path in slurm.folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def submit(slurm: Cluster, program: str, *options: str, hosts: int = 2, restarts: int | None = None) -> str:
    (slurm.folder / "train.py").write_text(program)
    job = EngineJob(["train.py"], hosts=hosts, restarts=restarts)
    return slurm.submit(job_file(engine_named("slurm"), job), *options)


def log(slurm: Cluster, job: str) -> list[str]:
    return sorted(line for path in slurm.folder.glob(f"*-{job}.log") for line in path.read_text().splitlines())


def has(slurm: Cluster, *names: str) -> bool:
    return all((slurm.folder / name).exists() for name in names)


@pytest.mark.parametrize(("restarts", "expected"), [(1, ("COMPLETED", "0:0", 1)), (0, ("FAILED", "75:0", 0))])
def test_a_signal_before_the_time_limit(slurm: Cluster, restarts: int, expected: tuple[str, str, int]):
    """The program saves its run after one signal; the job is queued again, at most as often as it may."""
    job = submit(slurm, SAVES, restarts=restarts)
    until(lambda: has(slurm, "job-0-0", "job-1-0"))
    slurm.command("scancel", "--batch", "--signal=TERM", job)
    assert slurm.end(job) == expected
    lines = log(slurm, job)
    assert [line for line in lines if "signals" in line] == ["0: signals 1", "1: signals 1"]
    assert ("0: started 1" in lines) == (restarts == 1)


def test_a_job_that_is_queued_again_by_slurm(slurm: Cluster):
    """A preemption saves the run, and the job is queued again once, not twice."""
    job = submit(slurm, SAVES)
    until(lambda: has(slurm, "job-0-0", "job-1-0"))
    slurm.command("scontrol", "requeue", job)
    assert slurm.end(job) == ("COMPLETED", "0:0", 1)
    lines = [line for line in log(slurm, job) if line[3:8] in ("start", "signa")]
    assert lines == [f"{host}: {text}" for host in (0, 1) for text in ("signals 1", "started 0", "started 1")]


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (
            "import os, sys, time; i = int(os.environ['SLURM_PROCID']); time.sleep(1 - i); sys.exit(3 if i else 69)",
            "3:0",
        ),
        (
            "import os, sys, time; i = int(os.environ['SLURM_PROCID']); time.sleep(1 - i); sys.exit(1 if i else 69)",
            "1:0",
        ),
        ("import os, sys; i = int(os.environ['SLURM_PROCID']); i and os.kill(os.getpid(), 9); sys.exit(69)", "137:0"),
        ("import sys; sys.exit(69)", "1:0"),
        ("import sys; sys.exit(75)", "75:0"),
    ],
)
def test_a_failure_has_the_status_of_its_host_and_is_final(slurm: Cluster, program: str, status: str):
    """Also status 75 without a signal: nobody asked the program to stop, so it would stop again."""
    assert slurm.end(submit(slurm, program)) == ("FAILED", status, 0)


def test_a_killed_step_is_final(slurm: Cluster):
    job = submit(slurm, SAVES)
    until(lambda: has(slurm, "job-0-0", "job-1-0"))
    slurm.command("scancel", "--signal=KILL", f"{job}.0")
    assert slurm.end(job) == ("FAILED", "137:0", 0)


def test_a_signal_to_one_task_of_an_array_leaves_the_others(slurm: Cluster):
    array = submit(slurm, SAVES, "--array=0-1", hosts=1)
    until(lambda: has(slurm, "0-0-0", "1-0-0"))
    # Its number may be that of the whole array.
    slurm.command("scancel", "--batch", "--signal=TERM", f"{array}_1")
    assert slurm.end(f"{array}_1") == ("COMPLETED", "0:0", 1)
    assert slurm.state(f"{array}_0")[0] == "RUNNING"
    (slurm.folder / "go-0").touch()
    assert slurm.end(f"{array}_0") == ("COMPLETED", "0:0", 0)


PLACES = """
import os, time
from anytpu.system.launchers import find_job
job = find_job()
with open(f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}-{os.environ['SLURM_PROCID']}", "w") as file:
    print(job and (job.index, job.processes, job.address.rpartition(":")[2], job.local_index), file=file)
"""


def test_steps_and_tasks_of_arrays_meet_at_ports_of_their_own(slurm: Cluster):
    (slurm.folder / "place.py").write_text(PLACES)
    python = f"{sys.executable} place.py"
    both = f"srun --nodes=2 --overlap {python} &\n"
    steps = f"#!/bin/bash\n{both}{both}srun --nodes=1 --ntasks=1 --overlap {python}\nwait\n"
    job = slurm.submit(steps, "--nodes=2", "--ntasks-per-node=1")
    assert slurm.end(job)[0] == "COMPLETED"
    found = {path.name: path.read_text().strip() for path in slurm.folder.glob(f"{job}.*")}
    alone = [text for text in found.values() if text == "None"]
    places = sorted(eval(text) for text in found.values() if text != "None")
    assert len(alone) == 1 and [place[:2] for place in places] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert len({place[2] for place in places}) == 2 and {place[3] for place in places} == {None}


@pytest.mark.timeout(600)
def test_a_killed_step_and_a_preemption_continue_bit_for_bit(slurm: Cluster):
    """A step is killed, and its job is submitted again; that one is preempted, and continues by itself."""

    def fit(folder: str, *words: str) -> str:
        job = EngineJob([str(PROGRAM), folder, folder, *words], hosts=2)
        return slurm.submit(job_file(engine_named("slurm"), job), "--export=ALL,SEED=3,JAX_PLATFORMS=cpu")

    assert slurm.end(fit("whole"))[:2] == ("COMPLETED", "0:0")
    assert slurm.end(fit("run", "14", str(int(signal.SIGKILL)))) == ("FAILED", "137:0", 0)
    job = fit("run", "24", str(int(signal.SIGSTOP)))
    until(lambda: any(map(_is_stopped, Path("/proc").glob("[0-9]*/stat"))))
    slurm.command("scontrol", "requeue", job)
    # Slurm's signal goes to each process of the step, and continues the one that was stopped: the run is saved.
    until(lambda: any("is saved in" in line for line in log(slurm, job)), limit_s=60)
    assert slurm.end(job) == ("COMPLETED", "0:0", 1)
    for index in range(2):
        run, whole = (np.load(slurm.folder / f"{name}.{index}.npz") for name in ("run", "whole"))
        assert int(run["steps"]) == int(whole["steps"]) == 40
        np.testing.assert_array_equal(run["weights"], whole["weights"])


def _is_stopped(path: Path) -> bool:
    try:
        return path.read_text().rpartition(")")[2].split()[0] == "T" and str(PROGRAM).encode() in (
            path.with_name("cmdline").read_bytes()
        )
    except OSError:
        return False
