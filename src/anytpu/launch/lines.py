"""The lines that a process prints: `LineBuffer` splits them, and `last_words` finds those that explain its failure.

Idea: they are shown as a terminal would show them. A carriage return starts the line again, as progress bars do. Only
the newest state of such a line is kept. A failure is explained by the last traceback with the exceptions that it names
as causes, and by all that follows. Without a traceback it is explained by the last lines.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_LINE_BYTES = 1 << 20
"""Size at which a line without an end is cut."""
MAX_LAST_LINES = 20
"""Number of last words without a traceback, in lines."""

_STARTS = (b"Traceback (most recent call last):", b"  + Exception Group Traceback", b"Fatal Python error:")
_LINKS = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)


class LineBuffer:
    """Collects bytes and returns complete lines.

    Example:
        >>> lines = LineBuffer()
        >>> lines.feed(b"step 1\\nstep"), lines.feed(b" 2\\r\\n10 %\\r20 %")
        ([b'step 1'], [b'step 2'])
        >>> lines.unfinished(), lines.unfinished()
        (b'20 %', None)
        >>> lines.feed(b"\\r30 %\\n")
        [b'30 %']
    """

    def __init__(self) -> None:
        self._rest = b""
        self._shown = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add bytes, and return the lines that they complete, without line ends."""
        *complete, rest = (self._rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            complete.append(rest)
            rest = b""
        # The last carriage return stays: it may be half of a line end, b"\r\n".
        before, carriage_return, after = rest.rpartition(b"\r")
        self._rest = before.rpartition(b"\r")[2] + carriage_return + after
        if complete:
            self._shown = b""
        return list(map(_visible, complete))

    def unfinished(self) -> bytes | None:
        """Return the line that has no end yet; None if it is empty or was returned before."""
        visible = _visible(self._rest)
        if visible in (b"", self._shown):
            return None
        self._shown = visible
        return visible


def _visible(line: bytes) -> bytes:
    """Return the text after the last carriage return that text follows."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def last_words(lines: Sequence[bytes]) -> Sequence[bytes]:
    """Return the lines from the start of the last traceback, or the last lines.

    Args:
        lines: lines of stderr, the newest last.

    Example:
        >>> last_words([b"loading", b"Traceback (most recent call last):", b"ValueError: 8"])
        [b'Traceback (most recent call last):', b'ValueError: 8']
    """
    starts = [number for number, line in enumerate(lines) if line.startswith(_STARTS)]
    if not starts:
        return lines[-MAX_LAST_LINES:]
    first = starts.pop()
    while starts and lines[max(first - 2, 0)].startswith(_LINKS):
        first = starts.pop()
    return lines[first:]
