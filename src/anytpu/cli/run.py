"""`anytpu run`: start a program, and start it again when it was pre-empted or crashed.

Idea: the program has this command's terminal and files, so its output passes through unchanged. It continues from its
own checkpoints. Signals are waited for, not handled: each is passed on once, and ends the restarts.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from anytpu import _env
from anytpu._restarts import reported_step
from anytpu.cli.command import Command, non_negative_integer
from anytpu.cli.restarts import End, Restarts
from anytpu.errors import SettingError

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_FROM_TERMINAL = 0x80
"""`si_code` of a signal that the kernel sent (SI_KERNEL): Ctrl-C at a terminal, which the program got too."""
_PASS_ON_S = 0.1
"""Seconds before a signal is passed on. A scheduler that sends it to both has ended the program by then: a second one
while Python shuts down would replace the program's exit status by the signal's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the budgets and the program."""
    parser.add_argument(
        "--max-restarts", metavar="N", type=non_negative_integer, default=3, help="restarts after crashes (default: 3)"
    )
    parser.add_argument(
        "--max-preemptions",
        metavar="N",
        type=non_negative_integer,
        default=100,
        help="restarts after pre-emptions: the program saved its run on a signal, or was killed (default: 100)",
    )
    parser.add_argument("program", metavar="PROGRAM", nargs="+", help="the program and its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    """Run the program until it succeeds, is stopped, or may not be restarted; return its exit status."""
    restarts = Restarts(arguments.max_restarts, arguments.max_preemptions)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOPPING, signal.SIGCHLD))
    try:
        with tempfile.TemporaryDirectory(prefix="anytpu-run-") as folder:
            step_file = Path(folder, "step")
            while True:
                process_id = _start(arguments.program, step_file, mask)
                status, is_stopped = _wait(process_id)
                if status == 0 or is_stopped:
                    return _as_shell(status)
                verdict = restarts.after(End(status, reported_step(step_file)))
                print(f"anytpu run: {verdict.reason}.", file=sys.stderr, flush=True)
                if verdict.pause_s is None:
                    return _as_shell(status)
                if (number := _signal_within(verdict.pause_s)) is not None:
                    return _as_shell(-number)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start(program: list[str], step_file: Path, mask: Collection[int]) -> int:
    # Python ignores these two signals; the program starts with the system's defaults.
    defaults = (signal.SIGPIPE, signal.SIGXFSZ)
    try:
        return os.posix_spawnp(program[0], program, _env.with_step_file(step_file), setsigmask=mask, setsigdef=defaults)
    except OSError as error:
        raise SettingError(
            f"the program {program[0]!r} cannot be started: {error.strerror}. Type a command that works alone after "
            "--, as in `anytpu run -- python train.py`"
        ) from error


def _wait(process_id: int) -> tuple[int, bool]:
    """Wait for the program; return its status, and whether a signal to this process stopped it."""
    is_stopped = False
    while True:
        received = signal.sigwaitinfo((*_STOPPING, signal.SIGCHLD))
        if received.si_signo in _STOPPING:
            is_stopped = True
            if received.si_code != _FROM_TERMINAL:
                signal.sigtimedwait((signal.SIGCHLD,), _PASS_ON_S)
                if os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    os.kill(process_id, received.si_signo)
        ended, status = os.waitpid(process_id, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), is_stopped


def _signal_within(seconds: float) -> int | None:
    """Wait, and return the number of the signal that ends the wait early, or None."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        received = signal.sigtimedwait(_STOPPING, left_s)
        if received is not None:
            return received.si_signo
    return None


def _as_shell(status: int) -> int:
    return status if status >= 0 else 128 - status


COMMAND = Command(
    name="run",
    summary="run a program, and restart it when it was pre-empted or crashed",
    description="""\
Run a program whose fit has checkpoint_dir, or whose loop has a tpu.Checkpointer.
It is started again if a signal ended it (a pre-emption) or if it crashed, and
continues from its newest checkpoint. The pause before a start grows from 1 s to
60 s, until there is a new checkpoint. Three equal ends in a row at one
checkpoint are final. Ctrl-C and SIGTERM are passed on and end the restarts.
The exit status is that of the program; 128 + N if the signal N killed it.

  anytpu run --max-restarts 3 -- python train.py
""",
    add_arguments=add_arguments,
    run=run,
)
