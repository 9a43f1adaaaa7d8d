"""Opening of files that a user names, for reading.

Idea: a path may name something other than a regular file. Opening a named pipe blocks until a writer comes, perhaps for
ever, and a device such as /dev/zero has no end. Both are rejected before they are opened, with a reason in the style of
the operating system.

Rule: a pipe that the shell opened for the process (`/dev/stdin`, `<(command)`) has a writer already, and is read.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import IO

_KINDS = {
    stat.S_IFIFO: "Is a named pipe",
    stat.S_IFSOCK: "Is a socket",
    stat.S_IFCHR: "Is a device",
    stat.S_IFBLK: "Is a device",
}
_OPENED = ("/dev/", "/proc/")
"""Folders in which the operating system lists a process's open files."""

MAX_TEXT_BYTES = 64 * 2**20
"""Maximum size of a text file: a thousand times any price list or table that a user writes."""


def open_file(path: Path) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        OSError: it cannot be opened, or is not a regular file; `strerror` says why, such as "Is a named pipe".

    Example:
        >>> with open_file(Path("model.tpu")) as stream:  # doctest: +SKIP
        ...     start = stream.read(4)
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.EINVAL, f"Is a link to {os.readlink(path)!r}, which does not exist", path) from None
        raise
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None and not is_opened_pipe(path, mode):
        raise OSError(errno.EINVAL, kind, path)
    return path.open("rb")


def read_file(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: as `open_file` does.
    """
    with open_file(path) as stream:
        return stream.read()


def read_text(path: Path, encoding: str = "utf-8", max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the content of a text file.

    Args:
        path: the file.
        encoding: encoding of the text.
        max_bytes: maximum size, so that a damaged or foreign file does not fill the memory.

    Raises:
        OSError: as `open_file` does; or the file is larger: `strerror` states both sizes.
        UnicodeDecodeError: the content is not text in this encoding.
    """
    with open_file(path) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        size_bytes = max(path.stat().st_size, len(content))  # the system states 0 for a pipe
        raise OSError(errno.EFBIG, f"Has {size_bytes:,} bytes or more; the maximum is {max_bytes:,}", path)
    with io.TextIOWrapper(io.BytesIO(content), encoding) as text:
        return text.read()


def is_opened_pipe(path: Path, mode: int) -> bool:
    """Return whether a path with this mode is a pipe that the shell opened for the process."""
    return stat.S_ISFIFO(mode) and str(path).startswith(_OPENED)
