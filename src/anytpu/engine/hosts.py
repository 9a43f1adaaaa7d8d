"""`Hosts`: the processes whose devices form one mesh, and their agreement on what depends on a clock or a signal.

Idea: every host runs the same program on the same data, so every host makes the same decisions. Exceptions are
durations, signals and the state of disks. Host 0 decides those, and `exchange` tells all hosts. It is one small
all-reduce on the mesh, so the hosts call it in the same order as their compiled programs.

A call of a few milliseconds must not wait for an exchange. So `count_call` counts calls, and exchanges at some of
them, about every 0.25 s. The number of calls between two exchanges is agreed in the exchange before.

Invariant: a host that puts other data or weights on its devices computes other results without an error. So each host
keeps a digest of the arrays that it puts, and each exchange compares the digests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, final

import google_crc32c
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anytpu.engine import interrupts
from anytpu.errors import HostsError
from anytpu.system import job
from anytpu.system.join_rules import listed_hosts

_TURN_S = 0.25
_MAX_CALLS = 256
_MICROSECONDS = 1e6
_DIGEST = 4
"""Index of host 0's digest in a note; before it: signal, duration, exactness, choice."""


@dataclasses.dataclass(frozen=True)
class Agreed:
    """The result of one exchange, equal on every host.

    Attributes:
        duration_s: the duration that host 0 measured, in seconds.
        is_exact: whether that duration is exact, or an upper bound.
        choice: the integer that host 0 chose, from 0 to 2**32 - 1.
    """

    duration_s: float
    is_exact: bool
    choice: int


@final
class Hosts:
    """The hosts of a backend.

    Args:
        count: number of hosts.
        index: index of this host, from 0.
        maximum: all-reduce over the hosts: the elementwise maximum of a vector of uint32. None for one host.
    """

    def __init__(
        self, count: int = 1, index: int = 0, maximum: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> None:
        self.count = count
        self.index = index
        self._maximum = maximum
        self._digest = 0
        self._calls = 0
        self._calls_to_turn = 1
        self._turned_s = time.perf_counter()
        self._has_turn = True
        self.has_own_rows = False
        """Whether the arrays that are put now have only the rows of this host, and so differ between the hosts."""

    @property
    def is_alone(self) -> bool:
        """Whether there is one host, so that nothing needs an agreement."""
        return self._maximum is None

    @property
    def is_first(self) -> bool:
        """Whether this is host 0, which decides, prints and writes."""
        return self.index == 0

    @contextlib.contextmanager
    def own_rows(self, is_own: bool = True) -> Iterator[None]:
        """Return a context in which split arrays are put that have only the rows of this host: they are not compared.

        Args:
            is_own: False for arrays that are equal on all hosts, which are compared as usual.
        """
        before, self.has_own_rows = self.has_own_rows, is_own
        try:
            yield
        finally:
            self.has_own_rows = before

    def count_bytes(self, array: np.ndarray) -> None:
        """Add an array, which every host must put alike, to the digest of this host."""
        content = np.atleast_1d(np.ascontiguousarray(array)).view(np.uint8)
        self._digest = google_crc32c.extend(self._digest, content)

    def exchange(self, duration_s: float = 0.0, is_exact: bool = True, choice: int = 0) -> Agreed:
        """Agree with the other hosts; every host must call this at the same place of the program.

        A signal that any host has received acts here, on every host.

        Args:
            duration_s: a duration that this host measured, in seconds; that of host 0 is agreed.
            is_exact: whether the duration is exact, or an upper bound.
            choice: an integer from 0 to 2**32 - 1; that of host 0 is agreed.

        Raises:
            HostsError: the hosts have put different arrays on their devices.
        """
        if self._maximum is None:
            return Agreed(duration_s, is_exact, choice)
        # 1. Each host sets its own entries. The others are 0, so the maximum collects the entries of all hosts.
        note = np.zeros(_DIGEST + self.count, np.uint32)
        note[0] = interrupts.pending_signal()
        if self.is_first:
            note[1:_DIGEST] = min(int(duration_s * _MICROSECONDS), 2**32 - 1), is_exact, choice
        note[_DIGEST + self.index] = self._digest
        agreed = [int(value) for value in self._maximum(note)]
        # 2. Check that all hosts put the same arrays.
        self._check_digests(agreed[_DIGEST:])
        # 3. Act on a signal of any host here, at the same place of the program on every host.
        if agreed[0]:
            interrupts.act_on(agreed[0])
        return Agreed(agreed[1] / _MICROSECONDS, bool(agreed[2]), agreed[3])

    def agree_on_duration(self, duration_s: float, is_exact: bool = True) -> Agreed:
        """Return the duration of host 0, as `exchange` does; the calls before the next turn count from here."""
        agreed = self.exchange(duration_s, is_exact)
        self._calls, self._turned_s, self._has_turn = 0, time.perf_counter(), True
        return agreed

    def first(self, choice: int) -> int:
        """Return the integer that host 0 chose, from 0 to 2**32 - 1."""
        return choice if self.is_alone else self.exchange(choice=choice).choice

    def gather(self, own: dict[int, int], count: int) -> tuple[int, ...]:
        """Return integers of which each host knows some.

        Args:
            own: the integers of this host, from 0 to 2**32 - 1, by index.
            count: number of integers of all hosts.
        """
        values = np.zeros(count, np.uint32)
        for index, value in own.items():
            values[index] = value
        return tuple(int(value) for value in (values if self._maximum is None else self._maximum(values)))

    def share(self, content: bytes) -> bytes:
        """Return the content of host 0; the other hosts may pass b""."""
        if self._maximum is None:
            return content
        # The size first: an all-reduce needs vectors of the same length on all hosts.
        size = self.first(len(content))
        words = np.zeros(-(-size // 4), np.uint32)
        if self.is_first:
            words.view(np.uint8)[:size] = np.frombuffer(content, np.uint8)
        return self._maximum(words).view(np.uint8)[:size].tobytes()

    def take_turn(self) -> bool:
        """Return whether the hosts have agreed since this was last asked; always True for one host."""
        has_turn, self._has_turn = self._has_turn, self.is_alone
        return has_turn

    def count_call(self) -> None:
        """Count a call of a program, and agree before some of them; every host must count the same calls."""
        if self.is_alone:
            return
        self._calls += 1
        if self._calls < self._calls_to_turn:
            return
        calls = self._calls
        elapsed_s = self.agree_on_duration(time.perf_counter() - self._turned_s).duration_s
        # At most twice as many as last time: a few short calls say little about the next. At least two: the host waits
        # for the running call here, and a long call that measures itself agrees anyway.
        fitting = int(calls * _TURN_S / max(elapsed_s, 1e-6))
        self._calls_to_turn = max(2, min(2 * calls, fitting, _MAX_CALLS))

    def check_program(self, name: str, text: str) -> None:
        """Check that every host has compiled the same program.

        Args:
            name: name of the program, for the error.
            text: text of its lowered module.

        Raises:
            HostsError: a host has another one.
        """
        digest = google_crc32c.value(text.encode())
        # The hosts may take very different times to compile. Here an error names a host that does not come.
        digests = [int(each) for each in job.gather(f"the program {name!r}", str(digest).encode())]
        if len(set(digests)) == 1:
            return
        others = [index for index, each in enumerate(digests) if each != digests[0]]
        raise HostsError(
            f"{listed_hosts(others)} of {self.count} compiled another program than host 0 as {name!r}. Every "
            "host must run the same script, with the same arguments and the same versions of JAX and Keras"
        )

    def _check_digests(self, digests: list[int]) -> None:
        others = [index for index, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise HostsError(
                f"{listed_hosts(others)} of {self.count} put other data or weights on the cores than host 0. "
                "Every host must run the same program on the same arrays, with the same random seed: call "
                "keras.utils.set_random_seed(7) first"
            )


ONE_HOST = Hosts()
_current = ONE_HOST


def current_hosts() -> Hosts:
    """Return the hosts of the job of this process: one host before a backend over several is opened."""
    return _current


def hosts_of(mesh: Mesh) -> Hosts:
    """Return the hosts of a mesh.

    Args:
        mesh: a mesh of one axis.
    """
    processes = sorted({device.process_index for device in mesh.devices.flat})
    if jax.process_count() == 1:
        return ONE_HOST
    if len(processes) != jax.process_count():
        raise HostsError(
            f"the cores belong to {len(processes)} of the {jax.process_count()} hosts, and all hosts of a job run the "
            "program: use all cores, tpu.connect()"
        )
    global _current
    interrupts.wait_for_agreement()
    _current = Hosts(len(processes), jax.process_index(), _maximum_over(mesh))
    return _current


def _maximum_over(mesh: Mesh) -> Callable[[np.ndarray], np.ndarray]:
    """Return the all-reduce of `Hosts`: each device holds its host's vector, and XLA takes the maximum."""
    (axis,) = mesh.axis_names
    split, whole = NamedSharding(mesh, PartitionSpec(axis)), NamedSharding(mesh, PartitionSpec())
    reduce = jax.jit(lambda notes: notes.max(axis=0), out_shardings=whole)
    compiled: dict[int, Any] = {}

    def maximum(note: np.ndarray) -> np.ndarray:
        shape = (mesh.devices.size, len(note))
        if len(note) not in compiled:
            compiled[len(note)] = reduce.lower(jax.ShapeDtypeStruct(shape, np.uint32, sharding=split)).compile()
        notes = jax.make_array_from_callback(shape, split, lambda index: note[None])
        return np.asarray(compiled[len(note)](notes).addressable_data(0))

    return maximum
