"""A link: messages in both directions, which survive the loss of the connection that carries them.

Idea: a sender keeps each message until the other side has acknowledged it. When a connection is lost, each side tells
in the metadata of the next one how many messages it has received. The senders continue there, so no message is lost and
none arrives twice.

A frame on the connection is a count (eight bytes), and then one message. A message has at least one byte: a frame
without a message acknowledges. The count of such a frame is the number of messages that its sender has received. The
count of any other frame is 0, so it is made once and sent again as it is.
"""

from __future__ import annotations

import collections
import math
import struct
import threading
import time
from collections.abc import Iterator
from typing import final

from anytpu.errors import DataError

HEAD = bytes(8)
"""The head of a frame that has a message."""

WINDOW_BYTES = 16 * 2**20
"""Maximum size of the messages that wait for their acknowledgement; then `send` waits, too."""

_BACKLOG_BYTES = 2 * 2**20
"""Minimum size of the messages that wait, for their acknowledgement to tell the rate of the connection."""
_RATE_S = 0.1

_COUNT = struct.Struct("<Q")
_ACKNOWLEDGE_BYTES = 2**20
_ACKNOWLEDGE_MESSAGES = 64


@final
class Link:
    """One side of a link. Any thread may call any method.

    A connection has a number, which `attach` returns. A later connection replaces it; then its iterators end.

    Attributes:
        sent_bytes: bytes of the messages that were sent.
        received_bytes: bytes of the messages that were received.
        bytes_per_s: bytes per second that the connection carried when messages last waited for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: collections.deque[bytes] = collections.deque()
        self._kept_bytes = 0
        self._first = 0
        """Number of messages that the other side has acknowledged; the first kept one has this number."""
        self._received = 0
        self._unacknowledged = self._unacknowledged_bytes = 0
        self._connection = 0
        self._is_closed = False
        self.sent_bytes = self.received_bytes = 0
        self.bytes_per_s = math.inf
        self._measured: tuple[float, int] | None = None
        """Since when messages have waited, and the bytes that were acknowledged since then; None if none wait."""

    @property
    def received(self) -> int:
        """Number of messages that were received."""
        return self._received

    @property
    def is_closed(self) -> bool:
        """Whether the link was closed on this side."""
        return self._is_closed

    def send(self, *parts: bytes | memoryview) -> None:
        """Send a message, in parts, with or without a connection; wait while too many are not acknowledged.

        Args:
            parts: parts of the message, which has at least one byte.

        Raises:
            OSError: the link is closed.
        """
        self.send_frame(b"".join((HEAD, *parts)))

    def send_frame(self, frame: bytes) -> None:
        """Send a message that follows `HEAD` already; otherwise as `send`."""
        size = len(frame) - len(HEAD)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._kept_bytes < WINDOW_BYTES)
            if self._is_closed:
                raise BrokenPipeError("the link is closed")
            self._kept.append(frame)
            self._kept_bytes += size
            self.sent_bytes += size
            self._changed.notify_all()

    def attach(self, received_there: int) -> tuple[int, int]:
        """Begin a connection, in place of the one before.

        Args:
            received_there: number of messages that the other side has received.

        Returns:
            Number of the connection, and number of messages that this side has received.

        Raises:
            DataError: the other side has received other messages than were sent.
        """
        with self._changed:
            self._acknowledge(received_there)
            self._measured = None
            self._connection += 1
            self._changed.notify_all()
            return self._connection, self._received

    def detach(self, connection: int) -> bool:
        """End a connection, and return whether it was the present one."""
        with self._changed:
            if connection != self._connection:
                return False
            # No connection has this number, so the iterators of this one end.
            self._connection += 1
            self._changed.notify_all()
            return True

    def frames(self, connection: int) -> Iterator[bytes]:
        """Yield the frames to send over a connection, from the first message that was not acknowledged."""
        position = self._first
        while True:
            with self._changed:
                self._changed.wait_for(lambda at=position: self._has_frame(connection, at))
                if connection != self._connection or (self._is_closed and position >= self._first + len(self._kept)):
                    return
                # Acknowledgements go first: the other side may wait for one with a full window.
                if self._must_acknowledge() or position == self._first + len(self._kept):
                    self._unacknowledged = self._unacknowledged_bytes = 0
                    frame = _COUNT.pack(self._received)
                else:
                    frame = self._kept[position - self._first]
                    position += 1
            yield frame

    def accept(self, connection: int, frame: bytes) -> bytes | memoryview:
        """Take a frame that arrived, and return its message; b"" for none, or from a connection that was replaced.

        Raises:
            DataError: it is not a frame of this link.
        """
        if len(frame) < _COUNT.size:
            raise DataError(f"a frame has {len(frame)} bytes, fewer than its head")
        with self._changed:
            if connection != self._connection:
                return b""
            size = len(frame) - _COUNT.size
            if not size:
                self._acknowledge(_COUNT.unpack_from(frame)[0])
            else:
                self._received += 1
                self.received_bytes += size
                self._unacknowledged += 1
                self._unacknowledged_bytes += size
                if self._must_acknowledge():
                    self._changed.notify_all()
        return memoryview(frame)[_COUNT.size :]

    def close(self) -> None:
        """End the link: messages that wait are still sent, then the frames end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _acknowledge(self, received_there: int) -> None:
        if not self._first <= received_there <= self._first + len(self._kept):
            sent = self._first + len(self._kept)
            raise DataError(f"{received_there} messages were acknowledged, and {self._first} to {sent} were sent")
        waiting_bytes = self._kept_bytes
        for _ in range(received_there - self._first):
            self._kept_bytes -= len(self._kept.popleft()) - len(HEAD)
        if received_there > self._first:
            self._first = received_there
            self._measure(waiting_bytes)
            self._changed.notify_all()

    def _measure(self, waiting_bytes: int) -> None:
        """Measure the rate, from how many bytes waited before an acknowledgement and how many wait after it."""
        now_s = time.monotonic()
        began_s, size = self._measured or (now_s, 0)
        size += waiting_bytes - self._kept_bytes if self._measured else 0
        if now_s - began_s >= _RATE_S:
            self.bytes_per_s = size / (now_s - began_s)
            began_s, size = now_s, 0
        # With less than that, the sender may have had nothing to send.
        self._measured = (began_s, size) if self._kept_bytes >= _BACKLOG_BYTES else None

    def _has_frame(self, connection: int, position: int) -> bool:
        is_over = connection != self._connection or self._is_closed
        return is_over or position < self._first + len(self._kept) or self._must_acknowledge()

    def _must_acknowledge(self) -> bool:
        return self._unacknowledged_bytes >= _ACKNOWLEDGE_BYTES or self._unacknowledged >= _ACKNOWLEDGE_MESSAGES
