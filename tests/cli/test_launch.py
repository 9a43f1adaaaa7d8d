"""`anytpu launch` with real processes: output, the first error, signals, and no process left."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands import anytpu

LAUNCH = [sys.executable, "-m", "anytpu", "launch"]
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
index = int(os.environ["ANYTPU_PROCESS"])
def say(*words, file=sys.stdout):
    print(*words, file=file, flush=True)
def wait_for(*names):
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)
"""


def script(folder: Path, statements: str) -> str:
    path = folder / "train.py"
    path.write_text(PROGRAM + statements)
    return str(path)


def launch(folder: Path, statements: str, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return anytpu("launch", *options, script(folder, statements), folder=folder, **settings)


def started(folder: Path, statements: str, *options: str) -> subprocess.Popen[str]:
    command = [*LAUNCH, *options, script(folder, statements)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True
    )


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return sorted(process.stdout.readline() for _ in range(count))


def is_running(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_every_process_has_its_place_and_its_labels(tmp_path: Path):
    statements = """
names = ("ANYTPU_PROCESSES", "ANYTPU_PROCESS", "ANYTPU_CPU_DEVICES", "JAX_PLATFORMS", "PJRT_NPROC")
host, port = os.environ["ANYTPU_COORDINATOR"].split(":")
Path(f"port{index}").write_text(port)
say(host, *map(os.environ.get, names), sys.argv[1:], repr(sys.stdin.read()))
say("to stderr", file=sys.stderr)
"""
    path = script(tmp_path, statements)
    done = anytpu("launch", "-n", "3", "--cores", "4", path, "--cores", "9", "-n", "a b", folder=tmp_path)
    arguments = "['--cores', '9', '-n', 'a b'] ''"
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"[{i}] 127.0.0.1 3 {i} 4 cpu 16 {arguments}" for i in range(3)]
    assert sorted(done.stderr.splitlines()) == [f"[{i}] to stderr" for i in range(3)]
    assert len({(tmp_path / f"port{i}").read_text() for i in range(3)}) == 1


def test_the_default_number_of_cores_and_labels_of_one_width(tmp_path: Path):
    done = launch(tmp_path, 'print(os.environ["ANYTPU_CPU_DEVICES"])', "-n", "11")
    assert sorted(done.stdout.splitlines()) == sorted(f"[{i}]{' ' * (2 if i < 10 else 1)}2" for i in range(11))


def test_a_module(tmp_path: Path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    done = anytpu("launch", "-n", "1", "-m", "package.train", "--epochs", "3", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0] __main__ ['--epochs', '3']\n", "")


def test_partial_lines_and_progress_bars(tmp_path: Path):
    statements = r"""
sys.stdout.write("\r10 %"); sys.stdout.flush()
sys.stdout.write("\r20 %\r30 %\nno end")
sys.stdout.buffer.write(b" \xff"); sys.stdout.flush()
"""
    command = [*LAUNCH, "-n", "1", script(tmp_path, statements)]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (b"[0] 30 %\n[0] no end \xff\n", b"")


def test_the_first_error_wins_and_is_printed_last(tmp_path: Path):
    statements = """
if index == 2:
    wait_for("0", "1", "3")
    try:
        {}["key"]
    except KeyError as error:
        raise ValueError("the cause") from error
def end(*_):
    say("a consequence", file=sys.stderr)
    sys.exit(9)
signal.signal(signal.SIGTERM, end)
Path(str(index)).touch()
time.sleep(60)
"""
    done = launch(tmp_path, statements, "-n", "4")
    assert done.returncode == 1
    labelled, _, last = done.stderr.partition("[2] ValueError: the cause\n")
    assert all(line.startswith("[2] ") for line in labelled.splitlines())
    lines = last.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "KeyError: 'key'" in lines
    assert lines[-2:] == [
        "ValueError: the cause",
        "anytpu launch: process 2 of 4 failed with exit status 1 (3 later lines of the other processes on stderr are "
        "left out)",
    ]
    assert "consequence" not in done.stderr


@pytest.mark.parametrize(
    ("statement", "status", "text"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
        ("print('no room', file=sys.stderr); os._exit(7)", 7, "failed with exit status 7"),
    ],
)
def test_an_end_without_a_traceback(tmp_path: Path, statement: str, status: int, text: str):
    statements = f"""
if index == 1:
    wait_for("0")
    {statement}
Path(str(index)).touch()
time.sleep(60)
"""
    done = launch(tmp_path, statements, "-n", "2")
    said = "[1] no room\nno room\n" if status == 7 else ""
    assert (done.returncode, done.stderr) == (status, f"{said}anytpu launch: process 1 of 2 {text}\n")


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path):
    statements = """
if index == 0:
    wait_for("1")
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(str(index)).write_text(str(os.getpid()))
time.sleep(60)
"""
    done = launch(tmp_path, statements, "-n", "2")
    assert (done.returncode, done.stderr) == (3, "anytpu launch: process 0 of 2 failed with exit status 3\n")
    assert not is_running(int((tmp_path / "1").read_text()))


def test_a_process_that_succeeds_ends_nothing(tmp_path: Path):
    statements = """
if index == 0:
    Path("0").touch()
    sys.exit()
wait_for("0")
time.sleep(0.3)
say("still here")
"""
    done = launch(tmp_path, statements, "-n", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1] still here\n", "")


def test_one_that_was_saved_lets_the_others_save(tmp_path: Path):
    statements = """
if index == 0:
    sys.exit(75)
time.sleep(0.5)
say("saved")
sys.exit(75)
"""
    done = launch(tmp_path, statements, "-n", "2")
    assert (done.returncode, done.stdout) == (75, "[1] saved\n")
    assert done.stderr == "anytpu launch: process 0 of 2 stopped to be started again, exit status 75\n"


SAVING = """
count = [0]
def save(number, frame):
    count[0] += 1
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
say("ready")
while not count[0]:
    time.sleep(0.01)
time.sleep(0.3)
say("signals:", count[0])
sys.exit(75)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_group", [False, True])
def test_a_signal_is_passed_on_once(tmp_path: Path, number: int, is_group: bool):
    process = started(tmp_path, SAVING, "-n", "2")
    assert read_lines(process, 2) == ["[0] ready\n", "[1] ready\n"]
    (os.killpg if is_group else os.kill)(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert sorted(output.splitlines()) == ["[0] signals: 1", "[1] signals: 1"]
    assert (process.returncode, errors) == (75, "")


def test_a_signal_that_ends_the_program_is_no_error(tmp_path: Path):
    process = started(tmp_path, "say('ready'); time.sleep(60)", "-n", "2")
    read_lines(process, 2)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 128 + signal.SIGTERM


def test_a_second_signal_kills(tmp_path: Path):
    statements = """
signal.signal(signal.SIGINT, lambda *_: say("got it"))
say("ready")
while True:
    time.sleep(60)
"""
    process = started(tmp_path, statements, "-n", "2")
    read_lines(process, 2)
    process.send_signal(signal.SIGINT)
    assert read_lines(process, 2) == ["[0] got it\n", "[1] got it\n"]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert errors == "anytpu launch: a second signal killed the processes\n"


def test_ctrl_c_at_a_terminal(tmp_path: Path):
    """The labels have colors, and each process gets one signal."""
    ours, theirs = pty.openpty()
    # The shell's part: a session whose terminal is the pseudo-terminal.
    program = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, *LAUNCH, "-n", "2", script(tmp_path, SAVING)]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment
    )
    os.close(theirs)
    text = b""
    while text.count(b"ready") < 2:
        text += os.read(ours, 1000)
    os.write(ours, b"\x03")
    assert process.wait(60) == 75
    while select.select([ours], [], [], 0)[0]:
        try:
            text += os.read(ours, 1000)
        except OSError:  # The other end is closed.
            break
    os.close(ours)
    assert b"\x1b[36m[0]\x1b[0m signals: 1\r\n" in text
    assert b"\x1b[33m[1]\x1b[0m signals: 1\r\n" in text


CHILDREN = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
say(os.getpid(), child.pid)
"""


def test_no_process_outlives_a_launcher_that_is_killed(tmp_path: Path):
    process = started(tmp_path, "say(os.getpid()); time.sleep(600)", "-n", "2")
    ids = [int(line.split()[1]) for line in read_lines(process, 2)]
    assert all(map(is_running, ids))
    process.kill()
    process.communicate()
    until(lambda: not any(map(is_running, ids)))


def test_processes_of_a_process_are_ended_with_it(tmp_path: Path):
    statements = f"{CHILDREN}\nif index == 0:\n    wait_for('go')\n    sys.exit(1)\ntime.sleep(600)"
    process = started(tmp_path, statements, "-n", "2")
    ids = [int(word) for line in read_lines(process, 2) for word in line.split()[1:]]
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 1
    until(lambda: not any(map(is_running, ids)))


def test_a_reader_that_closes_the_pipe_ends_all(tmp_path: Path):
    process = started(tmp_path, "say(os.getpid())\nwhile True:\n    say('more')", "-n", "2")
    assert process.stdout is not None
    ids: set[int] = set()
    while len(ids) < 2:
        ids |= {int(word) for word in process.stdout.readline().split()[1:] if word.isdecimal()}
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    process.stderr.close()
    until(lambda: not any(map(is_running, ids)))


def test_a_taken_port_is_named(tmp_path: Path):
    """Process 0 finds another program on its port."""
    statements = """
import socket, subprocess
if index == 1:
    time.sleep(60)
port = os.environ["ANYTPU_COORDINATOR"].split(":")[1]
serve = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); print(flush=True); time.sleep(60)"
other = subprocess.Popen([sys.executable, "-c", serve, port], stdout=subprocess.PIPE, start_new_session=True)
other.stdout.readline()
Path("other").write_text(f"{other.pid} {port}")
os.kill(os.getpid(), signal.SIGSEGV)
"""
    done = launch(tmp_path, statements, "-n", "2")
    other, port = (tmp_path / "other").read_text().split()
    os.kill(int(other), signal.SIGKILL)
    assert done.returncode == 139
    assert done.stderr == (
        "anytpu launch: process 0 of 2 was killed by SIGSEGV\n"
        f"anytpu launch: another program has taken port {port}, which process 0 needs. Type the command again: it "
        "chooses another port\n"
    )


def test_restarts_start_all_again(tmp_path: Path):
    statements = """
starts = len(list(Path().glob(f"start{index}_*")))
Path(f"start{index}_{starts}").touch()
sys.exit(75 if starts == 0 else 0)
"""
    path = script(tmp_path, statements)
    done = anytpu("run", "--", *LAUNCH, "-n", "2", path, folder=tmp_path)
    assert done.returncode == 0
    assert re.sub(r"process \d", "process 0", done.stderr) == (
        "anytpu launch: process 0 of 2 stopped to be started again, exit status 75\n"
        "anytpu run: stopped to be started again (exit status 75). Restart 1 of 100 after a pre-emption, in 1 s.\n"
    )
    assert len(list(tmp_path.glob("start*"))) == 4


def test_processes_find_each_other(tmp_path: Path):
    statements = """
import jax
from anytpu import _env
place = _env.launched_process()
jax.config.update("jax_num_cpu_devices", _env.launched_cpu_devices())
jax.distributed.initialize(place.coordinator, place.processes, place.index, cluster_detection_method="deactivate")
say(jax.process_index(), jax.local_device_count(), jax.device_count())
"""
    done = launch(tmp_path, statements, "-n", "2", "--cores", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0 3 6", "[1] 1 3 6"]
