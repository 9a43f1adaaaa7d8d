"""Programs as files: found, read, and written back without ever losing the old text.

Rule: the old file stays beside the new one as `old.py.bak`, and a backup that is there already is never overwritten. A
file is written beside its place and then moved there, so that it is the old one or the new one at any moment.
"""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import tempfile
import tokenize
from collections.abc import Iterable
from pathlib import Path

from anytpu.errors import PortError
from anytpu.files.opening import open_file, read_file
from anytpu.port.notebook import ported_notebook
from anytpu.port.program import Ported, ported

SUFFIXES = (".py", ".ipynb")
BACKUP_SUFFIX = ".bak"
_SKIPPED_FOLDERS = ("__pycache__", "node_modules", "site-packages", "venv")


@dataclasses.dataclass(frozen=True)
class PortedFile:
    """A file, and what it is to become.

    Attributes:
        path: where it is.
        program: its code, before and after; of a notebook that of its cells.
        content: the whole new text of the file.
        encoding: how it is encoded.
    """

    path: Path
    program: Ported
    content: str
    encoding: str = "utf-8"

    @property
    def backup(self) -> Path:
        """Where the old file is kept."""
        return self.path.with_name(self.path.name + BACKUP_SUFFIX)


def program_files(paths: Iterable[Path]) -> list[Path]:
    """Return the programs that paths name: files as they are, and all programs and notebooks in folders.

    Raises:
        PortError: a path does not exist, or a folder has no program.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if os.path.isdir(path):
            inside = sorted(one for one in path.rglob("*") if _is_program(one) and not _is_skipped(one, path))
            if not inside:
                raise PortError(f"the folder {str(path)!r} has no programs: it needs a file *.py or *.ipynb")
            found.update(dict.fromkeys(inside))
        else:
            _check(path)
            found[path] = None
    return list(found)


def _check(path: Path) -> None:
    try:
        open_file(path).close()
    except FileNotFoundError as error:
        raise PortError(f"there is no file {str(path)!r}; name a program, a notebook or a folder of them") from error
    except OSError as error:
        raise PortError(f"cannot read {str(path)!r}: {error.strerror}") from error


def _is_program(path: Path) -> bool:
    """Return whether a path in a folder names a program: an editor's lock file is a link to nothing, `.#old.py`."""
    return path.suffix in SUFFIXES and os.path.isfile(path)


def _is_skipped(path: Path, folder: Path) -> bool:
    above = path.relative_to(folder).parts[:-1]
    return any(part.startswith(".") or part in _SKIPPED_FOLDERS for part in above)


def ported_file(path: Path) -> PortedFile:
    """Read a program or a notebook and port it; nothing is written.

    Raises:
        PortError: it cannot be read, or is no Python.
    """
    try:
        raw = read_file(path)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except OSError as error:
        raise PortError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise PortError(f"{path} is no text ({error}); name a Python program or a notebook") from error
    if path.suffix == ".ipynb":
        program, content = ported_notebook(text, str(path))
        return PortedFile(path, program, content, encoding)
    program = ported(text, str(path))
    return PortedFile(path, program, program.new, encoding)


def write(files: Iterable[PortedFile]) -> list[Path]:
    """Write files that changed, each beside a backup of what it was, and return the backups.

    Raises:
        PortError: a backup is there already, of something else; then nothing is written. Or a file cannot be written.
    """
    changed = [file for file in files if file.program.is_changed]
    for file in changed:
        if file.backup.exists() and file.backup.read_bytes() != file.path.read_bytes():
            raise PortError(f"there is a {str(file.backup)!r} already: move it away, and type the same again")
    for file in changed:
        try:
            shutil.copy2(file.path, file.backup)
            _replace(file)
        except OSError as error:
            raise PortError(f"cannot write {str(file.path)!r}: {error.strerror}; it is as it was") from error
    return [file.backup for file in changed]


def _replace(file: PortedFile) -> None:
    target = file.path.resolve()  # a link stays a link
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with open(handle, "w", encoding=file.encoding, newline="") as stream:
            stream.write(file.content)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(target, name)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
