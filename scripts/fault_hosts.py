"""Fail the hosts of a job, each in a network namespace with an address of its own, and record how the others end.

    sudo python scripts/fault_hosts.py [--record benchmarks/results/fault_hosts.json] [--only NAME]

The namespaces are joined by a bridge, so a host can be killed with all its processes, or lose its network. The script
needs root and iproute2. Each line of the output is one fault and its outcome. The exit status is 1 if an outcome is not
the promised one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PORT = 8476
PREFIX = "anytpu-host"
BRIDGE = "anytpu-br"

# Joins, and calls an all-reduce over the hosts until it is ended.
PROGRAM = """
import sys, socket
from anytpu.system import joining
if sys.argv[4]:
    real = joining._versions
    joining._versions = lambda: {**real(), "jax": sys.argv[4]}
socket.gethostname = lambda: f"box{sys.argv[3]}"
joining.join_hosts(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), timeout_s=float(sys.argv[5]))
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("host",))
place = NamedSharding(mesh, PartitionSpec("host"))
total = jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, PartitionSpec()))
rows = np.ones((jax.device_count(), 4), "float32")
value = jax.make_array_from_callback(rows.shape, place, lambda index: rows[index])
total(value).block_until_ready()
print("running", flush=True)
while True:
    total(value).block_until_ready()
"""

KILLED = r"anytpu: host {i} of {n} \(box{i}\) ended: it was killed, or crashed, or its machine failed; this host, "
FROZEN = r"anytpu: host {i} of {n} \(box{i}\) is frozen: it has sent nothing for 3\d s; this host, "
LOST = r"anytpu: the connection to host 0, at 10\.77\.0\.1:8476, (ended|is silent for 30 s); this host, "


def address(index: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{index + 1}"


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def network(hosts: int) -> Iterator[None]:
    """Make a namespace for each host, joined by a bridge."""
    remove_network(hosts)
    ip("link", "add", BRIDGE, "type", "bridge")
    try:
        ip("link", "set", BRIDGE, "up")
        for index in range(hosts):
            space, outer, inner = f"{PREFIX}{index}", f"anytpu-o{index}", f"anytpu-i{index}"
            ip("netns", "add", space)
            ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
            ip("link", "set", outer, "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"{address(index)}/24", "dev", inner)
            ip("-n", space, "link", "set", inner, "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield
    finally:
        remove_network(hosts)


def remove_network(hosts: int) -> None:
    """Remove the namespaces and the bridge, where they exist."""
    for index in range(hosts):
        # The link of a namespace outlives it by a moment.
        subprocess.run(["ip", "link", "del", f"anytpu-o{index}"], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", f"{PREFIX}{index}"], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True, check=False)


class Host:
    """A process in a namespace, with its output in files.

    Args:
        folder: a folder for its output.
        index: index of the host and of its namespace.
        processes: number of hosts that it is started for.
        version: the version of JAX that it claims to have; "" is the true one.
        limit_s: its time limit to join.
    """

    def __init__(self, folder: Path, index: int, processes: int, version: str = "", limit_s: float = 300.0) -> None:
        self.index = index
        self._out, self._errors = folder / f"{index}.out", folder / f"{index}.err"
        command = ["ip", "netns", "exec", f"{PREFIX}{index}", sys.executable, "-c", PROGRAM]
        arguments = [f"{address(0)}:{PORT}", str(processes), str(index), version, str(limit_s)]
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.child = subprocess.Popen([*command, *arguments], stdout=out, stderr=errors)
        self.ended_s: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has joined and computed."""
        return "running" in self._out.read_text()

    @property
    def error(self) -> str:
        """The errors that it printed, without lines of C++ that are no failure."""
        lines = self._errors.read_text().splitlines()
        return "\n".join(
            line for line in lines if not re.match(r"[IWE]\d{4} |WARNING: All log|anytpu: \d+ hosts", line)
        )

    def kill_machine(self) -> None:
        """Kill all processes of the namespace."""
        listed = subprocess.run(["ip", "netns", "pids", f"{PREFIX}{self.index}"], capture_output=True, text=True)
        for number in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)


def wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    """Return whether a condition became true within a time limit."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def run(
    name: str,
    hosts: list[Host],
    fault: Callable[[list[Host]], None] | None,
    survivors: list[int],
    status: int,
    pattern: str,
    limit_s: float,
) -> dict[str, Any]:
    """Return the outcome of one fault.

    Args:
        name: name of the fault.
        hosts: the started hosts.
        fault: makes the fault when all hosts compute; None for a job that does not start.
        survivors: the hosts that must end by themselves.
        status: their exit status.
        pattern: the start of their only error, or its end for a job that does not start.
        limit_s: time limit in seconds, from the fault, or from the start of the hosts.
    """
    began_s = time.monotonic()
    try:
        if fault is not None:
            if not wait_for(lambda: all(host.is_running for host in hosts), 400.0):
                return {"name": name, "is_right": False, "why": "the job did not start"}
            began_s = time.monotonic()
            fault(hosts)
        waiting = [host for host in hosts if host.index in survivors]
        took: dict[int, float] = {}

        def all_ended() -> bool:
            for host in waiting:
                if host.child.poll() is not None:
                    took.setdefault(host.index, time.monotonic() - began_s)
            return len(took) == len(waiting)

        is_in_time = wait_for(all_ended, limit_s + 30.0) and max(took.values()) <= limit_s
        statuses = [host.child.returncode for host in waiting]
        errors = [host.error for host in waiting]
        match = re.search if fault is None else re.match
        is_right = is_in_time and statuses == [status] * len(waiting)
        is_right = is_right and all(match(pattern, error) for error in errors)
        if fault is not None:
            is_right = is_right and all(error.count("\n") == 0 for error in errors)
        return {
            "name": name,
            "is_right": is_right,
            "limit_s": limit_s,
            "ended_after_s": [round(took.get(host.index, -1.0), 2) for host in waiting],
            "statuses": statuses,
            "error": errors[-1].splitlines()[-1] if errors[-1] else "",
            **({} if is_right else {"errors": errors}),
        }
    finally:
        for host in hosts:
            host.kill_machine()
            host.child.wait()


def cases(folder: Path) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the faults by name."""
    count = 3

    def start(**changes: dict[str, Any]) -> list[Host]:
        return [
            Host(folder, index, **{"processes": count, **changes.get(f"host{index}", {})}) for index in range(count)
        ]

    def fails(name: str, hosts: list[Host], survivors: list[int], pattern: str, limit_s: float) -> dict[str, Any]:
        return run(name, hosts, None, survivors, 1, r"anytpu\.errors\.HostsError: " + pattern, limit_s)

    def ends(
        name: str, fault: Callable[[list[Host]], None], index: int, pattern: str, limit_s: float
    ) -> dict[str, Any]:
        survivors = [other for other in range(count) if other != index]
        return run(name, start(), fault, survivors, 69, pattern.format(i=index, n=count), limit_s)

    def unplug(index: int) -> Callable[[list[Host]], None]:
        return lambda _: ip("link", "set", f"anytpu-o{index}", "down")

    def number() -> dict[str, Any]:
        text = r".*cannot join: host 1 \(box1\) was started for 4 hosts, and host 0 \(box0\) for 3\. "
        return fails("wrong number of hosts", start(host1={"processes": 4}), [0, 1, 2], text, 120.0)

    def versions() -> dict[str, Any]:
        text = r".*cannot join: host 2 \(box2\) has jax 0\.9\.9, and host 0 \(box0\) has jax "
        return fails("versions that differ", start(host2={"version": "0.9.9"}), [0, 1, 2], text, 120.0)

    def absent() -> dict[str, Any]:
        hosts = [Host(folder, index, count, limit_s=20.0) for index in (1, 2)]
        text = r"host \d of 3 did not reach host 0 at 10\.77\.0\.1:8476 within 20 s: "
        return fails("host 0 does not come", hosts, [1, 2], text, 120.0)

    def missing() -> dict[str, Any]:
        hosts = [Host(folder, index, count, limit_s=20.0) for index in (0, 1)]
        return fails(
            "host 2 does not come", hosts, [0, 1], r".*cannot join: host 2 of 3 did not come within 20 s", 120.0
        )

    def taken() -> dict[str, Any]:
        listen = f"import socket; s = socket.create_server(('{address(0)}', {PORT})); print(s, flush=True); input()"
        command = ["ip", "netns", "exec", f"{PREFIX}0", sys.executable, "-c", listen]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout is not None
        other.stdout.readline()
        try:
            text = r"host 0 cannot listen at 10\.77\.0\.1:8476: port 8476 is in use"
            return fails("port in use", [Host(folder, 0, count)], [0], text, 60.0)
        finally:
            other.kill()
            other.wait()

    def killed(index: int) -> Callable[[], dict[str, Any]]:
        return lambda: ends(f"host {index} is killed", lambda hosts: hosts[index].child.kill(), index, KILLED, 5.0)

    def frozen(index: int) -> Callable[[], dict[str, Any]]:
        return lambda: ends(
            f"host {index} is frozen", lambda hosts: hosts[index].child.send_signal(signal.SIGSTOP), index, FROZEN, 35.0
        )

    return {
        "killed0": killed(0),
        "killed1": killed(1),
        "machine0": lambda: ends("all of host 0 is killed", lambda hosts: hosts[0].kill_machine(), 0, LOST, 5.0),
        "machine1": lambda: ends("all of host 1 is killed", lambda hosts: hosts[1].kill_machine(), 1, KILLED, 5.0),
        "frozen0": frozen(0),
        "frozen2": frozen(2),
        "unplugged0": lambda: ends("host 0 loses its network", unplug(0), 0, LOST, 40.0),
        "unplugged1": lambda: ends("host 1 loses its network", unplug(1), 1, FROZEN, 40.0),
        "absent": absent,
        "missing": missing,
        "taken": taken,
        "number": number,
        "versions": versions,
    }


def main() -> int:
    """Run the faults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="write the outcomes to this file")
    parser.add_argument("--only", nargs="*", help="the faults to run")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("skipped: this needs root and `ip` of iproute2, for network namespaces")
        return 0
    os.environ["JAX_PLATFORMS"] = "cpu"
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(Path(folder)).items():
            if arguments.only and name not in arguments.only:
                continue
            with network(3):
                outcome = case()
            outcomes.append(outcome)
            print("right" if outcome["is_right"] else "WRONG", json.dumps(outcome), flush=True)
    if arguments.record:
        arguments.record.write_text(json.dumps(outcomes, indent=1) + "\n")
    return int(not all(outcome["is_right"] for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
