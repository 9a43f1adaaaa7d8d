"""Keep a trial from changing files outside its copy of the folder.

Idea: Python calls an audit hook before it opens, removes, renames or makes a file. Links are resolved. A large file of
the folder is a link in the copy, and is copied before its first change.

Rule: in the folders for temporary files and caches a trial may make new files, and change those that it made. A process
that the program starts is refused, since the hook does not reach it. Code in C other than h5py's is not seen.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LINKS = {
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
}
"""Events about a name itself, with the places of the paths; a link under it is not followed."""
_FILES = ("os.truncate", "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "shutil.rmtree")
_OPENS = ("open", "sqlite3.connect")
_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class OutsideError(PermissionError):
    """A program changes a file outside of the trial's copy of its folder, or starts a process."""


class Guard:
    """The audit hook of a trial.

    Attributes:
        refused: the errors that were raised, also those that the program caught, with the program's line.
    """

    def __init__(self, own: Path, program: str) -> None:
        """Watch a trial whose files are below `own`; the program is the file `program`."""
        home = Path.home()
        self.refused: list[tuple[int, OutsideError]] = []
        self._own, self._program = os.path.realpath(own), program
        caches = [tempfile.gettempdir(), "/tmp", home / ".keras", home / ".cache"]
        self._caches = [os.path.realpath(folder) for folder in caches]
        self._library = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
        self._made: set[str] = set()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse an event that changes another file."""
        if event in _PROCESSES:
            if self._is_of_program():
                self._refuse(f"a trial starts no other process, which may change files: {arguments[0]}")
        elif event in _LINKS:
            for index in _LINKS[event]:
                self._check_name(event, arguments[index], arguments)
        elif event in _FILES or (event in _OPENS and _opens_to_write(event, arguments)):
            self._check_file(event, arguments[0])

    def _check_name(self, event: str, name: Any, arguments: tuple[Any, ...]) -> None:
        text = _text(name)
        folder = arguments[-1] if isinstance(arguments[-1], int) and arguments[-1] >= 0 else None
        if folder is not None and text is not None and os.path.exists(f"/proc/self/fd/{folder}"):
            text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
        if text is None or (event == "os.mkdir" and os.path.isdir(text)):
            return
        parent, last = os.path.split(os.path.abspath(text))
        self._check(os.path.join(os.path.realpath(parent), last))

    def _check_file(self, event: str, name: Any) -> None:
        text = _text(name)
        if text is None or text in (os.devnull, ":memory:"):
            return
        path = os.path.realpath(text)
        link = os.path.join(os.path.realpath(os.path.dirname(text) or "."), os.path.basename(text))
        is_linked = os.path.islink(link) and os.path.isfile(path) and not self._is_own(path)
        if is_linked and self._is_own(link) and event != "shutil.rmtree":
            os.remove(link)
            shutil.copyfile(path, link)
        else:
            self._check(path)

    def _is_own(self, path: str) -> bool:
        return path.startswith((self._own + os.sep, f"/proc/{os.getpid()}/"))  # Libraries name their threads there.

    def _check(self, path: str) -> None:
        if self._is_own(path) or path in self._made:
            return
        if not os.path.lexists(path) and any(path.startswith(folder + os.sep) for folder in self._caches):
            self._made.add(path)
            return
        self._refuse(
            f"{path} is outside of the trial's copy of the folder, and a trial changes no other file; "
            "write a relative path, or port with --no-try"
        )

    def _refuse(self, text: str) -> None:
        error = OutsideError(text)
        frame, line = sys._getframe(), 1
        while frame is not None:
            if frame.f_code.co_filename == self._program:
                line = frame.f_lineno
                break
            frame = frame.f_back
        self.refused.append((line, error))
        raise error

    def _is_of_program(self) -> bool:
        """Return whether the program itself or a module beside it starts a process, not an installed package."""
        frame = sys._getframe(2)
        while frame is not None:
            name = os.path.realpath(frame.f_code.co_filename)
            if "site-packages" in name or not name.startswith(self._library):
                return self._is_own(name)
            frame = frame.f_back
        return False


def _opens_to_write(event: str, arguments: tuple[Any, ...]) -> bool:
    mode, flags = (*arguments[1:], None, None)[:2]
    if event != "open":
        return True
    return bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool((flags or 0) & _WRITES)


def _text(name: Any) -> str | None:
    """Return a path as text; None for the number of a file that is open."""
    return None if isinstance(name, int) else os.fsdecode(name)


def guard(own: Path, program: str) -> Guard:
    """Install the hook for the rest of this process."""
    made = Guard(own, program)
    sys.dont_write_bytecode = True
    _watch_h5py()
    sys.addaudithook(made)
    return made


def _watch_h5py() -> None:
    """Report the files that h5py opens, which its C code does not."""
    try:
        import h5py
    except ImportError:
        return
    files: Any = h5py.h5f

    def reported(function: Callable[..., Any], writes: Callable[..., bool]) -> Callable[..., Any]:
        def call(name: Any, *args: Any, **kwargs: Any) -> Any:
            if writes(*args, **kwargs):
                sys.audit("open", os.fsdecode(name), "r+", 0)
            return function(name, *args, **kwargs)

        return call

    files.create = reported(files.create, lambda *_, **__: True)
    files.open = reported(files.open, lambda flags=files.ACC_RDWR, *_, **__: bool(flags & files.ACC_RDWR))
