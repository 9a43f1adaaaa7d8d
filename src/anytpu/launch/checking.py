"""Checks before a job is sent: the folder of its checkpoints, the engine's tool, and an edited file.

Rule: what can be known here is an error; what only the hosts know is a line on stderr.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from anytpu.errors import FileError, SettingError
from anytpu.launch.jobs import Engine
from anytpu.pipeline.remote_file import explained, file_system
from anytpu.pipeline.storage import is_remote

_PROBE = "anytpu-launch-was-here"
_CHECK_S = 300
_NO_ANSWER = re.compile(r"connection refused|was refused|unable to (connect|contact)|no such host|dial tcp", re.I)
"""What kubectl and sbatch print when no cluster answers."""


def check_checkpoint_dir(engine: Engine, folder: str) -> None:
    """Refuse a folder of checkpoints that the hosts do not share, or that cannot be written.

    Raises:
        SettingError: the hosts share no folder of this machine, or it is read-only.
        FileError: the bucket does not exist, or may not be written.
    """
    if not is_remote(folder):
        if not engine.shares_disk:
            raise SettingError(
                f"the hosts of {engine.name} share no disk, so the checkpoints cannot be in {folder!r}. Name a bucket, "
                "like --checkpoint-dir gs://BUCKET/FOLDER"
            )
        local = Path(folder.removeprefix("file://")).absolute()
        parent = next(path for path in (local, *local.parents) if path.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise SettingError(f"--checkpoint-dir {folder!r} cannot be written: {str(parent)!r} is no folder of yours")
        return
    try:
        with explained(folder, "write"):
            system, path = file_system(folder)
            system.pipe_file(f"{path}/{_PROBE}", b"")
            with contextlib.suppress(Exception):
                system.rm_file(f"{path}/{_PROBE}")
    except FileError as error:
        if not isinstance(error.__cause__, ImportError | ConnectionError):
            raise
        print(f"anytpu launch: --checkpoint-dir could not be checked from here: {error}", file=sys.stderr)


def has_tool(engine: Engine) -> bool:
    """Return whether the program that submits a job is on this machine."""
    return shutil.which(engine.tool) is not None


def check_file(engine: Engine, path: str) -> str:
    """Let the engine's own tool check a file, and return what it printed.

    Raises:
        SettingError: there is no such file, the tool is not installed, or it refuses the file.
    """
    if not Path(path).is_file():
        raise SettingError(f"there is no file {path!r} to check; write one with --output {path}")
    if engine.key == "xpk":
        _check_calls_of_xpk(path)
    command = shlex.split(engine.check.format(file=shlex.quote(path)))
    missing = next((tool for tool in (engine.tool, command[0]) if shutil.which(tool) is None), None)
    if missing is not None:
        raise SettingError(f"{missing} checks a file for {engine.name}, and is not installed: {engine.install}")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SettingError(f"`{shlex.join(command)}` did not end within {_CHECK_S} s") from None
    if done.returncode != 0 and _NO_ANSWER.search(done.stdout):
        raise SettingError(
            f"{engine.name} cannot be reached, so {path!r} was not checked. `{shlex.join(command)}` says:\n"
            f"{done.stdout.strip()}"
        )
    if done.returncode != 0:
        raise SettingError(
            f"{path!r} is no file that {engine.name} takes. `{shlex.join(command)}` says:\n{done.stdout.strip()}"
        )
    return done.stdout


def _check_calls_of_xpk(path: str) -> None:
    """Refuse a file that would ignore --dry-run: the check runs it, and it would submit the job."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if not re.match(r"\s*(#|$)", line)]
    calls = [line for line in lines if re.search(r"\bxpk\s", line)]
    if not calls or lines[-1] != calls[-1] or not all(line.endswith('"$@"') for line in calls):
        raise SettingError(
            f"the check runs {path!r} with --dry-run, and the file would ignore it and submit the job. End each call "
            'of xpk, and the last line, with "$@"'
        )
