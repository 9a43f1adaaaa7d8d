"""Lines of text as records.

Idea: a line ends with a newline, which does not belong to it, nor does a carriage return before it; the last line of a
file may end without.

Rule: text is decoded here, and a line that cannot be is a fault of that line alone.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.errors import SettingError
from anytpu.pipeline.shards import Content, Format, Layout, open_shards
from anytpu.pipeline.sources import Fault, Origin, RecordSource, RecordStream
from anytpu.pipeline.stored_file import AnyPath, StoredFile
from anytpu.units import MIB

_NEWLINE = 0x0A


def lines(
    paths: AnyPath | Sequence[AnyPath],
    *,
    encoding: str = "utf-8",
    compression: str | None = None,
    on_error: str = "raise",
) -> RecordSource | RecordStream:
    """Read text files line by line.

    Args:
        paths: a path, a URL, a glob pattern, or a list of them.
        encoding: of the text; one in which a newline is the byte 10, as in UTF-8, Latin-1 and ASCII.
        compression: "gzip", "zlib" or None.
        on_error: "raise", or "skip" to leave out lines that cannot be decoded: they are warned of, and listed in
            `skipped`.

    Returns:
        The lines, `str` each, without their ends: a `RecordSource`, or a `RecordStream` of compressed files.

    Raises:
        FileError: there is no such file, or it cannot be read.
        RecordError: while reading: a line cannot be decoded.
        SettingError: there is no such encoding.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "words.txt"
        >>> _ = path.write_text("one\\ntwo\\n")
        >>> source = lines(path)
        >>> len(source), source[-1]
        (2, 'two')
    """
    try:
        is_usable = codecs.lookup(encoding) and "a\n".encode(encoding) == b"a\n"
    except (LookupError, TypeError):
        is_usable = False
    if not is_usable:
        raise SettingError(f'encoding must be one in which a newline is the byte 10, such as "utf-8", not {encoding!r}')
    return open_shards(paths, LineFormat(encoding), compression, on_error)


class LineFormat(Format):
    """Text, one record a line."""

    def __init__(self, encoding: str):
        self._encoding = encoding

    def walk(self, content: Content) -> Iterator[Any]:
        """Yield each line, or a `Fault` in its place."""
        number = offset_bytes = 0
        begun: list[bytes] = []
        while piece := content.read(MIB // 4):
            first, *others = piece.split(b"\n")
            begun.append(first)
            for other in others:
                line = b"".join(begun)
                yield self._decoded(line, Origin(content.path, number, offset_bytes))
                number, offset_bytes, begun = number + 1, offset_bytes + len(line) + 1, [other]
        if line := b"".join(begun):
            yield self._decoded(line, Origin(content.path, number, offset_bytes))

    def layout(self, file: StoredFile) -> Layout:
        """Find the lines by their newlines."""
        found, start = [np.zeros(1, np.int64)], 0
        while chunk := file.read_at(start, file.chunk_bytes):
            found.append(start + 1 + np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE))
            start += len(chunk)
        ends = np.concatenate(found)
        if ends[-1] < start:
            ends = np.append(ends, start)
        return Layout(ends[:-1], np.diff(ends), np.arange(len(ends) - 1))

    def unframe(self, frame: bytes, size_bytes: int, origin: Origin) -> str | Fault:
        """Return the line without its end, or a `Fault`."""
        if len(frame) < size_bytes:
            return Fault(origin, "the file has become shorter since it was first looked through")
        return self._decoded(frame.removesuffix(b"\n"), origin)

    def _decoded(self, line: bytes, origin: Origin) -> str | Fault:
        try:
            return line.removesuffix(b"\r").decode(self._encoding)
        except UnicodeDecodeError as error:
            return Fault(origin, f"the line is not {self._encoding}: {error.reason} at byte {error.start} of it")
