"""`RunReader`: reads the record of a run, also while it grows.

Idea: a reader keeps its place in metrics.jsonl and reads what is new. Of a long file it takes every event, and some
thousand points that are evenly spaced. Ten runs of 100,000 points are so open in a second.

Rule: nothing in the files is trusted. A line that is not one of the format is counted and left out. A line without its
end is still being written.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anytpu.errors import FileError
from anytpu.files.json_text import read_json
from anytpu.train.record.writing import LINES_NAME, MAX_LINE_BYTES, read_about

MAX_POINTS = 3000
"""Points that a reader keeps, at most twice."""

_WHOLE_BYTES = 2**20
"""Size up to which every line of a new part is read."""
_LAST_BYTES = 2**16
_EVENT = b'{"event":'
_CHUNK_BYTES, _HEAD_BYTES = 2**24, 64
_MAX_NUMBER = 1e100

Line = dict[str, Any]


class RunReader:
    """The record of a run as it stands at the last `update`.

    Args:
        folder: the folder of the run.

    Raises:
        FileError: there is no record, or a newer release wrote it.

    Attributes:
        name: name of the folder.
        about: the content of run.json.
        points: the points in order, thinned.
        epochs: the ends of epochs, all of them.
        events: the other events, all of them.
        unreadable: number of lines that could not be read.
        state: one of "running", "ended", "failed", "stopped", "killed", "unknown".
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)
        self.name = self.folder.absolute().name
        if not (self.folder / LINES_NAME).is_file():
            raise FileError(
                f"there is no record of a run in {str(folder)!r}: pass the run_dir, or the checkpoint_dir, of a fit"
            )
        self.about: Line = {}
        self._head = b""
        self._restart()
        self.update()

    def _restart(self) -> None:
        self.points: list[Line] = []
        self.epochs: list[Line] = []
        self.events: list[Line] = []
        self.unreadable = self._offset = 0

    @property
    def version(self) -> tuple[int, str]:
        """A value that changes when the record does."""
        return self._offset, self.state

    def update(self) -> None:
        """Read what is new.

        Raises:
            FileError: the record is gone, or a newer release wrote it.
        """
        try:
            self.about = read_about(self.folder)
            with open(self.folder / LINES_NAME, "rb") as file:
                # The lock is looked at first: the last line of a run that has ended is then there.
                state = _state_by_lock(file)
                size, head = os.fstat(file.fileno()).st_size, file.read(_HEAD_BYTES)
                if size < self._offset or not head.startswith(self._head):
                    self._restart()
                self._head = head
                if size - self._offset > _WHOLE_BYTES:
                    self._read_sample(file, size)
                file.seek(self._offset)
                content = file.read(_CHUNK_BYTES)
        except OSError as error:
            raise FileError(f"the record in {str(self.folder)!r} cannot be read: {error.strerror or error}") from error
        end = content.rfind(b"\n") + 1
        self._offset += end
        self._take(content[:end].splitlines())
        last = self.events[-1]["event"] if self.events else ""
        self.state = last if last in ("ended", "failed", "stopped") else state

    def _read_sample(self, file: Any, size: int) -> None:
        """Take the events of a long part of the file and evenly spaced points, in their order, but for its end."""
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as text:
            first, end = self._offset, text.rfind(b"\n", 0, size - _LAST_BYTES) + 1
            starts = {text.find(b"\n", first + (end - first) * n // MAX_POINTS) + 1 for n in range(MAX_POINTS)} | {
                first
            }
            place = text.find(b"\n" + _EVENT, first, end)
            while place >= 0:
                starts.add(place + 1)
                place = text.find(b"\n" + _EVENT, place + 1, end)
            lines = [text[start : text.find(b"\n", start)] for start in sorted(starts) if first <= start < end]
        self._offset = max(first, end)
        self._take(lines)

    def _take(self, lines: Iterable[bytes]) -> None:
        for text in lines:
            line = _line(text)
            if line is None:
                self.unreadable += bool(text.strip())
            elif "event" not in line:
                self.points.append(line)
            elif line["event"] == "epoch":
                self.epochs.append(line)
            else:
                if line["event"] == "began":
                    self._replace_after(line["step"])
                self.events.append(line)
        while len(self.points) > 2 * MAX_POINTS:
            del self.points[1:-1:2]

    def _replace_after(self, step: int) -> None:
        """Leave out what a process that was killed had written after the step at which the run begins again."""
        for name in ("points", "epochs", "events"):
            kept = [line for line in getattr(self, name) if line["step"] <= step or line.get("event") == "began"]
            setattr(self, name, kept)


def _state_by_lock(file: Any) -> str:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return "running"
    except OSError:
        return "unknown"
    return "killed"


def _line(text: bytes) -> Line | None:
    """Return a line of the format, with its numbers checked; None for any other text."""
    try:
        line = read_json(text, MAX_LINE_BYTES)
    except ValueError:
        return None
    if not isinstance(line, dict) or not _is_step(line.get("step")) or not isinstance(line.get("event", ""), str):
        return None
    for name in ("metrics", "spent"):
        part = line.get(name, {})
        line[name] = {key: value for key, value in part.items() if is_number(value)} if isinstance(part, dict) else {}
    for name in ("time", "epoch", "steps", "step_s", "examples_per_s", "loss", "mfu", "usual"):
        if not is_number(line.get(name)):
            line.pop(name, None)
    return line


def is_number(value: Any) -> bool:
    """Return whether a value of a file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MAX_NUMBER < value < _MAX_NUMBER


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
