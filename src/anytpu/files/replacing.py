"""Atomic writing: a new file appears at its path complete, or not at all.

Idea: the content is written to a temporary file in the same folder, under an unpredictable name, and then renamed. A
reader of the path meanwhile sees the old content. If the disk is full, the old file stays as it was.

Rule: the temporary file is created, never opened: if its name exists, even as a link, another name is tried. So in a
folder that others can write to, nobody can choose a file that is overwritten.

Exception: a folder may take no new files, for want of permission or because it is mounted read-only. A writable file in
it is written in place, and an error may then leave a part of the new content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_MAX_TRIES = 100
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a folder that takes no new files. After others, such as a full disk, the old file must stay."""
_SPECIAL = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/.*")
"""Names of open files. /dev/stdout may be a regular file, which the shell has open."""


@contextlib.contextmanager
def replaced(path: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path to write to; the file is moved to `path` when the block ends without an error.

    The user's own link stays a link, and an existing file keeps its mode. A device or a pipe, such as
    /dev/stdout, is yielded itself. So is a writable file in a folder that takes no new files.

    Args:
        path: destination; an existing file is replaced.
        suffix: end of the temporary file's name, for writers that choose a format by it.

    Raises:
        OSError: the folder cannot be written to, or the file cannot be moved.

    Example:
        >>> with replaced(Path("model.tpu")) as unfinished:  # doctest: +SKIP
        ...     unfinished.write_bytes(content)
    """
    # 1. A device or a pipe has no old content to keep.
    is_file = path.is_file()
    is_special = path.exists() and not is_file and not path.is_dir()
    if is_special or _SPECIAL.fullmatch(str(path)):
        yield path
        return
    # 2. The caller writes beside the destination. A link keeps pointing to it, unless another user made the link.
    target = path.resolve() if path.is_symlink() and path.lstat().st_uid == os.geteuid() else path
    try:
        unfinished = _create_beside(target, suffix)
    except OSError as error:
        # A file in a closed folder is written in place, if it may be written to.
        if error.errno not in _CLOSED or not is_file or not os.access(target, os.W_OK):
            raise
        yield target
        return
    try:
        yield unfinished
        # 3. The content is on the disk before the name is.
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())  # Some file systems report a full disk only here.
        if is_file:
            shutil.copymode(target, unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file: all of it, or nothing.

    Raises:
        OSError: the file cannot be written, for example because the disk is full.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "answer.txt"
        >>> write_bytes(path, b"42")
        >>> path.read_bytes()
        b'42'
    """
    with replaced(path) as unfinished:
        unfinished.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, as `write_bytes` does.

    Raises:
        OSError: the file cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def _create_beside(path: Path, suffix: str) -> Path:
    """Create an empty file in the folder of a path, with the mode of any new file, since it becomes the file itself."""
    for _ in range(_MAX_TRIES):
        # A name has at most 255 bytes, and the path's own name may use all of them.
        beside = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}{suffix}")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666))
            return beside
    raise FileExistsError(f"no free name for a temporary file beside {str(path)!r}")
