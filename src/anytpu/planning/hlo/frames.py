"""`Frames`: the line of the user's program for the number of a stack frame.

Idea: the compiler keeps the Python stack of each instruction as four linked tables: files, functions, locations,
frames. The user's line is the innermost one outside of libraries.

Rule: frames outside of anytpu's tracing belong to the caller of the plan, not to the program, and are ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import re

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_NAMED = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
_LOCATED = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)", re.MULTILINE)
_FRAMED = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.?\d*)[/\\]|^<")
_SLASH = re.compile(r"[/\\]")
_OURS = re.compile(r"[/\\](?:src|site-packages|dist-packages)[/\\]anytpu[/\\]")
_TRACING = re.compile(_OURS.pattern + r"(?:program|planning)[/\\]")


@dataclasses.dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program: file, line number (from 1) and function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return the file's name and the line: "model.py:12"."""
        return f"{re.split(_SLASH, self.file)[-1]}:{self.line}"


class Frames:
    """The stack frames of a module, read when first asked for.

    Args:
        text: the part of the module's text before its first computation.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._sources: dict[int, SourceLine | None] = {}

    def stack(self, frame: int) -> list[SourceLine]:
        """Return the lines of a frame and of its callers, the innermost first; [] for a frame that is not listed."""
        lines = []
        while frame in self._frames and len(lines) <= len(self._frames):
            location, frame = self._frames[frame]
            lines.append(self._locations.get(location, SourceLine("<unknown>", 0, "")))
        return lines

    def source(self, frame: int) -> SourceLine | None:
        """Return the innermost line that is the user's, or None."""
        if frame not in self._sources:
            self._sources[frame] = self._source(frame)
        return self._sources[frame]

    def _source(self, frame: int) -> SourceLine | None:
        for line in self.stack(frame):
            if _TRACING.search(line.file):
                return None
            if not _LIBRARY.search(line.file) and not _OURS.search(line.file):
                return line
        return None

    @functools.cached_property
    def _locations(self) -> dict[int, SourceLine]:
        files, functions = self._names("FileNames"), self._names("FunctionNames")
        return {
            int(number): SourceLine(files.get(file, "<unknown>"), int(line), functions.get(function, ""))
            for number, file, function, line in _LOCATED.findall(self._table("FileLocations"))
        }

    @functools.cached_property
    def _frames(self) -> dict[int, tuple[int, int]]:
        """The location and the caller's frame of each frame, 0 for no caller."""
        rows = [tuple(int(x or 0) for x in row) for row in _FRAMED.findall(self._table("StackFrames"))]
        # libtpu 0.0.51 writes one more than the caller's number, so that 1 is nobody; others may write the number.
        shift = 1 if any(parent >= number for number, _, parent in rows) else 0
        return {number: (location, parent - shift) for number, location, parent in rows}

    def _names(self, table: str) -> dict[str, str]:
        return dict(_NAMED.findall(self._table(table)))

    def _table(self, name: str) -> str:
        start = self._text.find(f"\n{name}\n")
        if start < 0:
            return ""
        end = self._text.find("\n\n", start + 1)
        return self._text[start : end if end > 0 else len(self._text)]
