"""Frames over a socket: the link between the front server and its child.

Idea: the front passes messages on without parsing them. A frame is the length of a message in four bytes, then the
message. So the front needs neither JAX nor the meaning of a message.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

from anytpu.worker.wire import MAX_MESSAGE_BYTES

_LENGTH = struct.Struct("<I")


class FrameSocket:
    """A connected socket that carries frames. Several threads may send.

    Args:
        connection: the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._reader = connection.makefile("rb", buffering=2**18)

    def send(self, *parts: bytes | memoryview) -> None:
        """Send one frame, in parts, without a copy of them.

        Raises:
            OSError: the other side has closed.
        """
        with self._lock:
            unsent = [_LENGTH.pack(sum(map(len, parts))), *parts]
            sent = self._connection.sendmsg(unsent)
            for part in unsent:
                if sent < len(part):
                    self._connection.sendall(memoryview(part)[sent:])
                sent = max(0, sent - len(part))

    def received(self) -> Iterator[bytes]:
        """Yield the frames until the other side closes, or is killed."""
        while size := self._next_size():
            message = self._read(size)
            if len(message) < size:
                return
            yield message

    def _next_size(self) -> int:
        """Return the size of the next message; 0 at the end."""
        head = self._read(_LENGTH.size)
        size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        return size if size <= MAX_MESSAGE_BYTES else 0

    def _read(self, count: int) -> bytes:
        try:
            return self._reader.read(count)
        except OSError:  # A killed process resets the connection if it had unread messages.
            return b""

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
