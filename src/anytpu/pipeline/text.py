"""Lines of text as records.

Idea: a line ends with a newline, optionally after a carriage return; neither is part of the record. The last line of a
file may lack its newline.

Rule: text is decoded here; a line that cannot be decoded is a fault of that line only.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.errors import SettingError
from anytpu.pipeline.shards import Content, Format, RecordLayout, open_shards
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
        encoding: encoding of the text, with the byte 10 as newline, as in UTF-8, Latin-1 and ASCII.
        compression: "gzip", "zlib" or None.
        on_error: "raise", or "skip" to leave out lines that cannot be decoded, with a warning; `skipped` lists them.

    Returns:
        The lines, each a `str` without its newline: a `RecordSource`, or a `RecordStream` for compressed files.

    Raises:
        FileError: a file is missing or cannot be read.
        RecordError: a line cannot be decoded; raised while reading.
        SettingError: the encoding is unknown, or its newline is not the byte 10.

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
    """Text with one record per line."""

    def __init__(self, encoding: str):
        self._encoding = encoding

    def walk(self, content: Content) -> Iterator[Any]:
        """Yield each line, or a `Fault` in its place."""
        index = offset_bytes = 0
        unfinished: list[bytes] = []  # pieces of the current line
        while piece := content.read(MIB // 4):
            first, *others = piece.split(b"\n")
            unfinished.append(first)
            for other in others:
                line = b"".join(unfinished)
                yield self._decode(line, Origin(content.path, index, offset_bytes))
                index, offset_bytes, unfinished = index + 1, offset_bytes + len(line) + 1, [other]
        if line := b"".join(unfinished):
            yield self._decode(line, Origin(content.path, index, offset_bytes))

    def layout(self, file: StoredFile) -> RecordLayout:
        """Find the lines by their newlines."""
        boundaries, start = [np.zeros(1, np.int64)], 0
        while chunk := file.read_at(start, file.chunk_bytes):
            boundaries.append(start + 1 + np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE))
            start += len(chunk)
        ends = np.concatenate(boundaries)
        if ends[-1] < start:
            ends = np.append(ends, start)
        return RecordLayout(ends[:-1], np.diff(ends), np.arange(len(ends) - 1))

    def unframe(self, frame: bytes, size_bytes: int, origin: Origin) -> str | Fault:
        """Return the line without its newline, or a `Fault`."""
        if len(frame) < size_bytes:
            return Fault(origin, "the file has become shorter since it was scanned")
        return self._decode(frame.removesuffix(b"\n"), origin)

    def _decode(self, line: bytes, origin: Origin) -> str | Fault:
        try:
            return line.removesuffix(b"\r").decode(self._encoding)
        except UnicodeDecodeError as error:
            return Fault(origin, f"the line is not {self._encoding}: {error.reason} at byte {error.start} of the line")
