"""`Hosts`: agreement on durations, choices and bytes, and the digests. Here threads are the hosts of a job.

tests/train/test_hosts.py runs processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from anytpu.engine.hosts import ONE_HOST, Agreed, Hosts, current_hosts
from anytpu.errors import HostsError


class AllReduce:
    """The elementwise maximum over threads."""

    def __init__(self, count: int) -> None:
        self._notes: dict[int, np.ndarray] = {}
        self._barrier = threading.Barrier(count, timeout=100)

    def of(self, index: int) -> Callable[[np.ndarray], np.ndarray]:
        def maximum(note: np.ndarray) -> np.ndarray:
            self._notes[index] = note
            self._barrier.wait()
            result = np.max(list(self._notes.values()), axis=0)
            self._barrier.wait()
            return result

        return maximum


def together(count: int, act: Callable[[Hosts], Any]) -> list[Any]:
    """Return the result of each host, or its error."""
    reduce = AllReduce(count)

    def one(index: int) -> Any:
        try:
            return act(Hosts(count, index, reduce.of(index)))
        except HostsError as error:
            return str(error)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_one_host_agrees_with_itself():
    assert current_hosts() is ONE_HOST
    assert (ONE_HOST.is_alone, ONE_HOST.is_first, ONE_HOST.take_turn(), ONE_HOST.take_turn()) == (True,) * 4
    assert ONE_HOST.exchange(0.5, is_exact=False, choice=3) == Agreed(0.5, False, 3)
    assert ONE_HOST.first(2**32 - 1) == 2**32 - 1
    assert ONE_HOST.share(b"seed") == b"seed"


def test_host_0_decides():
    found = together(3, lambda hosts: hosts.exchange(0.25 * (hosts.index + 1), hosts.index != 0, 7 - hosts.index))

    assert found == [Agreed(0.25, False, 7)] * 3


def test_content_of_any_length_is_shared():
    for content in (b"", b"a", b"abcd", bytes(range(250))):
        assert together(2, lambda hosts, c=content: hosts.share(c if hosts.is_first else b"")) == [content] * 2


def test_turns_are_the_same_on_every_host():
    def turns(hosts: Hosts) -> list[bool]:
        found = []
        for _ in range(1000):
            hosts.count_call()
            found.append(hosts.take_turn())
        return found

    first, second = together(2, turns)

    assert first == second
    assert first[0]
    assert sum(first) < 500  # Calls that take no time: far fewer exchanges than calls.


def test_equal_arrays_have_equal_digests():
    def put(hosts: Hosts) -> Agreed:
        for array in (np.float32(1), np.zeros((0, 3)), np.arange(6).reshape(2, 3).T, np.ones(3, bool)):
            hosts.count_bytes(np.asarray(array))
        return hosts.exchange()

    assert together(2, put) == [Agreed(0.0, True, 0)] * 2


def test_different_arrays_are_an_error_on_every_host():
    def put(hosts: Hosts) -> Agreed:
        hosts.count_bytes(np.full(3, hosts.index // 2))
        return hosts.exchange()

    assert (
        together(4, put)
        == [
            "hosts 2 and 3 of 4 put other data or weights on the cores than host 0. Every host must run the same "
            "program on the same arrays, with the same random seed: call keras.utils.set_random_seed(7) first"
        ]
        * 4
    )


def test_integers_of_each_host_are_gathered():
    assert together(3, lambda hosts: hosts.gather({hosts.index: hosts.index + 5}, 4)) == [(5, 6, 7, 0)] * 3


@pytest.mark.parametrize("choice", [0, 1, 2**31, 2**32 - 1])
def test_choices_of_all_sizes(choice: int):
    assert together(2, lambda hosts: hosts.first(choice if hosts.is_first else 5)) == [choice] * 2
