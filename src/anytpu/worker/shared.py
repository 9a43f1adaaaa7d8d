"""Large arrays on their way through the front server: from chunks into memory that the child maps.

Idea: the front copies each chunk once, into a file in memory (memfd). A complete array is one message to the child: the
head of its last chunk and the file. So no byte of it passes a socket between the processes.

Rule: the front never maps the file. Otherwise a child that shortens it could end the front.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import threading
from typing import final

import numpy as np

from anytpu.errors import DataError
from anytpu.worker.chunk import HEAD_BYTES, ChunkReader


@final
class SharedArrays:
    """The large arrays that a client sends, one after another.

    Args:
        connection: socket to the child.

    Attributes:
        max_bytes: maximum size of one array, the session's memory. A larger one is dropped, and the child is told.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.max_bytes = 0
        self._connection, self._order = connection, ChunkReader()
        self._lock, self._is_closed = threading.Lock(), False
        self._file: int | None = None

    def send(self, message: bytes | memoryview) -> None:
        """Take one chunk.

        Raises:
            DataError: it does not follow the previous chunk.
            OSError: the child has ended.
        """
        chunk = self._order.next(message)
        with self._lock:
            if self._is_closed:
                raise BrokenPipeError("the child has ended")
            if chunk.is_first and chunk.size_bytes <= self.max_bytes:
                self._file = _memory_file()
                os.truncate(self._file, chunk.size_bytes)
            if self._file is not None:  # A new file is all zeros.
                _write(self._file, memoryview(chunk.content), chunk.offset)
            if chunk.is_last:
                files = [] if self._file is None else [self._file]
                # The message has a descriptor of its own for the child, so this one is closed.
                socket.send_fds(self._connection, [message[:HEAD_BYTES]], files)
                self._release()

    def close(self) -> None:
        """Release the memory of an array that is not complete; nothing can be sent any more."""
        with self._lock:
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def receive_shared(connection: socket.socket) -> tuple[bytes, int | None] | None:
    """Return the head of the last chunk of the next array and its file, None if it was too large; None at the end."""
    head, files, _, _ = socket.recv_fds(connection, HEAD_BYTES, 1, socket.MSG_WAITALL)
    return (head, files[0] if files else None) if len(head) == HEAD_BYTES else None


def map_shared(file: int, size_bytes: int) -> np.ndarray:
    """Return the bytes of a file in memory as an array, and close the file."""
    try:
        return np.frombuffer(mmap.mmap(file, size_bytes, prot=mmap.PROT_READ | mmap.PROT_WRITE), np.uint8)
    finally:
        os.close(file)


def _memory_file() -> int:
    """Return a new file in memory; where the system has none (macOS), one without a name in its temporary folder."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("anytpu array", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(file: int, content: memoryview, offset: int) -> None:
    while content:
        count = os.pwrite(file, content, offset)
        if not count:
            raise DataError("the machine has no memory for an array")
        content, offset = content[count:], offset + count
