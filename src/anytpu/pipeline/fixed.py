"""Records of one length, as the CIFAR-10 binary files and MNIST's idx files have them.

Idea: record i lies at `header_bytes + i * record_bytes`; nothing has to be looked through.

Rule: bytes that do not make a whole record are a fault, not a short record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.errors import SettingError
from anytpu.pipeline.shards import Content, Format, Layout, open_shards
from anytpu.pipeline.sources import Fault, Origin, Record, RecordSource, RecordStream
from anytpu.pipeline.stored_file import AnyPath, StoredFile


def fixed_records(
    paths: AnyPath | Sequence[AnyPath],
    record_bytes: int,
    *,
    header_bytes: int = 0,
    footer_bytes: int = 0,
    compression: str | None = None,
    on_error: str = "raise",
) -> RecordSource | RecordStream:
    """Read files of records that all have the same length.

    Args:
        paths: a path, a URL, a glob pattern, or a list of them.
        record_bytes: the length of a record.
        header_bytes: what to leave out at the beginning of each file.
        footer_bytes: what to leave out at its end.
        compression: "gzip", "zlib" or None.
        on_error: "raise", or "skip" to leave out an incomplete last record: it is warned of, and listed in `skipped`.

    Returns:
        The records, `bytes` each: a `RecordSource`, or a `RecordStream` of compressed files.

    Raises:
        FileError: there is no such file, or it cannot be read.
        RecordError: while reading: a file does not hold whole records.
        SettingError: a length cannot be used.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs"
        >>> _ = path.write_bytes(b"HEAD" + b"aabbcc")
        >>> list(fixed_records(path, 2, header_bytes=4))
        [b'aa', b'bb', b'cc']
    """
    for name, value, least in (
        ("record_bytes", record_bytes, 1),
        ("header_bytes", header_bytes, 0),
        ("footer_bytes", footer_bytes, 0),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SettingError(f"{name} must be a whole number of bytes from {least} up, not {value!r}")
    return open_shards(paths, FixedFormat(record_bytes, header_bytes, footer_bytes), compression, on_error)


class FixedFormat(Format):
    """Records of one length between a header and a footer."""

    def __init__(self, record_bytes: int, header_bytes: int, footer_bytes: int):
        self._record_bytes, self._header_bytes, self._footer_bytes = record_bytes, header_bytes, footer_bytes

    def walk(self, content: Content) -> Iterator[Any]:
        """Yield each record; a `Fault` for what is left at the end."""
        kept = content.read(self._header_bytes)
        if len(kept) < self._header_bytes:
            yield self._no_room(content.path, len(kept))
            return
        # The footer is known only once the end is: that many bytes are always held back.
        kept, number = content.read(self._footer_bytes), 0
        if len(kept) < self._footer_bytes:
            yield self._no_room(content.path, self._header_bytes + len(kept))
            return
        while piece := content.read(self._record_bytes):
            origin = Origin(content.path, number, content.offset_bytes - len(piece) - len(kept))
            kept += piece
            if len(piece) < self._record_bytes:
                yield self._incomplete(origin, len(piece))
                return
            yield Record.at(kept[: self._record_bytes], origin)
            kept, number = kept[self._record_bytes :], number + 1

    def layout(self, file: StoredFile) -> Layout:
        """Find the records by counting."""
        held_bytes = file.size_bytes - self._header_bytes - self._footer_bytes
        count, rest = divmod(max(held_bytes, 0), self._record_bytes)
        numbers = np.arange(count)
        faults = []
        if held_bytes < 0:
            faults.append(self._no_room(file.path, file.size_bytes))
        elif rest:
            origin = Origin(file.path, count, self._header_bytes + count * self._record_bytes)
            faults.append(self._incomplete(origin, rest))
        starts = self._header_bytes + numbers * self._record_bytes
        return Layout(starts, np.full(count, self._record_bytes), numbers, tuple(faults))

    def unframe(self, frame: bytes, size_bytes: int, origin: Origin) -> Record | Fault:
        """Return the record, which has no frame, or a `Fault` if the file has become shorter."""
        if len(frame) < size_bytes:
            return Fault(origin, "the file has become shorter since it was first looked at")
        return Record.at(frame, origin)

    def _incomplete(self, origin: Origin, left_bytes: int) -> Fault:
        return Fault(origin, f"the record should have {self._record_bytes} bytes, and {left_bytes} are left")

    def _no_room(self, path: str, size_bytes: int) -> Fault:
        wanted = f"a header of {self._header_bytes} bytes and a footer of {self._footer_bytes}"
        return Fault(Origin(path, 0, 0), f"the file should have {wanted}, and has {size_bytes} bytes")
