"""Files that a user asks for: a failure to write one is an error that names it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from anytpu.errors import SettingError
from anytpu.files.replacing import write_text


@contextlib.contextmanager
def explained(noun: str, path: str | Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a `SettingError`.

    Args:
        noun: name of the content in the error: "the page".
        path: the path that the user gave.
    """
    if not isinstance(path, str | Path):
        raise SettingError(f"{noun} cannot be written to {path!r}: give a path, such as 'plan.html'")
    try:
        yield
    except OSError as error:
        raise SettingError(f"{noun} cannot be written to {str(path)!r}: {error.strerror or error}") from error


def write(text: str, path: str | Path, noun: str) -> Path:
    """Write a text to a file, which is replaced, and return its path.

    Args:
        text: the text.
        path: the file.
        noun: name of the text in the error: "the page".

    Raises:
        SettingError: the file cannot be written.
    """
    with explained(noun, path):
        target = Path(path)
        write_text(target, text)
    return target
