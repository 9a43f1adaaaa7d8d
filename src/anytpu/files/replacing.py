"""New files, whole or not at all, which appear in their place in one move.

Idea: a file is written beside its place under a name that nobody can know beforehand, and moved there. Who reads the
place meanwhile sees what was there before.

Rule: the temporary file is created, never opened: if its name exists, even as a link, another name is tried. So in a
folder that others may write to, nobody can choose what is written over.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_TRIES = 100


@contextlib.contextmanager
def replaced(path: Path, suffix: str = "") -> Iterator[Path]:
    """Give a path to write a new file to; it is at `path` when the block ends without an error.

    Args:
        path: where the file goes; what is there is replaced.
        suffix: how the name of the temporary file ends, for writers that look at it.

    Raises:
        OSError: the folder cannot be written to, or the file cannot be moved.

    Example:
        >>> with replaced(Path("model.tpu")) as unfinished:  # doctest: +SKIP
        ...     unfinished.write_bytes(content)
    """
    unfinished = _created(path, suffix)
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _created(path: Path, suffix: str) -> Path:
    """Create an empty file beside a path. Its mode is that of any new file, since it becomes the file itself."""
    for _ in range(_TRIES):
        # A name has at most 255 bytes, and the path's own may have them all.
        beside = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}{suffix}")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666))
            return beside
    raise FileExistsError(f"no new name was found beside {str(path)!r}")
