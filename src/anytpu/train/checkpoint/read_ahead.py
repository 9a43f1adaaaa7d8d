"""`ReadAhead`: a stream of pieces, of which the next are read in threads while the last is used.

Idea: a bucket answers several requests at once faster than one after the other. Meanwhile the reader checks digests.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

AT_ONCE = 4
"""Number of pieces in memory: the one that is used, and those that are read ahead."""


class ReadAhead:
    """A stream of the bytes of all pieces. It is a `ByteSource` and a context manager.

    Args:
        pieces: functions that read the pieces, in order.
    """

    def __init__(self, pieces: Iterable[Callable[[], bytes]]) -> None:
        self._pieces = iter(pieces)
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._ahead: deque[Future[bytes]] = deque()
        self._piece = memoryview(b"")

    def __enter__(self) -> ReadAhead:
        """Return this stream."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Read no more pieces. A request that hangs is not waited for; nobody uses its piece."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the beginning of a buffer, at most to the end of a piece; return 0 at the end.

        Raises:
            OSError, FileError: a piece cannot be read.
        """
        while not self._piece:
            for piece in itertools.islice(self._pieces, AT_ONCE - len(self._ahead)):
                self._ahead.append(self._pool.submit(piece))
            if not self._ahead:
                return 0
            self._piece = memoryview(self._ahead.popleft().result())
        count = min(len(buffer), len(self._piece))
        buffer[:count], self._piece = self._piece[:count], self._piece[count:]
        return count
