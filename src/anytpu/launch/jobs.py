"""Text for the launchers of other machines: `batch_job` for Slurm, and `slice_command` for the hosts of a TPU slice.

Idea: both start one process on each host, and the processes find each other: JAX reads Slurm's variables, or the
metadata of the TPU slice.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from anytpu._restarts import STOPPED_STATUS
from anytpu.errors import SettingError

NOTICE_S = 120
"""Seconds before the time limit at which Slurm sends SIGTERM, so that the program can save its run."""
WAIT_S = 300
"""Seconds from the first end of a process to that of the job. JAX waits as long for the others when a process ends."""
MAX_RESTARTS = 100
"""Number of times that a job is queued again after the program saved its run, as of `anytpu run --max-preemptions`."""

_SLICE_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")

_BATCH_JOB = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@{notice_s}

# One process on each node uses all GPUs of the node. Without this variable JAX gives it one.
if [ -n "${{SLURM_GPUS_ON_NODE:-}}" ]; then
    export JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
fi

# When one process fails, the others end by themselves. They may be saving the run, so Slurm waits before it ends them.
srun --kill-on-bad-exit=0 --wait={wait_s} --label {command}
status=$?

# The program saved its run on a signal: continue it in a new job. A failure ends the job: the hosts that end because of
# another one have another status.
if [ "$status" -eq {stopped_status} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {max_restarts} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def batch_job(command: Sequence[str], nodes: int, name: str) -> str:
    """Return the text of a job file for `sbatch`.

    Args:
        command: the program and its arguments.
        nodes: number of nodes; each runs one process.
        name: name of the job; characters that Slurm does not take in file names become "_".

    Example:
        >>> "--label python 'my train.py'" in batch_job(["python", "my train.py"], 4, "train")
        True
    """
    return _BATCH_JOB.format(
        name=re.sub(r"[^A-Za-z0-9_.-]", "_", name),
        nodes=nodes,
        notice_s=NOTICE_S,
        wait_s=WAIT_S,
        command=shlex.join(command),
        stopped_status=STOPPED_STATUS,
        max_restarts=MAX_RESTARTS,
    )


def slice_command(name: str, zone: str | None, command: Sequence[str]) -> str:
    """Return the shell command that runs a program on every host of a TPU slice.

    Args:
        name: name of the TPU VM.
        zone: its zone; None: gcloud's own setting.
        command: the program and its arguments, as on the hosts.

    Raises:
        SettingError: the name or the zone has another form.

    Example:
        >>> slice_command("my-tpu", "us-west4-a", ["python3", "train.py"])
        "gcloud compute tpus tpu-vm ssh my-tpu --zone=us-west4-a --worker=all --command='python3 train.py'"
    """
    if not _SLICE_NAME.fullmatch(name):
        raise SettingError(
            f"the name of a TPU VM has lower-case letters, digits and dashes, and starts with a letter, not {name!r}. "
            "Type: gcloud compute tpus tpu-vm list --zone=-"
        )
    if zone is not None and not _ZONE.fullmatch(zone):
        raise SettingError(
            f"a zone looks like us-west4-a, not {zone!r}. Type: gcloud compute tpus tpu-vm list --zone=-"
        )
    place = [] if zone is None else [f"--zone={zone}"]
    words = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", name, *place, "--worker=all"]
    return f"{shlex.join(words)} --command={shlex.quote(shlex.join(command))}"
