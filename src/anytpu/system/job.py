"""The job of this process: n processes, the hosts, that run the same script as one JAX program.

Idea: after joining, the hosts exchange small values through JAX's key-value store, which lives in the rendezvous. All
hosts call `gather` in the same order. A program of one process needs no job: `gather` then returns at once.

Rule: an exchange ends with a result or with an error that names the hosts that did not come.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, final

from anytpu.errors import HostsError
from anytpu.system.join_rules import listed_hosts

EXCHANGE_TIMEOUT_S = 600.0
"""Time limit in seconds of one exchange. A host that dies ends it earlier."""

_FOLDER = "anytpu"


@dataclasses.dataclass(frozen=True)
class HostJob:
    """The place of this process in a job.

    Attributes:
        address: "host:port" at which the hosts meet; host 0 listens there.
        processes: number of hosts, at least 2.
        index: index of this one, 0 to `processes` - 1.
        source: where this was found: "anytpu launch", "Slurm", "Open MPI", "TPU pod", "GKE" or "arguments".
        local_index: index among the processes of this machine, which is that of its GPU; None: it uses all GPUs.
    """

    address: str
    processes: int
    index: int
    source: str
    local_index: int | None = None


@final
class Joined:
    """A job that this process has joined.

    Args:
        job: the job.
        client: JAX's client of the coordination service.
    """

    def __init__(self, job: HostJob, client: Any) -> None:
        self.job = job
        self._client = client
        self._counts: dict[str, int] = {}
        self._previous = ""

    def gather(self, name: str, value: bytes, timeout_s: float) -> list[bytes]:
        """Return the value of each host."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        key = f"{_FOLDER}/{name}/{count}"
        self._client.key_value_set_bytes(f"{key}/{self.job.index:06d}", value)
        self._wait(key, name, timeout_s)
        if self.job.index == 0 and self._previous:
            # All hosts are here, so all have read the values of the previous exchange.
            self._client.key_value_delete(self._previous)
        self._previous = f"{key}/"
        return [value for _, value in sorted(self._client.key_value_dir_get_bytes(self._previous))]

    def _wait(self, key: str, name: str, timeout_s: float) -> None:
        try:
            self._client.wait_at_barrier(key, int(timeout_s * 1000))
        except Exception as error:
            names = re.search(r"timed out task names:\n((?:\d+\n)+)", str(error))
            missing = sorted(map(int, names[1].split())) if names else []
            raise self._explained(error, name, missing, timeout_s) from None

    def _explained(self, error: Exception, name: str, missing: list[int], timeout_s: float) -> HostsError:
        if "DEADLINE_EXCEEDED" not in str(error):
            return HostsError(f"the exchange {name!r} of the hosts failed: {error}")
        which = listed_hosts(missing) if missing else "another host"
        return HostsError(
            f"{which} of {self.job.processes} did not come to {name!r} within {timeout_s:g} s. Do all hosts run the "
            "same script with the same arguments?"
        )


_joined: Joined | None = None


def set_joined(joined: Joined | None) -> None:
    """Make this the job of this process."""
    global _joined
    _joined = joined


def current_job() -> HostJob | None:
    """Return the job that this process has joined; None in a program of one process."""
    return _joined.job if _joined else None


def gather(name: str, value: bytes, timeout_s: float = EXCHANGE_TIMEOUT_S) -> list[bytes]:
    """Return the values of all hosts, in the order of the hosts, on every host.

    Args:
        name: name of the exchange, for the error; it may be used again.
        value: the value of this host.
        timeout_s: time limit in seconds.

    Raises:
        HostsError: a host did not come within the time limit; the message names it.

    Example:
        >>> gather("losses", b"0.5")
        [b'0.5']
    """
    return _joined.gather(name, value, timeout_s) if _joined else [value]
