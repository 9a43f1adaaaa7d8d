"""The output files of a command: checks of their paths before its long work, and writing of a text.

Rule: the folder of an output file must exist; an output folder is created with its parents.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from anytpu.errors import SettingError
from anytpu.files import replacing
from anytpu.files.opening import is_opened_pipe


def check_file(option: str, path: Path | None, example: str) -> None:
    """Check the path of a file to write; None, an option that was not given, is valid.

    Args:
        option: the path's option, "--html".
        path: the file.
        example: an example of a file name, "plan.html".

    Raises:
        SettingError: the path is a folder or a named pipe, its folder is missing, or it cannot be written.
    """
    if path is None:
        return
    if os.path.isdir(path):
        raise SettingError(f"{option} {path} is a folder; name a file in it: {option} {path / example}")
    if not os.path.isdir(path.parent):
        raise SettingError(f"{option} {path}: there is no folder {str(path.parent)!r}; make it: mkdir -p {path.parent}")
    if reason := _reason_against(path):
        raise SettingError(f"{option} {path} cannot be written: {reason}; name another file: {option} {example}")
    if not _is_writable(path if os.path.exists(path) else path.parent, os.W_OK):
        raise SettingError(f"{option} {path} cannot be written; name a file elsewhere: {option} {_elsewhere(path)}")


def check_folder(option: str, path: Path | None) -> None:
    """Check the path of an output folder; None, an option that was not given, is valid.

    Raises:
        SettingError: it or a parent is not a folder, or is not writable.
    """
    if path is None:
        return
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
    if not os.path.isdir(existing):
        raise SettingError(
            f"{option} {path}: {str(existing)!r} is not a folder; name a folder, which is created: {option} plots"
        )
    if reason := _reason_against(path):
        raise SettingError(f"{option} {path} cannot be made: {reason}; name another: {option} plots")
    if not _is_writable(existing, os.W_OK | os.X_OK):
        raise SettingError(f"{option} {path} cannot be written; name a folder elsewhere: {option} {_elsewhere(path)}")


def check_suffix(option: str, path: Path | None, suffixes: tuple[str, ...], content: str) -> None:
    """Check a file name's suffix; None is valid.

    Args:
        option: the path's option, "-o".
        path: the file.
        suffixes: the valid suffixes, the usual one first.
        content: the file's content for the error, "a program".

    Raises:
        SettingError: the suffix is another.

    Example:
        >>> check_suffix("-o", Path("model.bin"), (".tpu",), "a program")
        Traceback (most recent call last):
        ...
        anytpu.errors.SettingError: -o model.bin: a program is written to a file whose name ends in .tpu: -o model.tpu
    """
    if path is not None and path.suffix not in suffixes:
        ends = " or ".join(suffixes)
        raise SettingError(
            f"{option} {path}: {content} is written to a file whose name ends in {ends}: "
            f"{option} {path.with_suffix(suffixes[0]) if path.name else 'x' + suffixes[0]}"
        )


def write_text(path: Path, text: str) -> Path:
    """Write a text to a file and return its path.

    Raises:
        SettingError: the file cannot be written.
    """
    try:
        replacing.write_text(path, text)
    except OSError as error:
        raise SettingError(f"{str(path)!r} cannot be written: {error.strerror or error}; name another file") from error
    return path


def _reason_against(path: Path) -> str | None:
    """Return a reason, other than its permissions, why a path cannot be written; None if there is none."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, PermissionError):
        return None
    except OSError as error:
        return error.strerror
    # Opening a named pipe for writing blocks until a reader opens it, which may never happen.
    return "Is a named pipe" if stat.S_ISFIFO(mode) and not is_opened_pipe(path, mode) else None


def _is_writable(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _elsewhere(path: Path) -> Path:
    return Path("~") / path.name
