"""Find, read and rewrite program files without losing the old text.

Rule: the old file is kept as `old.py.bak`, and an existing backup is never overwritten. Both files are replaced
atomically.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import os
import shutil
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from anytpu.errors import PortError
from anytpu.files.opening import open_file, read_file
from anytpu.files.replacing import replaced, write_bytes
from anytpu.migrate.port.notebook import MAGIC, ported_notebook
from anytpu.migrate.port.program import Ported, ported

SUFFIXES = (".py", ".ipynb")
BACKUP_SUFFIX = ".bak"
_SKIPPED_FOLDERS = ("__pycache__", "node_modules", "site-packages", "venv")


@dataclasses.dataclass(frozen=True)
class PortedFile:
    """A file and its rewritten text.

    Attributes:
        path: the file's path.
        program: the code before and after; for a notebook, the code of its cells.
        content: the whole new text of the file.
        encoding: the file's text encoding.
    """

    path: Path
    program: Ported
    content: str
    encoding: str = "utf-8"

    @property
    def backup(self) -> Path:
        """Path of the backup of the old file."""
        return self.path.with_name(self.path.name + BACKUP_SUFFIX)


def program_files(paths: Iterable[Path]) -> list[Path]:
    """Return the programs at the paths: each file itself, and all programs and notebooks below each folder.

    Raises:
        PortError: a path does not exist, or a folder has no program.
    """
    programs: dict[Path, None] = {}
    for path in paths:
        if os.path.isdir(path):
            # An editor's lock file `.#old.py` is a dangling link, so it is no file.
            files = [file for file in path.rglob("*") if file.suffix in SUFFIXES and os.path.isfile(file)]
            inside = sorted(file for file in files if not _is_skipped(file, path))
            if not inside:
                raise PortError(f"the folder {str(path)!r} has no programs: it needs a file *.py or *.ipynb")
            programs.update(dict.fromkeys(inside))
        else:
            _check_readable(path)
            programs[path] = None
    return list(programs)


def _check_readable(path: Path) -> None:
    try:
        open_file(path).close()
    except FileNotFoundError as error:
        raise PortError(f"there is no file {str(path)!r}; name a program, a notebook or a folder of them") from error
    except OSError as error:
        raise PortError(f"cannot read {str(path)!r}: {error.strerror}") from error


def _is_skipped(path: Path, folder: Path) -> bool:
    above = path.relative_to(folder).parts[:-1]
    return any(part.startswith(".") or part in _SKIPPED_FOLDERS for part in above)


def ported_file(path: Path) -> PortedFile:
    """Read and port a program or a notebook; write nothing.

    Raises:
        PortError: the file cannot be read, or is not Python.
    """
    try:
        raw = read_file(path)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except OSError as error:
        raise PortError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise PortError(f"{path} is not text ({error}); name a Python program or a notebook") from error
    if path.suffix == ".ipynb":
        program, content = ported_notebook(text, str(path))
        return PortedFile(path, program, content, encoding)
    program = ported(text, str(path))
    return PortedFile(path, program, program.new, encoding)


def imported(files: Iterable[PortedFile]) -> dict[Path, Path]:
    """Map each program that another one imports to that one."""
    files = list(files)
    paths = {file.path.resolve(): file.path for file in files}
    found: dict[Path, Path] = {}
    for file in files:
        for node in ast.walk(ast.parse(MAGIC.sub(r"\1pass  # \2", file.program.old))):
            for path in _imports(node, file.path.resolve()):
                if path in paths and paths[path] != file.path:
                    found.setdefault(paths[path], file.path)
    return found


def _imports(node: ast.AST, importer: Path) -> Iterator[Path]:
    """Yield the files that an import may mean: from the folder of its file, and from the folders above it."""
    folders, names = importer.parents, []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        folders = folders[node.level - 1 : node.level] if node.level else folders
        names = [node.module or "", *(f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names)]
    for folder in folders:
        for name in filter(None, names):
            yield folder / f"{name.replace('.', '/')}.py"


def write(files: Iterable[PortedFile]) -> list[Path]:
    """Write the changed files, each with a backup of the old text, and return the backups.

    Raises:
        PortError: a different backup exists already, and nothing is written; or a file cannot be written.
    """
    changed = [file for file in files if file.program.is_changed]
    for file in changed:
        if file.backup.exists() and file.backup.read_bytes() != file.path.read_bytes():
            raise PortError(f"{str(file.backup)!r} exists already: move it away and run the command again")
    for file in changed:
        try:
            with replaced(file.backup) as unfinished:
                shutil.copy2(file.path, unfinished)
            write_bytes(file.path, file.content.encode(file.encoding))
        except OSError as error:
            raise PortError(f"cannot write {str(file.path)!r}: {error.strerror}; it is unchanged") from error
    return [file.backup for file in changed]
