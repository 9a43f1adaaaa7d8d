"""One file of records: read in order, or looked through once and then read at any place.

Idea: formats differ in three things only: how to walk a file from its beginning, where its records lie, and how a
record is taken out of its frame. The rest - opening, decompressing, skipping what is damaged, remembering where the
records lie - is the same for all, and here.

Rule: a length that a file states is believed only as far as the file goes: nothing is allocated for bytes that are not
there.
"""

from __future__ import annotations

import abc
import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.errors import SettingError
from anytpu.files.memory import check_memory, check_ratio
from anytpu.files.zips import read_up_to
from anytpu.pipeline.compression import MAX_RATIO, CompressionError, Inflated, compression_of
from anytpu.pipeline.sources import (
    Fault,
    IndexedShard,
    Origin,
    RecordSource,
    RecordStream,
    Shard,
    report_skipped,
)
from anytpu.pipeline.storage import expand, stored
from anytpu.pipeline.stored_file import AnyPath, Readable, StoredFile
from anytpu.units import MIB

_PIECE_BYTES = MIB
_SMALL_BYTES = 16 * MIB


class Content:
    """What a file holds, decompressed, from its beginning: a stream that knows where it is.

    Attributes:
        path: the file.
        offset_bytes: how much was read.
    """

    def __init__(self, path: str, stream: Readable, size_bytes: int | None, packed_bytes: int | None = None):
        self.path, self.offset_bytes = path, 0
        self._stream, self._size_bytes, self._packed_bytes = stream, size_bytes, packed_bytes

    def left_bytes(self) -> int | None:
        """Return how much is left, or None when only reading on would tell."""
        return None if self._size_bytes is None else self._size_bytes - self.offset_bytes

    def fault_of(self, length_bytes: int) -> str | None:
        """Return why a record of so many bytes cannot be read from here, as far as that is known before it is read.

        A compressed file cannot hold more than `MAX_RATIO` times its bytes.
        """
        possible_bytes = length_bytes if self._packed_bytes is None else MAX_RATIO * self._packed_bytes
        if length_bytes > possible_bytes:
            # What a small file holds is read to its end, which tells how much is missing.
            is_small = possible_bytes <= _SMALL_BYTES
            return None if is_small else f"the record should have {length_bytes:,} bytes, and the file cannot hold them"
        try:
            check_memory(length_bytes)
            if self._packed_bytes is not None:
                check_ratio(self._packed_bytes, length_bytes)
        except ValueError as error:
            return f"the record cannot be read: {error}"
        return None

    def read(self, length_bytes: int) -> bytes:
        """Read the next bytes: as many as asked for, or fewer where the content ends.

        Raises:
            CompressionError: the file is compressed, and damaged.
        """
        content = self._stream.read(min(length_bytes, _PIECE_BYTES))
        if len(content) < length_bytes and content:
            content = read_up_to(self._stream, length_bytes, content)
        self.offset_bytes += len(content)
        return content


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the records of a file lie.

    Attributes:
        starts: `(records,)` int64, the byte at which each one's frame begins.
        sizes: `(records,)` int64, the bytes of each one's frame.
        numbers: `(records,)` int64, each one's place in the file; other than 0, 1, 2... only where some are left out.
        faults: what is left out.
    """

    starts: np.ndarray
    sizes: np.ndarray
    numbers: np.ndarray
    faults: tuple[Fault, ...] = ()


class Format(abc.ABC):
    """How records lie in a file."""

    @abc.abstractmethod
    def walk(self, content: Content) -> Iterator[Any]:
        """Yield each record, or a `Fault` in its place; after a fault beyond which nothing is known, end."""

    @abc.abstractmethod
    def layout(self, file: StoredFile) -> Layout:
        """Find the records of an uncompressed file, without looking into them."""

    @abc.abstractmethod
    def unframe(self, frame: bytes, size_bytes: int, origin: Origin) -> Any:
        """Return the record of a frame that should have so many bytes, or a `Fault`."""


class FormattedShard(Shard):
    """One file of records in a format, possibly compressed, read in order.

    Args:
        path: the file.
        records: the format.
        compression: "gzip", "zlib" or None.
        skips: whether records that cannot be read are left out, instead of raising.
    """

    def __init__(self, path: str, records: Format, compression: str | None, skips: bool):
        self.path, self._format, self._compression, self._skips = path, records, compression, skips
        self._file = stored(path)

    def __iter__(self) -> Iterator[Any]:
        faults: list[Fault] = []
        with self._file.stream() as stream:
            for found in self._walk(self._content(stream)):
                if not isinstance(found, Fault):
                    yield found
                elif self._skips:
                    faults.append(found)
                else:
                    raise found.error()
        report_skipped(self.path, faults, self.faults)
        self.faults = tuple(faults)

    def _walk(self, content: Content) -> Iterator[Any]:
        number = 0
        try:
            for found in self._format.walk(content):
                number += 1
                yield found
        except CompressionError as error:
            yield Fault(Origin(self.path, number, content.offset_bytes), str(error))

    def _content(self, stream: Readable) -> Content:
        if self._compression is None:
            return Content(self.path, stream, self._file.known_size_bytes())
        inflated = io.BufferedReader(Inflated(stream, self._compression), MIB // 4)
        return Content(self.path, inflated, None, self._file.known_size_bytes())


class PlainShard(FormattedShard, IndexedShard):
    """One uncompressed file of records, any of which can be read alone.

    Where its records lie is found when that is first needed, and remembered, also by copies sent to other processes.
    """

    def __init__(self, path: str, records: Format, skips: bool):
        super().__init__(path, records, None, skips)
        self._layout: Layout | None = None

    def __len__(self) -> int:
        return len(self._found().starts)

    def read(self, number: int) -> Any:
        """Return a record by its place among those that can be read, from 0."""
        found = self._unframed(self._found(), number)
        if isinstance(found, Fault):
            raise found.error()
        return found

    def _found(self) -> Layout:
        if self._layout is None:
            layout = self._format.layout(self._file)
            if self._skips:
                layout = self._without_faults(layout)
                report_skipped(self.path, layout.faults, self.faults)
                self.faults = layout.faults
            elif layout.faults:
                raise layout.faults[0].error()
            self._layout = layout
        return self._layout

    def _without_faults(self, layout: Layout) -> Layout:
        """Look into every record, so that the length counts those that can be read."""
        good, faults = np.ones(len(layout.starts), bool), []
        for number in range(len(layout.starts)):
            found = self._unframed(layout, number)
            if isinstance(found, Fault):
                good[number] = False
                faults.append(found)
        return Layout(layout.starts[good], layout.sizes[good], layout.numbers[good], (*faults, *layout.faults))

    def _unframed(self, layout: Layout, number: int) -> Any:
        start, size = int(layout.starts[number]), int(layout.sizes[number])
        origin = Origin(self.path, int(layout.numbers[number]), start)
        return self._format.unframe(self._file.read_at(start, size), size, origin)


def open_shards(
    paths: AnyPath | Sequence[AnyPath], records: Format, compression: str | None, on_error: str
) -> RecordSource | RecordStream:
    """Return the records of files in a format, as a list where they are not compressed, else as a stream.

    Args:
        paths: a path, a URL, a glob pattern, or a list of them.
        records: the format.
        compression: "gzip", "zlib" or None.
        on_error: "raise" or "skip".

    Raises:
        FileError: no such file.
        SettingError: an argument cannot be used.
    """
    if on_error not in ("raise", "skip"):
        raise SettingError(f'on_error must be "raise" or "skip", not {on_error!r}')
    compression, skips, files = compression_of(compression), on_error == "skip", expand(paths)
    if compression is None:
        return RecordSource([PlainShard(path, records, skips) for path in files])
    return RecordStream([FormattedShard(path, records, compression, skips) for path in files])
