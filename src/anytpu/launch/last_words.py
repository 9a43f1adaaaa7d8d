"""`last_words`: the part of a failed process's stderr that explains the failure.

Idea: it is the last traceback with the exceptions that it names as causes, and all that follows. Without a traceback it
is the last lines.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_LINES = 20
"""Number of lines without a traceback."""

_STARTS = (b"Traceback (most recent call last):", b"  + Exception Group Traceback", b"Fatal Python error:")
_LINKS = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)


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
        return lines[-MAX_LINES:]
    first = starts.pop()
    while starts and lines[max(first - 2, 0)].startswith(_LINKS):
        first = starts.pop()
    return lines[first:]
