"""Where a command is asked to write: looked at before anything takes time.

Rule: a file is put into a folder that is there; a folder is made where it is missing, with those above it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from anytpu.errors import SettingError
from anytpu.files.opening import is_opened_pipe


def check_file(option: str, path: Path | None, example: str) -> None:
    """Check a file that will be written; None, for an option that was left out, is right.

    Args:
        option: what was typed before it, "--html".
        path: the file.
        example: a name for it, "plan.html".

    Raises:
        SettingError: it is a folder or a named pipe, its folder is missing, or it cannot be written.
    """
    if path is None:
        return
    if os.path.isdir(path):
        raise SettingError(f"{option} {path} is a folder; name a file in it: {option} {path / example}")
    if not os.path.isdir(path.parent):
        raise SettingError(f"{option} {path}: there is no folder {str(path.parent)!r}; make it: mkdir -p {path.parent}")
    if why := _why_not(path):
        raise SettingError(f"{option} {path} cannot be written: {why}; name another file: {option} {example}")
    if not _is_writable(path if os.path.exists(path) else path.parent, os.W_OK):
        raise SettingError(f"{option} {path} cannot be written; name a file elsewhere: {option} {_elsewhere(path)}")


def check_folder(option: str, path: Path | None) -> None:
    """Check a folder that files will be written into; None, for an option that was left out, is right.

    Raises:
        SettingError: it, or one above it, is no folder, or must not be written.
    """
    if path is None:
        return
    there = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
    if not os.path.isdir(there):
        raise SettingError(f"{option} {path}: {str(there)!r} is no folder; name one, which is made: {option} plots")
    if why := _why_not(path):
        raise SettingError(f"{option} {path} cannot be made: {why}; name another: {option} plots")
    if not _is_writable(there, os.W_OK | os.X_OK):
        raise SettingError(f"{option} {path} cannot be written; name a folder elsewhere: {option} {_elsewhere(path)}")


def check_suffix(option: str, path: Path | None, suffixes: tuple[str, ...], what: str) -> None:
    """Check how the name of a file ends; None is right.

    Args:
        option: what was typed before it, "-o".
        path: the file.
        suffixes: those that are right, the usual one first.
        what: is written, "a program".

    Raises:
        SettingError: it ends otherwise.

    Example:
        >>> check_suffix("-o", Path("model.bin"), (".tpu",), "a program")
        Traceback (most recent call last):
        ...
        anytpu.errors.SettingError: -o model.bin: a program is written to a file whose name ends in .tpu: -o model.tpu
    """
    if path is not None and path.suffix not in suffixes:
        ends = " or ".join(suffixes)
        raise SettingError(
            f"{option} {path}: {what} is written to a file whose name ends in {ends}: "
            f"{option} {path.with_suffix(suffixes[0]) if path.name else 'x' + suffixes[0]}"
        )


def _why_not(path: Path) -> str | None:
    """Return why nothing can be written to a path, for what its rights do not say."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, PermissionError):
        return None
    except OSError as error:
        return error.strerror
    # To open one waits for a reader, which may never come.
    return "Is a named pipe" if stat.S_ISFIFO(mode) and not is_opened_pipe(path, mode) else None


def _is_writable(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _elsewhere(path: Path) -> Path:
    return Path("~") / path.name
