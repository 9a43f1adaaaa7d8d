"""Real processes join into a job on this machine, exchange values, and end when one of them fails."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from anytpu import _env
from anytpu._launched import LaunchedProcess
from anytpu.errors import HostsError, SettingError
from anytpu.system import joining
from anytpu.system.job import HostJob, current_job, gather
from anytpu.system.joining import join_hosts
from forked import python

HOST = """
import os, signal, sys
from anytpu.errors import HostsError
from anytpu.system import job
from anytpu.system.joining import join
from anytpu.system.join_rules import Limits

address, processes, index, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
limits = Limits(join_s=200.0, beat_s=0.5, silence_s=12.0, final_error_s=4.0)
assert join(job.HostJob(address, processes, index, "arguments"), limits) == job.current_job()
print("joined", flush=True)
job.gather("all have printed it", b"")
if mode == "exchange":
    for turn in (b"1", b"2"):
        print(job.gather("place", turn + str(index).encode()))
    try:
        job.gather("nothing" if index == 1 else "end of epoch", b"", timeout_s=1.0)
    except HostsError as error:
        print(error)
    import jax
    print(jax.process_index(), jax.process_count(), sorted({d.process_index for d in jax.devices()}))
elif index != 1:
    job.gather("never", b"")
elif mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif mode == "freeze":
    os.kill(os.getpid(), signal.SIGSTOP)
elif mode == "raise":
    raise ValueError("no rows")
elif mode == "exit":
    sys.exit(1)
"""
LAUNCHED = """
import anytpu as tpu
resolver = tpu.TPUClusterResolver("")
assert tpu.TPUClusterResolver("local").address == resolver.address
print(resolver, [core.host for core in resolver.topology.cores], tpu.system.current_job().source)
try:
    tpu.TPUClusterResolver("", cores=3)
except tpu.errors.TPUNotFoundError as error:
    print(str(error).splitlines()[1])
"""
STOPS = "stops too. Start the job again; a fit with checkpoint_dir continues from its last checkpoint\n"


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Hosts:
    """The processes of a job, and their outputs."""

    def __init__(self, tmp_path: Path, processes: int, mode: str) -> None:
        script = tmp_path / "host.py"
        script.write_text(HOST)
        self.address = free_address()
        self.children = [
            subprocess.Popen(
                [*python(), str(script), self.address, str(processes), str(index), mode],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(processes)
        ]

    def result(self, index: int) -> tuple[int, str, str]:
        """Return the exit status, the output and the errors of a host, without lines of C++."""
        child = self.children[index]
        out, errors = child.communicate(timeout=300)
        kept = [
            line for line in errors.splitlines(keepends=True) if not re.match(r"[IWE]\d{4} |WARNING: All log", line)
        ]
        return child.returncode, out, "".join(kept)

    def joined_line(self) -> str:
        return f"anytpu: {len(self.children)} hosts joined at {self.address} (arguments).\n"


def test_hosts_exchange_values(tmp_path: Path):
    hosts = Hosts(tmp_path, 3, "exchange")
    results = [hosts.result(index) for index in range(3)]
    again = "Do all hosts run the same script with the same arguments?"
    errors = [
        f"host 1 of 3 did not come to 'end of epoch' within 1 s. {again}",
        f"hosts 0 and 2 of 3 did not come to 'nothing' within 1 s. {again}",
        f"host 1 of 3 did not come to 'end of epoch' within 1 s. {again}",
    ]
    for index, (status, out, printed) in enumerate(results):
        assert (status, printed) == (0, hosts.joined_line() if index == 0 else "")
        assert out == (f"joined\n[b'10', b'11', b'12']\n[b'20', b'21', b'22']\n{errors[index]}\n{index} 3 [0, 1, 2]\n")


@pytest.mark.parametrize(
    ("mode", "status", "reason"),
    [
        ("kill", -signal.SIGKILL, "ended: it was killed, or crashed, or its machine failed"),
        ("raise", 1, "ended: ValueError: no rows"),
        ("exit", 1, r"ended: sys\.exit\(1\)"),
        ("freeze", None, r"is frozen: it has sent nothing for 1[2-9] s"),
    ],
)
def test_a_host_that_fails_ends_the_others(tmp_path: Path, mode: str, status: int | None, reason: str):
    hosts = Hosts(tmp_path, 3, mode)
    name = re.escape(socket.gethostname())
    for index in (0, 2):
        code, out, printed = hosts.result(index)
        assert (code, out) == (69, "joined\n"), printed
        start = hosts.joined_line() if index == 0 else ""
        text = rf"anytpu: host 1 of 3 \({name}\) {reason}; this host, {index} of 3, {re.escape(STOPS)}"
        assert re.fullmatch(re.escape(start) + text, printed), printed
    if status is None:
        hosts.children[1].kill()
    code, _, printed = hosts.result(1)
    assert code == (status or -signal.SIGKILL)
    assert printed.endswith("ValueError: no rows\n") == (mode == "raise")


def test_the_resolver_joins_launched_processes(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(LAUNCHED)
    address = free_address()
    children = [
        subprocess.Popen(
            [*python(), str(script)],
            env=_env.with_launched_process(LaunchedProcess(address, 2, index), cpu_devices=2),
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for child in children:
        out, _ = child.communicate(timeout=300)
        lines = [line for line in out.splitlines() if "Gloo" not in line]
        assert child.returncode == 0
        assert lines == [
            "TPUClusterResolver(local: 4 cores) [0, 0, 1, 1] anytpu launch",
            "  hosts: the hosts have 4 cores, and a job uses all; 3 were asked for",
        ]


def test_a_program_of_one_process():
    assert current_job() is None
    assert gather("losses", b"1") == [b"1"]
    assert join_hosts("10.0.0.1:8476", 1, 0) == HostJob("10.0.0.1:8476", 1, 0, "arguments")
    assert current_job() is None


def test_devices_that_have_started():
    import jax

    jax.devices()
    with pytest.raises(HostsError) as caught:
        join_hosts("127.0.0.1:8476", 2, 0)
    assert str(caught.value) == (
        "this process cannot join other hosts, because JAX has started its devices already. Call tpu.join_hosts or "
        "TPUClusterResolver before anything else that uses JAX"
    )


def test_host_0_does_not_answer():
    address = free_address()
    job = HostJob(address, 2, 1, "arguments")
    with pytest.raises(HostsError) as caught:
        joining._connect(job, joining.split_address(address), 0.3)
    assert str(caught.value) == (
        f"host 1 of 2 did not reach host 0 at {address} within 0.3 s: {os.strerror(111)}. Start host 0 with this "
        "address, and open its port to the hosts"
    )


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"", "the connection was closed"),
        (b"SSH-2.0-OpenSSH\r\n", r"the reply is 'SSH-2.0-OpenSSH\r'"),
        (b"[" * 4000 + b"\n", f"the reply is '{'[' * 40}'"),
        (b'{"service": "8477"}\n', """the reply is '{"service": "8477"}'"""),
        (b"220 mail", "no reply within 0.3 s"),
    ],
)
def test_another_program_at_the_address(reply: bytes, reason: str):
    job = HostJob("127.0.0.1:8476", 2, 1, "arguments")
    ours, other = socket.socketpair()
    other.sendall(reply)
    if not reply:
        other.shutdown(socket.SHUT_WR)
    with ours, other, pytest.raises(HostsError) as caught:
        joining._greet(ours, job, joining.Greeting(1, 2, "box", {}), 0.3)
    assert str(caught.value) == (
        f"host 1 of 2 could not join at 127.0.0.1:8476: {reason}. Is that the address of host 0 of this job?"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("10.0.0.1", 2, 0), 'coordinator must be "host:port", such as "10.0.0.1:8476", not \'10.0.0.1\''),
        (("10.0.0.1:0", 2, 0), 'coordinator must be "host:port", such as "10.0.0.1:8476", not \'10.0.0.1:0\''),
        ((8476, 2, 0), 'coordinator must be "host:port", such as "10.0.0.1:8476", not 8476'),
        (("a:1", 0, 0), "processes must be a positive integer, not 0"),
        (("a:1", True, 0), "processes must be a positive integer, not True"),
        (("a:1", 2, 2), "index must be an integer from 0 to 1, not 2"),
        (("a:1", 2, 0, 0), "timeout_s must be a positive number of seconds, not 0"),
    ],
)
def test_invalid_arguments(arguments: tuple, message: str):
    with pytest.raises(SettingError) as caught:
        join_hosts(*arguments)
    assert str(caught.value) == message
