"""Atomic writing: a new file appears at its path complete, or not at all.

Idea: the content is written to a temporary file in the same folder, under an unpredictable name, and then renamed. A
reader of the path meanwhile sees the old content.

Rule: the temporary file is created, never opened: if its name exists, even as a link, another name is tried. So in a
folder that others can write to, nobody can choose a file that is overwritten.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_MAX_TRIES = 100


@contextlib.contextmanager
def replaced(path: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path to write to; the file is moved to `path` when the block ends without an error.

    Args:
        path: destination; an existing file is replaced.
        suffix: end of the temporary file's name, for writers that choose a format by it.

    Raises:
        OSError: the folder cannot be written to, or the file cannot be moved.

    Example:
        >>> with replaced(Path("model.tpu")) as unfinished:  # doctest: +SKIP
        ...     unfinished.write_bytes(content)
    """
    unfinished = _create_beside(path, suffix)
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _create_beside(path: Path, suffix: str) -> Path:
    """Create an empty file in the folder of a path, with the mode of any new file, since it becomes the file itself."""
    for _ in range(_MAX_TRIES):
        # A name has at most 255 bytes, and the path's own name may use all of them.
        beside = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}{suffix}")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666))
            return beside
    raise FileExistsError(f"no free name for a temporary file beside {str(path)!r}")
