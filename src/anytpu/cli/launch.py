"""`anytpu launch`: run one program as several processes, here or by the engine of other machines."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from anytpu import _env
from anytpu._launched import LaunchedProcess
from anytpu.cli.command import Command, non_negative_integer, positive_integer
from anytpu.errors import SettingError
from anytpu.files.replacing import replaced

if TYPE_CHECKING:
    from anytpu.launch.jobs import Engine

_EXAMPLE = "as in `anytpu launch -n 4 train.py`"
_CORES = 2
_ENGINES = ("local", "jobset", "xpk", "skypilot", "ray", "slurm", "tpu-vm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the number of processes, the engines of other machines and the program."""
    parser.add_argument(
        "-n", "--processes", metavar="N", type=positive_integer, help="number of processes, one on each host"
    )
    parser.add_argument(
        "--cores", metavar="N", type=positive_integer, help=f"CPU cores of each process here (default: {_CORES})"
    )
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument(
        "--to",
        metavar="ENGINE",
        choices=_ENGINES,
        help=f"write the file of this engine instead: {', '.join(_ENGINES[1:])} (default: local, run it here)",
    )
    # The spellings of version 0.1; they go with the next version.
    engine.add_argument("--slurm", action="store_true", help=argparse.SUPPRESS)
    engine.add_argument("--tpu-vm", metavar="NAME", help=argparse.SUPPRESS)
    _add_job(parser)
    file = parser.add_mutually_exclusive_group()
    file.add_argument("--output", metavar="FILE", help="write the engine's file here")
    file.add_argument("--explain", action="store_true", default=None, help="print what each line of it does instead")
    file.add_argument("--check", metavar="FILE", help="let the engine's own tool check this file, which you edited")
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


def _add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options of a job on other machines."""
    parser.add_argument("--tpu", metavar="SLICE", help="slice of TPUs, like v5e-16: one process on each of its hosts")
    parser.add_argument("--spot", action="store_true", default=None, help="spot machines, which may be taken back")
    parser.add_argument(
        "--checkpoint-dir", metavar="URL", help="folder that the program finds in the variable CHECKPOINT_DIR"
    )
    parser.add_argument(
        "--max-preemptions",
        metavar="N",
        type=non_negative_integer,
        help="restarts after pre-emptions (default: 100; ray: 3, and it counts failures too)",
    )
    parser.add_argument("--image", metavar="IMAGE", help="jobset, xpk: image with Python, anytpu[tpu] and the program")
    parser.add_argument(
        "--on", metavar="NAME", help="TPU VM (tpu-vm), cluster (xpk), Kueue queue (jobset) or partition (slurm)"
    )
    parser.add_argument("--zone", metavar="ZONE", help="zone of Google Cloud (default: the engine's own setting)")


def run(arguments: argparse.Namespace) -> int:
    """Run the processes and return the exit status of the launch, or print, write or check an engine's file."""
    to = _engine(arguments)
    if to == "local":
        _refuse_options_of_engines(arguments)
    elif arguments.cores is not None:
        raise SettingError(f"--cores is for processes of this machine, not for --to {to}: leave it out")
    if arguments.check is not None and to != "local":
        return _check_file(to, arguments.check)
    words = _words(arguments)
    if to != "local":
        return _write_job(to, arguments, words)
    if arguments.processes is None:
        raise SettingError(f"-n is missing, the number of processes, {_EXAMPLE}")
    if not arguments.module:
        _check_script(Path(words[0]))
    return _launch([sys.executable, *words], arguments.processes, arguments.cores or _CORES)


def _engine(arguments: argparse.Namespace) -> str:
    """Return the engine's name; say the new spelling of an old one."""
    if arguments.slurm:
        old, new, to = "--slurm", "--to slurm", "slurm"
    elif arguments.tpu_vm is not None:
        if arguments.on is not None:
            raise SettingError(f"--tpu-vm and --on both name the TPU VM; type: --to tpu-vm --on {arguments.on}")
        old, new, to = "--tpu-vm", f"--to tpu-vm --on {arguments.tpu_vm}", "tpu-vm"
        arguments.on = arguments.tpu_vm
    else:
        return arguments.to or "local"
    print(f"anytpu: {old} goes with the next version; type: {new}", file=sys.stderr)
    return to


def _refuse_options_of_engines(arguments: argparse.Namespace) -> None:
    names = ("tpu", "spot", "checkpoint_dir", "max_preemptions", "image", "on", "zone", "output", "check", "explain")
    given = next((name for name in names if getattr(arguments, name) is not None), None)
    if given is not None:
        raise SettingError(
            f"--{given.replace('_', '-')} is for an engine of other machines: name that with --to, or leave it out"
        )


def _words(arguments: argparse.Namespace) -> list[str]:
    """Return the words after `python`: the script or the module, and its arguments."""
    if arguments.module is not None:
        if not any(arguments.module[:1]) or arguments.module[0].startswith("-"):
            raise SettingError("-m needs the name of a module, as in `anytpu launch -n 4 -m package.train`")
        return ["-m", *arguments.module]
    words = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    if not words:
        raise SettingError(f"the script is missing, {_EXAMPLE}")
    return words


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


def _write_job(to: str, arguments: argparse.Namespace, words: list[str]) -> int:
    """Print the engine's file, write it, or explain it."""
    from anytpu.launch.checking import check_checkpoint_dir, has_tool
    from anytpu.launch.jobs import EngineJob, engine_named, job_file
    from anytpu.system.topologies import topology_of

    engine = engine_named(to)
    if not arguments.module:
        _check_script_for(engine, Path(words[0]))
    job = EngineJob(
        words,
        topology_of(arguments.tpu) if arguments.tpu is not None else None,
        hosts=arguments.processes,
        spot=arguments.spot,
        checkpoint_dir=arguments.checkpoint_dir,
        restarts=arguments.max_preemptions,
        image=arguments.image,
        place=arguments.on,
        zone=arguments.zone,
    )
    text = job_file(engine, job, bool(arguments.explain))
    if job.checkpoint_dir is not None and not arguments.explain:
        check_checkpoint_dir(engine, job.checkpoint_dir)
    if arguments.output is None:
        print(text, end="")
        return 0
    path = Path(arguments.output)
    module = Path(*words[1].split(".")) if arguments.module else Path(words[0])
    if any(_is_same(path, file) for file in (module, Path(f"{module}.py"), module / "__main__.py")):
        raise SettingError(f"--output {arguments.output!r} is the program itself: give the job file another name")
    try:
        with replaced(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"the job file {arguments.output!r} cannot be written: {error.strerror}") from error
    print(f"wrote {path}. Submit it: {engine.submit.format(file=shlex.quote(str(path)))}")
    if not has_tool(engine):
        print(f"anytpu launch: {engine.tool} is not on this machine: {engine.install}", file=sys.stderr)
    return 0


def _is_same(path: Path, other: Path) -> bool:
    return path.is_file() and other.is_file() and path.samefile(other)


def _check_script_for(engine: Engine, path: Path) -> None:
    if "relative" in engine.script and path.is_absolute() and path.name:
        raise SettingError(
            f"{str(path)!r} is a path of this machine. Name the script relative to the folder that the hosts get, like "
            f"{path.name}"
        )
    if "relative" in engine.script and ".." in path.parts:
        raise SettingError(
            f"{str(path)!r} is outside this folder, which the hosts get. Change to the folder of the script, and name "
            f"it {path.name}"
        )
    if "here" in engine.script or not path.name:
        _check_script(path)


def _check_file(to: str, file: str) -> int:
    from anytpu.launch.checking import check_file
    from anytpu.launch.jobs import engine_named

    print(check_file(engine_named(to), file), end="")
    print(f"{file} is a file that {engine_named(to).name} takes")
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

--to writes the file of an engine of other machines instead: short, commented
and complete. Each engine takes the options that it can honour, and refuses the
others. --explain says what each line of the file does.

  anytpu launch -n 4 --cores 2 train.py --epochs 3
  anytpu launch -n 4 -m package.train
  anytpu launch --to slurm -n 4 --output train.sbatch train.py
  anytpu launch --to tpu-vm --on my-tpu --zone us-west4-a train.py
  anytpu launch --to jobset --tpu v5e-16 --image IMAGE train.py
  anytpu launch --to jobset --check train.yaml
""",
    add_arguments=add_arguments,
    run=run,
)
