"""Links: nothing is lost and nothing arrives twice, however often the connection is replaced."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from anytpu.errors import DataError
from anytpu.worker.link import WINDOW_BYTES, Link


def connect(here: Link, there: Link) -> tuple[int, int]:
    """Begin a connection, as client and worker do, and return its number on both sides."""
    number_there, received_there = there.attach(here.received)
    number_here, _ = here.attach(received_there)
    return number_here, number_there


def carry(source: Link, target: Link, numbers: tuple[int, int], count: int) -> list[bytes]:
    frames = itertools.islice(source.frames(numbers[0]), count)
    return [bytes(message) for frame in frames if (message := target.accept(numbers[1], frame))]


@pytest.mark.parametrize("seed", range(20))
def test_messages_over_connections_that_break(seed: int):
    generator = np.random.default_rng(seed)
    here, there = Link(), Link()
    sent = [bytes(generator.bytes(int(generator.integers(1, 9)))) for _ in range(200)]
    for message in sent:
        here.send(message)
    received: list[bytes] = []
    while len(received) < len(sent):
        numbers = connect(here, there)
        lost = int(generator.integers(0, 3))  # Frames on their way when the connection breaks.
        left = len(sent) - len(received)
        received += carry(here, there, numbers, min(left, int(generator.integers(0, 40))))
        list(itertools.islice(here.frames(numbers[0]), min(lost, len(sent) - len(received))))
    assert received == sent


def test_frames_of_an_earlier_connection_are_dropped():
    here, there = Link(), Link()
    here.send(b"a")
    first = connect(here, there)
    (frame,) = itertools.islice(here.frames(first[0]), 1)
    second = connect(here, there)
    assert there.accept(first[1], frame) == b""
    assert carry(here, there, second, 1) == [b"a"]
    assert there.received == 1


def test_the_sender_waits_for_acknowledgements():
    here, there = Link(), Link()
    numbers = connect(here, there)
    here.send(bytes(WINDOW_BYTES))
    second = threading.Thread(target=here.send, args=(b"b",))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    carry(here, there, numbers, 1)
    (acknowledgement,) = itertools.islice(there.frames(numbers[1]), 1)
    assert here.accept(numbers[0], acknowledgement) == b""
    second.join()


def test_a_closed_link_sends_what_it_has():
    here, there = Link(), Link()
    numbers = connect(here, there)
    here.send(b"a")
    here.close()
    assert carry(here, there, numbers, 2) == [b"a"]
    with pytest.raises(OSError, match="closed"):
        here.send(b"b")


def test_frames_of_strangers():
    link = Link()
    number, _ = link.attach(0)
    with pytest.raises(DataError) as caught:
        link.accept(number, b"abc")
    assert str(caught.value) == "a frame has 3 bytes, fewer than its head"
    with pytest.raises(DataError) as caught:
        link.accept(number, bytes([9, 0, 0, 0, 0, 0, 0, 0]))
    assert str(caught.value) == "9 messages were acknowledged, and 0 to 0 were sent"
    with pytest.raises(DataError, match="5 messages were acknowledged"):
        link.attach(5)


def test_the_rate_of_a_connection(monkeypatch: pytest.MonkeyPatch):
    here, there = Link(), Link()
    for _ in range(8):
        here.send(bytes(2**20))
    frames = here.frames(connect(here, there)[0])
    rates = []
    for now_s in (0.0, 0.05, 0.2, 0.4):  # A message of 1 MiB arrives at each of these times.
        monkeypatch.setattr("time.monotonic", lambda now_s=now_s: now_s)
        there.accept(1, next(frames))
        (acknowledgement,) = itertools.islice(there.frames(1), 1)
        here.accept(1, acknowledgement)
        rates.append(here.bytes_per_s)
    assert rates == pytest.approx([float("inf"), float("inf"), 2 * 2**20 / 0.2, 2**20 / 0.2])


def test_the_rate_does_not_count_the_time_in_which_nothing_waits(monkeypatch: pytest.MonkeyPatch):
    here, there = Link(), Link()
    frames = here.frames(connect(here, there)[0])
    for now_s in (0.0, 9.0, 18.0):
        monkeypatch.setattr("time.monotonic", lambda now_s=now_s: now_s)
        for _ in range(4):
            here.send(bytes(2**20))
        for _ in range(4):
            there.accept(1, next(frames))
        (acknowledgement,) = itertools.islice(there.frames(1), 1)
        here.accept(1, acknowledgement)
    assert here.bytes_per_s == float("inf")
