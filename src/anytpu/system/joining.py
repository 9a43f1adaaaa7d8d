"""Joining: n processes of the same script become the hosts of one job.

Idea: host 0 starts the rendezvous, and every host connects to it. Nothing of JAX starts before all hosts are there and
agree, because JAX ends a process whose peers do not come. So each failure to join is an error of ours, on every host.

Rule: this happens once in a process, before JAX starts its devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.metadata
import ipaddress
import json
import platform
import re
import socket
import subprocess
import sys
import threading
import time

from anytpu import _env, _jax
from anytpu._calls import explain_arguments
from anytpu.errors import HostsError, SettingError
from anytpu.system import job as jobs
from anytpu.system import join_rules
from anytpu.system.job import HostJob, Joined
from anytpu.system.join_rules import CLIENT_HEARTBEAT_S, MAX_LINE_BYTES, Greeting, Limits
from anytpu.system.launchers import find_job
from anytpu.system.relay import Relay
from anytpu.system.watch import Watch

_PACKAGES = ("anytpu", "jax", "jaxlib")
_RETRY_S = 0.2
_ATTEMPT_S = 5.0
_GRACE_S = 30.0
"""Time in seconds that a host waits longer than host 0, whose error says more."""

_lock = threading.Lock()


@explain_arguments
def join_hosts(coordinator: str, processes: int, index: int, timeout_s: float = Limits.join_s) -> HostJob:
    """Make this process one of the hosts of a job, before the first use of a device.

    Every host calls this with the same address and number. A program that `anytpu launch`, Slurm, Open MPI or a TPU
    pod started needs no call: `TPUClusterResolver("")` joins by itself.

    Args:
        coordinator: "host:port" of host 0, which listens there.
        processes: number of hosts. A job of one host needs no connection, and the call only returns it.
        index: index of this host, 0 to `processes` - 1.
        timeout_s: time limit in seconds until all hosts have joined.

    Returns:
        The job.

    Raises:
        SettingError: an argument is invalid.
        HostsError: the hosts cannot join. The message names the host and the reason, and is the same on all hosts.

    Example:
        >>> join_hosts("10.0.0.1:8476", processes=1, index=0).processes
        1
    """
    return join(_checked_job(coordinator, processes, index), Limits(join_s=_checked_timeout(timeout_s)))


def join_found_job() -> HostJob | None:
    """Join the job that the environment describes, and return it; None if it describes none.

    Raises:
        SettingError, HostsError: as `join_hosts`.
    """
    if jobs.current_job() is None and (job := find_job()) is not None:
        return join(job, Limits())
    return jobs.current_job()


def join(job: HostJob, limits: Limits) -> HostJob:
    """Join a job, unless this process has joined it already."""
    with _lock:
        current = jobs.current_job()
        if current is not None:
            if dataclasses.replace(current, source=job.source, local_index=job.local_index) != job:
                raise HostsError(
                    f"this process has joined a job of {current.processes} hosts at {current.address}, and cannot "
                    f"join another, of {job.processes} hosts at {job.address}"
                )
            return current
        if job.processes == 1:
            return job
        if _jax.has_started():
            raise HostsError(
                "this process cannot join other hosts, because JAX has started its devices already. Call "
                "tpu.join_hosts or TPUClusterResolver before anything else that uses JAX"
            )
        _env.prepare_jax()
        _env.check_jax_settings()
        _join(job, limits)
        return job


def _join(job: HostJob, limits: Limits) -> None:
    # 1. Host 0 starts the rendezvous.
    greeting = Greeting(job.index, job.processes, socket.gethostname(), _versions(), _env.job_token())
    target = split_address(job.address)
    if job.index == 0:
        target = _start_rendezvous(job.address, target, greeting, limits)
    # 2. Connect and greet. The reply comes when all hosts are there and agree.
    connection = _connect(job, target, limits.join_s)
    try:
        port, received = _greet(connection, job, greeting, limits.join_s + _GRACE_S)
    except BaseException:
        connection.close()
        raise
    # 3. From now on the other hosts are watched, so JAX may start: it ends a process whose peers do not come.
    Watch(connection, job, limits, received, _jax.forget_client).start()
    own, peer = connection.getsockname()[0], connection.getpeername()[0]
    _jax.listen_for_collectives(own)
    _use_devices(job)
    service = Relay((peer, port)).address
    client = _jax.connect_client(service, job.processes, job.index, int(limits.join_s), CLIENT_HEARTBEAT_S)
    jobs.set_joined(Joined(job, client))
    if job.index == 0:
        print(f"anytpu: {job.processes} hosts joined at {job.address} ({job.source}).", file=sys.stderr, flush=True)


def _use_devices(job: HostJob) -> None:
    """Choose this process's devices: the number of CPU devices that the launcher gave, or its GPU."""
    import jax

    if (count := _env.launched_cpu_devices()) is not None:
        jax.config.update("jax_num_cpu_devices", count)
    if job.local_index is not None:
        jax.config.update("jax_cuda_visible_devices", str(job.local_index))


def _start_rendezvous(address: str, target: tuple[str, int], greeting: Greeting, limits: Limits) -> tuple[str, int]:
    """Start the process at which the hosts meet, and return its address for this host."""
    with _listener(address, target) as listener:
        settings = {
            "listener": listener.fileno(),
            "first": dataclasses.asdict(greeting),
            "limits": dataclasses.asdict(limits),
        }
        # -P: do not import a jaxlib.py of the working folder. In a session of its own, so that Ctrl-C, or a launcher
        # that ends this process's group, leaves it the time to tell the other hosts.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "anytpu.system.rendezvous"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_env.rendezvous_environment(),
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        assert child.stdin is not None
        with contextlib.suppress(OSError), child.stdin:
            child.stdin.write(json.dumps(settings).encode() + b"\n")
        host, port = listener.getsockname()[:2]
    threading.Thread(target=child.wait, name="anytpu-rendezvous", daemon=True).start()  # Otherwise it stays a zombie.
    return ("127.0.0.1" if host == "0.0.0.0" else host), port


def _listener(address: str, target: tuple[str, int]) -> socket.socket:
    """Return a socket that listens at an address of this machine.

    Raises:
        HostsError: the port is in use, or the address is not of this machine.
    """
    host, port = target
    resolved = _resolve(address, host, port)
    # Debian resolves the name of the machine to 127.0.1.1, where the other hosts do not reach it.
    is_own_name = ipaddress.ip_address(resolved).is_loopback and host != "localhost" and resolved != host
    bound = "0.0.0.0" if is_own_name else resolved
    listener = socket.socket(socket.AF_INET6 if ":" in bound else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bound, port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise HostsError(
                f"host 0 cannot listen at {address}: port {port} is in use. Give all hosts another port, or end the "
                "program that uses it"
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise HostsError(
                f"host 0 cannot listen at {address}: this machine ({socket.gethostname()}) does not have that address. "
                "Give all hosts the address of host 0"
            ) from None
        raise HostsError(f"host 0 cannot listen at {address}: {error.strerror}") from None
    return listener


def _resolve(address: str, host: str, port: int) -> str:
    try:
        return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise HostsError(f"host 0 cannot listen at {address}: {error.strerror}") from None


def _connect(job: HostJob, target: tuple[str, int], timeout_s: float) -> socket.socket:
    """Return a connection to the rendezvous; retry until the time limit."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection(target, timeout=max(min(_ATTEMPT_S, end_s - time.monotonic()), 0.1))
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > end_s:
            raise HostsError(
                f"host {job.index} of {job.processes} did not reach host 0 at {job.address} within {timeout_s:g} s: "
                f"{reason}. Start host 0 with this address, and open its port to the hosts"
            )
        time.sleep(_RETRY_S)


def _greet(connection: socket.socket, job: HostJob, greeting: Greeting, timeout_s: float) -> tuple[int, bytes]:
    """Send the greeting, wait for all hosts, and return the port of JAX's service and the bytes that follow."""
    failed = f"host {job.index} of {job.processes} could not join at {job.address}"
    advice = "Is that the address of host 0 of this job?"
    end_s = time.monotonic() + timeout_s
    received = b""
    try:
        connection.sendall(greeting.line())
        while b"\n" not in received:
            connection.settimeout(max(end_s - time.monotonic(), 0.1))
            arrived = connection.recv(MAX_LINE_BYTES)
            if not arrived:
                raise HostsError(f"{failed}: the connection was closed. {advice}")
            # Heartbeats, empty lines, come before the reply.
            received = (received + arrived).lstrip(b"\n")
    except TimeoutError:
        raise HostsError(f"{failed}: no reply within {timeout_s:g} s. {advice}") from None
    except OSError as error:
        raise HostsError(f"{failed}: {error.strerror}. {advice}") from None
    reply, _, rest = received.partition(b"\n")
    message = join_rules.parse_line(reply)
    if "error" in message:
        raise HostsError(f"the hosts at {job.address} cannot join: {message['error']}")
    if not isinstance(port := message.get("service"), int):
        raise HostsError(f"{failed}: the reply is {reply[:40].decode(errors='replace')!r}. {advice}")
    return port, rest


def _versions() -> dict[str, str]:
    return {**{name: importlib.metadata.version(name) for name in _PACKAGES}, "Python": platform.python_version()}


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port".

    Raises:
        SettingError: the text is not of that form.

    Example:
        >>> split_address("[::1]:8476")
        ('::1', 8476)
    """
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+):(\d{1,5})", address)
    if not match or not 0 < int(match[2]) < 65536:
        raise SettingError(f'coordinator must be "host:port", such as "10.0.0.1:8476", not {address!r}')
    return match[1].strip("[]"), int(match[2])


def _checked_job(coordinator: object, processes: object, index: object) -> HostJob:
    if not isinstance(coordinator, str):
        raise SettingError(f'coordinator must be "host:port", such as "10.0.0.1:8476", not {coordinator!r}')
    split_address(coordinator)
    if not isinstance(processes, int) or isinstance(processes, bool) or processes < 1:
        raise SettingError(f"processes must be a positive integer, not {processes!r}")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < processes:
        raise SettingError(f"index must be an integer from 0 to {processes - 1}, not {index!r}")
    return HostJob(coordinator, processes, index, "arguments")


def _checked_timeout(timeout_s: object) -> float:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < 1e6:
        raise SettingError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")
    return float(timeout_s)
