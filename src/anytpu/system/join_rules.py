"""Join rules of the hosts of a job: the greeting of a host, the refusals, the time limits, and the texts.

Idea: one process, the rendezvous, decides for all hosts. This module holds its decisions, as functions of what it
received.

Rule: a connection is unauthenticated until it sends a greeting of this form, with the token of the job. One that does
not is closed, and decides nothing.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any

from anytpu.units import printable

CLIENT_HEARTBEAT_S = 3600
"""Heartbeat limit of JAX's own service, in seconds. It ends a process with a stack trace, so it must be the later."""

MAX_LINE_BYTES = 4096
"""Maximum length of a line that a host sends."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The time limits of a job, in seconds.

    Attributes:
        join_s: until all hosts have joined.
        greeting_s: from a connection to its greeting.
        beat_s: between two heartbeats.
        silence_s: from the last heartbeat until a host is taken for frozen.
        exception_s: from the exception of a host to the final error, because a killed host makes others raise.
        exit_s: from the final error until the others get it, if the host that raised has not ended before.
        final_error_s: from the final error to the end of the rendezvous.
        warning_s: from the first goodbye until the hosts that still run are warned.
        goodbye_s: from the first goodbye until the job ends with an error.
    """

    join_s: float = 300.0
    greeting_s: float = 10.0
    beat_s: float = 2.0
    silence_s: float = 30.0
    exception_s: float = 1.0
    exit_s: float = 5.0
    final_error_s: float = 20.0
    warning_s: float = 60.0
    goodbye_s: float = 1800.0


@dataclasses.dataclass(frozen=True)
class Greeting:
    """The first line of a host.

    Attributes:
        index: index of the host.
        processes: number of hosts that this one expects.
        name: name of its machine.
        versions: version of each package on which hosts must agree, and of Python.
        token: the secret of the job, or None.
    """

    index: int
    processes: int
    name: str
    versions: Mapping[str, str]
    token: str | None = dataclasses.field(default=None, repr=False)

    def line(self) -> bytes:
        """Return the greeting as a line of JSON."""
        return line_of({"anytpu": 1, **dataclasses.asdict(self)})


def line_of(message: dict[str, Any] | None) -> bytes:
    """Return a message as a line of JSON; None is a heartbeat, an empty line."""
    text = json.dumps(message, ensure_ascii=False) if message else ""
    return text.encode(errors="replace") + b"\n"


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the message in a line, with printable texts; an empty one for a line of another form."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):  # The second for 4,000 brackets.
        return {}
    if not isinstance(message, dict):
        return {}
    return {
        key: printable(value, MAX_LINE_BYTES) if isinstance(value, str) and key != "token" else value
        for key, value in message.items()
    }


def parse_greeting(line: bytes) -> Greeting | None:
    """Return the greeting in a line, or None for a line of another form."""
    fields = parse_line(line)
    if fields.pop("anytpu", None) != 1:
        return None
    kinds: dict[str, Any] = {"index": int, "processes": int, "name": str, "versions": dict, "token": str | None}
    if fields.keys() != kinds.keys() or not all(isinstance(fields[key], kind) for key, kind in kinds.items()):
        return None
    if not all(isinstance(version, str) for version in fields["versions"].values()):
        return None
    return Greeting(**{**fields, "name": printable(fields["name"])})


def has_token(greeting: Greeting, token: str | None) -> bool:
    """Return whether a greeting has the token of the job."""
    if token is None:
        return True
    given = (greeting.token or "").encode(errors="replace")  # JSON may hold a lone surrogate.
    return hmac.compare_digest(given, token.encode(errors="replace"))


def refusal(greeting: Greeting, first: Greeting, taken: Mapping[int, str]) -> str | None:
    """Return the reason why a host cannot join, or None.

    Args:
        greeting: greeting of the host.
        first: greeting of host 0.
        taken: name of the machine of each host that has joined, by index.
    """
    host, zero = f"host {greeting.index} ({greeting.name})", f"host 0 ({first.name})"
    if greeting.processes != first.processes:
        return (
            f"{host} was started for {greeting.processes} hosts, and {zero} for {first.processes}. Start every host "
            "with the same number of processes"
        )
    if not 0 <= greeting.index < first.processes:
        return f"the index of a host ({greeting.name}) is {greeting.index}; it must be 0 to {first.processes - 1}"
    if greeting.index in taken:
        return (
            f"two hosts have the index {greeting.index}: {taken[greeting.index]} and {greeting.name}. Start each host "
            f"with its own index, 0 to {first.processes - 1}"
        )
    for name, version in first.versions.items():
        if (other := greeting.versions.get(name)) != version:
            return (
                f"{host} has {name} {printable(str(other))}, and {zero} has {name} {version}. Install the same "
                "versions on every host"
            )
    return None


def missing_text(missing: Iterable[int], processes: int, limit_s: float) -> str:
    """Return the error for hosts that did not join in time."""
    indices = sorted(missing)
    return (
        f"{listed_hosts(indices)} of {processes} did not come within {limit_s:g} s. Start every host with the same "
        "address, and each with its own index"
    )


def listed_hosts(indices: Iterable[int]) -> str:
    """Return the indices of hosts as text.

    Example:
        >>> listed_hosts([2]), listed_hosts([1, 2]), listed_hosts([0, 1, 2])
        ('host 2', 'hosts 1 and 2', 'hosts 0, 1 and 2')
    """
    texts = [str(index) for index in indices]
    if len(texts) == 1:
        return f"host {texts[0]}"
    return f"hosts {', '.join(texts[:-1])} and {texts[-1]}"
