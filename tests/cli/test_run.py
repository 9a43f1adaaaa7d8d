"""`anytpu run` with real processes: it restarts after crashes and pre-emptions, and passes signals on."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import anytpu

RUN = [sys.executable, "-m", "anytpu", "run"]
# Counts its starts in a file, then runs one statement.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from anytpu._restarts import report_step
with open("starts", "a") as file:
    file.write("x")
start = os.path.getsize("starts")
print("start", start, flush=True)
"""


def run(folder: Path, statement: str, *options: str) -> subprocess.CompletedProcess[str]:
    return anytpu("run", *options, "--", sys.executable, "-c", PROGRAM + statement, folder=folder)


def test_a_program_that_succeeds(tmp_path: Path):
    done = run(tmp_path, "print('to stderr', file=sys.stderr)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "start 1\n", "to stderr\n")


def test_a_crash_and_a_preemption_have_budgets_of_their_own(tmp_path: Path):
    stopped = "stopped to be started again (exit status 75)"
    statement = "report_step(10 * start); sys.exit([1, 75, 75, 0][start - 1])"
    done = run(tmp_path, statement, "--max-restarts", "1", "--max-preemptions", "2")
    assert done.returncode == 0
    assert done.stdout == "start 1\nstart 2\nstart 3\nstart 4\n"
    assert done.stderr == (
        "anytpu run: exit status 1, newest checkpoint: step 10. Restart 1 of 1 after a crash, in 1 s.\n"
        f"anytpu run: {stopped}, newest checkpoint: step 20. Restart 1 of 2 after a pre-emption, in 1 s.\n"
        f"anytpu run: {stopped}, newest checkpoint: step 30. Restart 2 of 2 after a pre-emption, in 1 s.\n"
    )


def test_the_same_end_of_another_host_three_times_is_final(tmp_path: Path):
    done = run(tmp_path, "sys.exit(69)")
    assert (done.returncode, done.stdout) == (69, "start 1\nstart 2\nstart 3\n")
    assert done.stderr.splitlines()[-1] == (
        "anytpu run: ended because of another host (exit status 69). This is the third time, without a new checkpoint "
        "between, so it would repeat."
    )


def test_the_same_crash_three_times_is_final(tmp_path: Path):
    done = run(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)", "--max-restarts", "9")
    assert done.returncode == 128 + signal.SIGSEGV
    assert done.stderr == (
        "anytpu run: killed by SIGSEGV. Restart 1 of 9 after a crash, in 1 s.\n"
        "anytpu run: killed by SIGSEGV. Restart 2 of 9 after a crash, in 2 s.\n"
        "anytpu run: killed by SIGSEGV. This is the third time, without a new checkpoint between, so it would repeat.\n"
    )


def test_a_program_that_does_not_exist(tmp_path: Path):
    done = anytpu("run", "--", "pyhton", "train.py", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "anytpu: the program 'pyhton' cannot be started: No such file or directory. Type a command that works alone "
        "after --, as in `anytpu run -- python train.py`\n"
    )


WAITING = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print('ready', flush=True); time.sleep(60)"


def started(folder: Path, statement: str, **options: object) -> subprocess.Popen[str]:
    command = [*RUN, "--", sys.executable, "-c", PROGRAM + statement]
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder, **options}
    return subprocess.Popen(command, **settings)  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("is_group", [False, True])
def test_sigterm_is_passed_on_and_ends_the_restarts(tmp_path: Path, is_group: bool):
    process = started(tmp_path, WAITING, start_new_session=True)
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["start 1\n", "ready\n"]
    (os.killpg if is_group else os.kill)(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (75, "")


def test_ctrl_c_at_a_terminal_reaches_the_program_once(tmp_path: Path):
    statement = """
count = [0]
def count_it(*_): count[0] += 1
signal.signal(signal.SIGINT, count_it)
print("ready", flush=True)
while not count[0]: time.sleep(0.01)
time.sleep(0.3)
print("got", count[0], flush=True)
sys.exit(9)
"""
    ours, theirs = pty.openpty()
    # The shell's part: a session whose terminal is the pseudo-terminal.
    program = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, *RUN, "--", sys.executable, "-c", PROGRAM + statement]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, cwd=tmp_path
    )
    os.close(theirs)
    text = b""
    while b"ready" not in text:
        text += os.read(ours, 1000)
    os.write(ours, b"\x03")
    while not re.search(rb"got \d+\r", text):
        text += os.read(ours, 1000)
    assert process.wait(60) == 9
    os.close(ours)
    assert b"got 1" in text
    assert b"anytpu run:" not in text


def test_ctrl_c_ends_the_pause(tmp_path: Path):
    process = started(tmp_path, "sys.exit(1)")
    assert process.stderr is not None
    assert process.stderr.readline() == "anytpu run: exit status 1. Restart 1 of 3 after a crash, in 1 s.\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("start 1\n", "")
    assert process.returncode == 128 + signal.SIGINT
