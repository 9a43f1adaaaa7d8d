"""A Slurm cluster of two nodes on this machine: a real slurmctld and two real slurmd.

Both nodes are this machine. The first, in the order of names too, has its name: a job meets there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HOST = socket.gethostname().partition(".")[0]
DAEMONS = ("slurmctld", "slurmd", "sbatch")
NODES = (HOST, "zz2")

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=sched_interval=1
PlugStackConfig=/dev/null
SlurmdParameters=config_overrides
KillWait=10
NodeName={nodes[0]} NodeHostName={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName={nodes[1]} NodeHostName={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """The commands of a running cluster; `folder` is the working folder of the jobs."""

    def __init__(self, folder: Path, configuration: Path) -> None:
        self.folder = folder
        self._settings = {**os.environ, "SLURM_CONF": str(configuration)}
        self._hastened: set[tuple[str, int]] = set()

    def command(self, *words: str) -> str:
        """Run a Slurm command and return what it printed."""
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.folder, env=self._settings, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, text: str, *options: str) -> str:
        """Submit a job file, and return the number of the job."""
        (self.folder / "job.sbatch").write_text(text)
        return self.command("sbatch", "--parsable", *options, "job.sbatch")

    def state(self, job: str) -> tuple[str, str, int]:
        """Return the state of a job, its status like "1:0", and how often it was queued again."""
        fields = dict(
            word.split("=", 1) for word in self.command("scontrol", "show", "job", job).split() if "=" in word
        )
        return fields["JobState"], fields["ExitCode"], int(fields["Restarts"])

    def end(self, job: str) -> tuple[str, str, int]:
        """Wait until a job has ended, and return its state."""
        until(lambda: self._has_ended(job))
        return self.state(job)

    def _has_ended(self, job: str) -> bool:
        state, _, restarts = self.state(job)
        if state == "PENDING" and restarts and (job, restarts) not in self._hastened:
            # A job that is queued again waits for two minutes. slurmd refuses a start within the second in which the
            # job's last run ended: it takes it for a late message of that run.
            with contextlib.suppress(AssertionError):
                self.command("scontrol", "update", f"JobId={job}", "StartTime=now+3")
                self._hastened.add((job, restarts))
        return state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster, and end it with its jobs."""
    slurm = folder / "slurm"
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (slurm / name).mkdir(parents=True)
    (folder / "jobs").mkdir()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for probe in sockets:
            probe.bind(("", 0))
        ports = [probe.getsockname()[1] for probe in sockets]
    user = os.environ.get("USER") or "root"
    text = _CONFIGURATION.format(folder=slurm, host=HOST, user=user, ports=ports, nodes=NODES)
    configuration = slurm / "slurm.conf"
    configuration.write_text(text)
    started: list[subprocess.Popen[bytes]] = []
    made = Cluster(folder / "jobs", configuration)
    try:
        for words in (["slurmctld"], *(["slurmd", "-N", node] for node in NODES)):
            command = [shutil.which(words[0]) or words[0], "-D", "-f", str(configuration), *words[1:]]
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        until(lambda: _is_ready(made), limit_s=30)
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.command("scancel", f"--user={user}")
            until(lambda: not made.command("squeue", "--noheader", "--states=RUNNING,COMPLETING"), limit_s=30)
        for process in started:
            process.kill()
            process.wait()


def _is_ready(made: Cluster) -> bool:
    try:
        return made.command("sinfo", "--noheader", "--format=%D %t") == "2 idle"
    except AssertionError:
        return False


def until(is_true: Callable[[], object], limit_s: float = 240) -> None:
    """Wait until something is true."""
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.1)
