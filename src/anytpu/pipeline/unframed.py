"""Records without frames: lines of text, and records of fixed length, as in CIFAR-10's and MNIST's binary files.

Idea: a line ends with a newline, optionally after a carriage return; neither is part of the record. The last line of a
file may lack its newline. A record of fixed length starts at byte `header_bytes + index * record_bytes`: no scan is
needed.

Rule: a line that cannot be decoded is a fault of that line only. An incomplete last record of fixed length is a fault,
not a short record.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anytpu._calls import explain_arguments
from anytpu.errors import SettingError
from anytpu.pipeline.checks import check_count
from anytpu.pipeline.record import Fault, Origin, Record
from anytpu.pipeline.shards import Format, RecordLayout, RecordSource, RecordStream, ShardContent, open_shards
from anytpu.pipeline.storage import AnyPath, StoredFile
from anytpu.units import MIB

_NEWLINE = 0x0A
_SHORTER = "the file has become shorter since it was scanned"


@explain_arguments
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

    def walk(self, content: ShardContent) -> Iterator[Any]:
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
            return Fault(origin, _SHORTER)
        return self._decode(frame.removesuffix(b"\n"), origin)

    def _decode(self, line: bytes, origin: Origin) -> str | Fault:
        try:
            return line.removesuffix(b"\r").decode(self._encoding)
        except UnicodeDecodeError as error:
            return Fault(origin, f"the line is not {self._encoding}: {error.reason} at byte {error.start} of the line")


@explain_arguments
def fixed_records(
    paths: AnyPath | Sequence[AnyPath],
    record_bytes: int,
    *,
    header_bytes: int = 0,
    footer_bytes: int = 0,
    compression: str | None = None,
    on_error: str = "raise",
) -> RecordSource | RecordStream:
    """Read files of records of fixed length.

    Args:
        paths: a path, a URL, a glob pattern, or a list of them.
        record_bytes: length of a record, at least 1.
        header_bytes: bytes to skip at the beginning of each file.
        footer_bytes: bytes to skip at the end of each file.
        compression: "gzip", "zlib" or None.
        on_error: "raise", or "skip" to leave out an incomplete last record, with a warning; `skipped` lists it.

    Returns:
        The records, each of type `bytes`: a `RecordSource`, or a `RecordStream` for compressed files.

    Raises:
        FileError: a file is missing or cannot be read.
        RecordError: a file ends within a record; raised while reading.
        SettingError: a length is not an integer or is too small.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs"
        >>> _ = path.write_bytes(b"HEAD" + b"aabbcc")
        >>> list(fixed_records(path, 2, header_bytes=4))
        [b'aa', b'bb', b'cc']
    """
    for name, value, minimum in (
        ("record_bytes", record_bytes, 1),
        ("header_bytes", header_bytes, 0),
        ("footer_bytes", footer_bytes, 0),
    ):
        check_count(name, value, minimum)
    return open_shards(paths, FixedFormat(record_bytes, header_bytes, footer_bytes), compression, on_error)


class FixedFormat(Format):
    """Records of fixed length between a header and a footer."""

    def __init__(self, record_bytes: int, header_bytes: int, footer_bytes: int):
        self._record_bytes, self._header_bytes, self._footer_bytes = record_bytes, header_bytes, footer_bytes

    def walk(self, content: ShardContent) -> Iterator[Any]:
        """Yield each record, and a `Fault` for an incomplete one at the end."""
        header = content.read(self._header_bytes)
        if len(header) < self._header_bytes:
            yield self._too_short(content.path, len(header))
            return
        # The end of a stream is not known in advance, so the last `footer_bytes` read are always held back.
        held, index = content.read(self._footer_bytes), 0
        if len(held) < self._footer_bytes:
            yield self._too_short(content.path, self._header_bytes + len(held))
            return
        while piece := content.read(self._record_bytes):
            origin = Origin(content.path, index, content.offset_bytes - len(piece) - len(held))
            held += piece
            if len(piece) < self._record_bytes:
                yield self._incomplete(origin, len(piece))
                return
            yield Record.at(held[: self._record_bytes], origin)
            held, index = held[self._record_bytes :], index + 1

    def layout(self, file: StoredFile) -> RecordLayout:
        """Compute the records' offsets from the size of the file."""
        content_bytes = file.size_bytes - self._header_bytes - self._footer_bytes
        count, remainder_bytes = divmod(max(content_bytes, 0), self._record_bytes)
        indices = np.arange(count)
        faults = []
        if content_bytes < 0:
            faults.append(self._too_short(file.path, file.size_bytes))
        elif remainder_bytes:
            origin = Origin(file.path, count, self._header_bytes + count * self._record_bytes)
            faults.append(self._incomplete(origin, remainder_bytes))
        starts = self._header_bytes + indices * self._record_bytes
        return RecordLayout(starts, np.full(count, self._record_bytes), indices, tuple(faults))

    def unframe(self, frame: bytes, size_bytes: int, origin: Origin) -> Record | Fault:
        """Return the bytes as a record, or a `Fault` if the file has become shorter."""
        if len(frame) < size_bytes:
            return Fault(origin, _SHORTER)
        return Record.at(frame, origin)

    def _incomplete(self, origin: Origin, left_bytes: int) -> Fault:
        return Fault(origin, f"the record should have {self._record_bytes} bytes, and {left_bytes} are left")

    def _too_short(self, path: str, size_bytes: int) -> Fault:
        expected = f"a header of {self._header_bytes} bytes and a footer of {self._footer_bytes}"
        return Fault(Origin(path, 0, 0), f"the file should have {expected}, and has {size_bytes} bytes")
