"""The job that the environment describes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from anytpu.errors import HostsError
from anytpu.system.job import HostJob
from anytpu.system.launchers import cluster_name, find_job

SLURM = {
    "SLURM_JOB_ID": "4100",
    "SLURM_STEP_NODELIST": "node[07-08]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
LAUNCHED = {"ANYTPU_COORDINATOR": "127.0.0.1:4321", "ANYTPU_PROCESSES": "4", "ANYTPU_PROCESS": "2"}


def found(patch: pytest.MonkeyPatch, variables: dict[str, str]) -> HostJob | None:
    for name, value in variables.items():
        patch.setenv(name, value)
    return find_job()


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        (LAUNCHED, HostJob("127.0.0.1:4321", 4, 2, "anytpu launch")),
        ({**LAUNCHED, "ANYTPU_PROCESSES": "1", "ANYTPU_PROCESS": "0"}, None),
        (SLURM, HostJob("node07:61448", 2, 1, "Slurm")),
        ({**SLURM, "JAX_COORDINATOR_PORT": "9000"}, HostJob("node07:9000", 2, 1, "Slurm")),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2"}, HostJob("node07:61448", 2, 1, "Slurm", local_index=0)),
        ({**SLURM, "SLURM_NTASKS": "1"}, None),
        ({name: SLURM[name] for name in SLURM if name != "SLURM_STEP_NODELIST"}, None),
        (OPEN_MPI, HostJob("10.96.0.1:62624", 4, 3, "Open MPI", local_index=1)),
    ],
)
def test_a_found_job(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], job: HostJob | None):
    assert found(monkeypatch, variables) == job


def test_open_mpi_5_does_not_say_where_its_processes_meet(monkeypatch: pytest.MonkeyPatch):
    variables = {name: value for name, value in OPEN_MPI.items() if name != "OMPI_MCA_orte_hnp_uri"}
    with pytest.raises(HostsError) as caught:
        found(monkeypatch, variables)
    assert str(caught.value) == (
        "Open MPI started several processes, but JAX does not find the address of the first. Join them before the "
        'first use of a device: tpu.join_hosts("host:port", processes, index)'
    )


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"}, "gketpu"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, "gketpu"),
        ({"TPU_SKIP_MDS_QUERY": "1"}, None),
        ({}, "gcetpu"),
    ],
)
def test_a_machine_with_a_tpu(variables: dict[str, str], name: str | None):
    assert cluster_name(variables, has_tpu=True) == name
    assert cluster_name(variables, has_tpu=False) is None


def test_a_search_on_a_machine_without_a_launcher_loads_no_jax():
    program = "from anytpu.system.launchers import find_job; import sys; print(find_job(), 'jax' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout == "None False\n", run.stderr
