"""The log of a worker: one printable line for each event, and a bounded number of lines of a kind.

Idea: strangers cause lines, such as refused calls, and choose some of their words. So nothing of a line controls a
terminal or begins another line. A place in the code writes a bounded number of lines in a minute; one more line counts
those that were left out.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, TextIO, final

from anytpu.units import printable

MAX_EQUAL = 20
"""Maximum number of lines of a kind in `PERIOD_S`."""
PERIOD_S = 60.0

_MAX_CHARACTERS = 2000


@final
class _Lines(logging.Formatter):
    """Escapes a message; the lines of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record), _MAX_CHARACTERS)

    def formatException(self, ei: Any) -> str:
        text = super().formatException(ei)
        return "\n".join(f"    {printable(line)}" for line in text.splitlines())


@final
class _Bound(logging.Filter):
    """Passes `MAX_EQUAL` records of a kind in `PERIOD_S`, and then tells how many it did not pass.

    Args:
        handler: receives the line that tells it.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler, self._lock = handler, threading.Lock()
        self._counts: dict[tuple[str, int], int] = {}
        """Number of records since the period of their kind began, by the place in the code that made them."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.pathname, record.lineno)
        with self._lock:
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count == 1:
            timer = threading.Timer(PERIOD_S, self._end_period, (kind, record))
            timer.daemon = True
            timer.start()
        return count <= MAX_EQUAL

    def _end_period(self, kind: tuple[str, int], record: logging.LogRecord) -> None:
        with self._lock:
            left_out = self._counts.pop(kind) - MAX_EQUAL
        if left_out > 0:
            text = f"left out in {PERIOD_S:g} s: {left_out} lines like {record.getMessage()!r}"
            self._handler.emit(logging.LogRecord(record.name, record.levelno, *kind, text, None, None))


def log_handler(stream: TextIO) -> logging.Handler:
    """Return the handler that writes the log of a worker."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines("%(asctime)s %(message)s"))
    handler.addFilter(_Bound(handler))
    return handler
