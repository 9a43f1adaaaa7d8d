"""`anytpu launch`: run one program as several processes, here or, through Slurm or gcloud, on other machines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from anytpu import _env
from anytpu._launched import LaunchedProcess
from anytpu.cli.command import Command, positive_integer
from anytpu.errors import SettingError
from anytpu.files.replacing import replaced

_EXAMPLE = "as in `anytpu launch -n 4 train.py`"
_CORES = 2
_SLICE_PYTHON = "tpu/bin/python"
"""Python of the environment that docs/getting_a_tpu.md makes on each host."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the number of processes, the launchers of other machines and the program."""
    parser.add_argument(
        "-n", "--processes", metavar="N", type=positive_integer, help="number of processes; with --slurm, of nodes"
    )
    parser.add_argument(
        "--cores", metavar="N", type=positive_integer, help=f"CPU cores of each process (default: {_CORES})"
    )
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--slurm", action="store_true", help="print a job file for sbatch instead")
    engine.add_argument(
        "--tpu-vm", metavar="NAME", help="print the gcloud command that runs it on every host of this TPU VM instead"
    )
    parser.add_argument("--zone", metavar="ZONE", help="with --tpu-vm: its zone (default: gcloud's own)")
    parser.add_argument("--output", metavar="FILE", help="with --slurm: write the job file here")
    parser.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run this module, with the arguments after it, instead of a script",
    )
    parser.add_argument(
        "script", metavar="SCRIPT", nargs=argparse.REMAINDER, help="the Python script and its arguments"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the processes and return the exit status of the launch, or print or write a text for another launcher."""
    words = _words(arguments)
    _check_combination(arguments)
    if arguments.tpu_vm is not None:
        return _print_slice_command(arguments, words)
    if arguments.processes is None:
        raise SettingError(f"-n is missing, the number of processes, {_EXAMPLE}")
    if not arguments.module:
        _check_script(Path(words[0]))
    command = [sys.executable, *words]
    if arguments.slurm:
        return _write_batch_job(arguments, command)
    return _launch(command, arguments.processes, arguments.cores or _CORES)


def _words(arguments: argparse.Namespace) -> list[str]:
    """Return the words after `python`: the script or the module, and its arguments."""
    if arguments.module is not None:
        if not arguments.module or arguments.module[0].startswith("-"):
            raise SettingError("-m needs the name of a module, as in `anytpu launch -n 4 -m package.train`")
        return ["-m", *arguments.module]
    words = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    if not words:
        raise SettingError(f"the script is missing, {_EXAMPLE}")
    return words


def _check_combination(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    elsewhere = "--slurm" if arguments.slurm else "--tpu-vm" if arguments.tpu_vm is not None else None
    if arguments.cores is not None and elsewhere:
        raise SettingError(f"--cores is for processes of this machine, not for {elsewhere}: leave it out")
    if arguments.zone is not None and elsewhere != "--tpu-vm":
        raise SettingError("--zone is the zone of a TPU VM: name that with --tpu-vm, or leave it out")
    if arguments.output is not None and elsewhere != "--slurm":
        raise SettingError("--output is the job file of --slurm: add --slurm, or leave it out")
    if arguments.processes is not None and elsewhere == "--tpu-vm":
        raise SettingError(
            "-n does not go with --tpu-vm, which runs one process on each host of the slice: leave it out"
        )


def _check_script(path: Path) -> None:
    if not path.exists():
        raise SettingError(f"there is no file {str(path)!r}; name a Python script, {_EXAMPLE}")
    if path.is_dir():
        raise SettingError(f"{str(path)!r} is a folder; name a Python script, {_EXAMPLE}")


def _launch(command: list[str], processes: int, cores: int) -> int:
    from anytpu.launch.ports import free_port, is_taken
    from anytpu.launch.running import run_processes

    port = free_port()
    launched = [LaunchedProcess(f"127.0.0.1:{port}", processes, index) for index in range(processes)]
    status = run_processes(command, [_env.with_launched_process(process, cores) for process in launched])
    # All processes have ended, so the port is in use by another program.
    if status != 0 and is_taken(port):
        print(
            f"anytpu launch: another program has taken port {port}, which process 0 needs. Type the command again: it "
            "chooses another port",
            file=sys.stderr,
        )
    return status


def _print_slice_command(arguments: argparse.Namespace, words: list[str]) -> int:
    from anytpu.launch.jobs import slice_command

    if Path(words[0]).is_absolute():
        raise SettingError(
            f"{words[0]!r} is a path of this machine. Name the script relative to your home folder on the hosts, like "
            f"{Path(words[0]).name}"
        )
    print(slice_command(arguments.tpu_vm, arguments.zone, [_SLICE_PYTHON, *words]))
    return 0


def _write_batch_job(arguments: argparse.Namespace, command: list[str]) -> int:
    from anytpu.launch.jobs import batch_job

    name = arguments.module[0] if arguments.module else Path(arguments.script[0]).stem
    text = batch_job(command, arguments.processes, name)
    if arguments.output is None:
        print(text, end="")
        return 0
    path = Path(arguments.output)
    try:
        with replaced(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"the job file {arguments.output!r} cannot be written: {error.strerror}") from error
    print(f"wrote {path}. Submit it: sbatch {path}")
    return 0


COMMAND = Command(
    name="launch",
    summary="run one program as several processes, or on several hosts",
    description="""\
Run a Python script as N processes on this machine, each with CPU cores of its
own. `anytpu docs many_hosts` tells how they find each other.

Each line of output starts with the index of its process. The first process that
fails ends the others; its traceback is printed last, and the exit status is its
own (128 + N if the signal N killed it). Ctrl-C and SIGTERM are passed on once,
so that a checkpointed run is saved; a second one kills. Options come before the
script; words after it are its arguments.

--slurm prints a job file, with one process on each node. --tpu-vm prints one
gcloud command, with one process on each host of a slice.

  anytpu launch -n 4 --cores 2 train.py --epochs 3
  anytpu launch -n 4 -m package.train
  anytpu launch -n 4 --slurm --output train.sbatch train.py
  anytpu launch --tpu-vm my-tpu --zone us-west4-a train.py
""",
    add_arguments=add_arguments,
    run=run,
)
