"""The job of several processes that the environment describes: `anytpu launch`, Slurm, Open MPI, a TPU pod or GKE.

Idea: JAX knows how each cluster names its processes. But its search imports JAX, and may query a metadata server. So
variables decide first whether there can be several processes. On any other machine the search costs microseconds.

Rule: a job of one process is none.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from anytpu import _env, _jax
from anytpu.errors import HostsError
from anytpu.system.job import HostJob

JOB_PORT = "8476"
"""Port of a TPU pod's job, which the usual firewall rules of TPU machines open."""

_FIRST_PORT, _STEP_PORTS, _STEP_STRIDE = 61440, 2048, 509
"""Above the ephemeral ports of Linux; 509 is prime, so that steps of a job and jobs in a row differ."""
_METADATA = ("metadata.google.internal", 80)
_METADATA_S = 2.0
_NAME_S = 300
_SOURCES = {"slurm": "Slurm", "ompi": "Open MPI", "gketpu": "GKE", "gcetpu": "TPU pod"}


def find_job() -> HostJob | None:
    """Return the job that the environment describes, or None if this is the only process.

    Raises:
        SettingError: a variable of `anytpu launch` has an invalid value.
        HostsError: Slurm or Open MPI started several processes, but JAX does not find where they meet.
    """
    launched = _env.launched_process()
    if launched is not None:
        if launched.processes == 1:
            return None
        return HostJob(launched.coordinator, launched.processes, launched.index, "anytpu launch")
    variables = _env.job_variables()
    name = cluster_name(variables, has_tpu=_env.tpu_chips() > 0 and _env.has_libtpu())
    if name is None or (name == "gcetpu" and not _has_metadata()):
        return None
    ports = {"slurm": _port_of_step(variables)} if name == "slurm" else {"gketpu": JOB_PORT, "gcetpu": JOB_PORT}
    port = variables.get("JAX_COORDINATOR_PORT") or ports.get(name)
    cluster = _jax.cluster(name, port, _NAME_S)
    if cluster is None:
        if name == "gcetpu":
            return None
        raise HostsError(
            f"{_SOURCES[name]} started several processes, but JAX does not find the address of the first. Join them "
            'before the first use of a device: tpu.join_hosts("host:port", processes, index)'
        )
    address, processes, index, local_index = cluster
    local_index = local_index if shares_machine(variables) else None
    return HostJob(address, processes, index, _SOURCES[name], local_index) if processes > 1 else None


def cluster_name(variables: Mapping[str, str], has_tpu: bool) -> str | None:
    """Return JAX's name of the cluster of which the variables say, or may say, that there are several processes.

    Args:
        variables: the environment variables that describe a job.
        has_tpu: whether this machine has a TPU that JAX can use.

    Example:
        >>> cluster_name({"SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_NTASKS": "2"}, has_tpu=False)
        'slurm'
    """
    if _number(variables.get("OMPI_COMM_WORLD_SIZE")) > 1:
        return "ompi"
    # Only `srun` sets the list of a step's nodes. A batch script is one process, whatever its number of tasks.
    is_step = {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= variables.keys()
    if is_step and _number(variables.get("SLURM_NTASKS")) > 1:
        return "slurm"
    if not has_tpu:
        return None
    names = variables.get("TPU_PROCESS_ADDRESSES", variables.get("TPU_WORKER_HOSTNAMES"))
    if names is not None:
        return "gketpu" if "," in names or _number(variables.get("MEGASCALE_NUM_SLICES")) > 1 else None
    return None if "TPU_SKIP_MDS_QUERY" in variables else "gcetpu"


def _port_of_step(variables: Mapping[str, str]) -> str:
    """Return the port of a step of Slurm.

    JAX's own port is that of the job. Two steps of one job may run at once. A job needs the next port too, which would
    be that of the next task of an array.
    """
    job, step = (_number(variables.get(name)) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return str(_FIRST_PORT + 2 * ((job + _STEP_STRIDE * step) % _STEP_PORTS))


def shares_machine(variables: Mapping[str, str]) -> bool:
    """Return whether Slurm or Open MPI started several processes on this machine, so that each uses one GPU.

    Example:
        >>> shares_machine({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"})
        True
    """
    counts = (variables.get(name) for name in ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"))
    return any(_number((count or "").partition("(")[0]) > 1 for count in counts)


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() else 0


def _has_metadata() -> bool:
    """Return whether this machine has Google's metadata server. JAX would ask it for six minutes."""
    try:
        socket.create_connection(_METADATA, timeout=_METADATA_S).close()
    except OSError:
        return False
    return True
