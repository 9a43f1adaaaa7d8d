from __future__ import annotations

import os
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from anytpu.errors import SettingError
from anytpu.launch.jobs import batch_job, slice_command

JOB = """\
#!/bin/bash
#SBATCH --job-name=my_train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@120

# One process on each node uses all GPUs of the node. Without this variable JAX gives it one.
if [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then
    export JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
fi

# When one process fails, the others end by themselves. They may be saving the run, so Slurm waits before it ends them.
srun --kill-on-bad-exit=0 --wait=300 --label python 'my train.py' --name 'it'"'"'s $HOME'
status=$?

# The program saved its run on a signal: continue it in a new job. A failure ends the job: the hosts that end because of
# another one have another status.
if [ "$status" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""
WORDS = ["python", "my train.py", "--name", "it's $HOME"]


def test_a_job_file():
    assert batch_job(WORDS, 4, "my train") == JOB


@pytest.mark.parametrize(
    ("status", "gpus", "expected"),
    [
        (69, None, ["srun", ""]),
        (0, None, ["srun", ""]),
        (1, "1", ["srun 0", ""]),
        (75, "8", ["srun 0,1,2,3,4,5,6,7", "scontrol requeue 17", ""]),
    ],
)
def test_bash_runs_a_job_file(tmp_path: Path, status: int, gpus: str | None, expected: list[str]):
    """Programs named srun and scontrol note how bash calls them."""
    record = tmp_path / "calls"
    programs = {
        "srun": f'echo "srun${{JAX_LOCAL_DEVICE_IDS:+ $JAX_LOCAL_DEVICE_IDS}}" >> {record}\nprintf "%s\\n" "$@"\n',
        "scontrol": f'echo "scontrol $*" >> {record}\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}exit {status if name == 'srun' else 0}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    job = tmp_path / "job"
    job.write_text(batch_job(WORDS, 4, "train"))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    environment |= {} if gpus is None else {"SLURM_GPUS_ON_NODE": gpus}
    done = subprocess.run(["bash", job], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.splitlines() == ["--kill-on-bad-exit=0", "--wait=300", "--label", *WORDS]
    assert record.read_text().split("\n") == expected


def test_a_job_that_is_queued_again_for_ever(tmp_path: Path):
    calls = tmp_path / "calls"
    for name, status in (("srun", 75), ("scontrol", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} >> {calls}\nexit {status}\n")
        (tmp_path / name).chmod(stat.S_IRWXU)
    for count in ("99", "100"):
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": count}
        subprocess.run(["bash", "-c", batch_job(WORDS, 4, "train")], env=environment, check=False)
    assert calls.read_text().split() == ["srun", "scontrol", "srun"]


def test_the_command_for_a_slice():
    text = slice_command("my-tpu", None, WORDS)
    words = shlex.split(text)
    assert words[:-1] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-tpu", "--worker=all"]
    # The shell of each host splits the command again.
    assert shlex.split(words[-1].removeprefix("--command=")) == WORDS


@pytest.mark.parametrize("name", ["", "My-tpu", "9tpu", "tpu-", "a b", "a;b", "x" * 64, "tpu\n"])
def test_a_bad_name_of_a_slice(name: str):
    with pytest.raises(SettingError) as caught:
        slice_command(name, None, WORDS)
    assert str(caught.value) == (
        "the name of a TPU VM has lower-case letters, digits and dashes, and starts with a letter, not "
        f"{name!r}. Type: gcloud compute tpus tpu-vm list --zone=-"
    )


@pytest.mark.parametrize("zone", ["", "us-west4", "us west4-a", "US-WEST4-A", "us-west4-a;ls", "-"])
def test_a_bad_zone(zone: str):
    with pytest.raises(SettingError) as caught:
        slice_command("my-tpu", zone, WORDS)
    assert str(caught.value) == (
        f"a zone looks like us-west4-a, not {zone!r}. Type: gcloud compute tpus tpu-vm list --zone=-"
    )
