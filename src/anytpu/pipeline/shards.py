"""Files of records: many as one list, or as one stream.

Idea: a data loader needs a list: its length, and record i, from any thread or process. A `RecordSource` is such a list
over any number of files. Compressed files have no random access; their `RecordStream` yields the records in order only.

A format defines only the iteration over a file, the offsets of its records, and the extraction of a record from
its frame. Everything else is common to all formats and is here: opening, decompressing, skipping damaged
records, caching the offsets.

Rule: a length that a file states is checked against the size of the file before any allocation.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import io
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.errors import SettingError
from anytpu.files.memory import check_memory, check_ratio
from anytpu.files.zips import Readable, read_up_to
from anytpu.pipeline.compression import MAX_RATIO, CompressionError, Inflated, compression_of
from anytpu.pipeline.record import Fault, Origin, report_skipped
from anytpu.pipeline.storage import AnyPath, StoredFile, expand, stored
from anytpu.units import MIB

_PIECE_BYTES = MIB
_SMALL_BYTES = 16 * MIB


class ShardContent:
    """The decompressed content of a file as a stream with a position.

    Attributes:
        path: the file.
        offset_bytes: number of bytes read so far.
    """

    def __init__(self, path: str, stream: Readable, size_bytes: int | None, packed_bytes: int | None = None):
        self.path, self.offset_bytes = path, 0
        self._stream, self._size_bytes, self._packed_bytes = stream, size_bytes, packed_bytes

    def left_bytes(self) -> int | None:
        """Return the number of bytes left, or None if it is unknown, as for compressed files."""
        return None if self._size_bytes is None else self._size_bytes - self.offset_bytes

    def fault_of(self, length_bytes: int) -> str | None:
        """Return why a record of this length cannot be read, as far as is known before reading; None if it may be.

        A compressed file cannot hold more than `MAX_RATIO` times its size.
        """
        possible_bytes = length_bytes if self._packed_bytes is None else MAX_RATIO * self._packed_bytes
        if length_bytes > possible_bytes:
            # A small file is read to its end, so that the error can state the number of missing bytes.
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
        """Read the next bytes, fewer at the end of the content.

        Raises:
            CompressionError: the compressed file is damaged.
        """
        content = self._stream.read(min(length_bytes, _PIECE_BYTES))
        if len(content) < length_bytes and content:
            content = read_up_to(self._stream, length_bytes, content)
        self.offset_bytes += len(content)
        return content


@dataclasses.dataclass(frozen=True)
class RecordLayout:
    """Offsets and sizes of a file's records.

    Attributes:
        starts: offset of each record's frame, in bytes; `(records,)` int64.
        sizes: size of each record's frame, in bytes; `(records,)` int64.
        indices: index of each record in the file; `(records,)` int64. It has gaps where faulty records are left out.
        faults: the records that are left out.
    """

    starts: np.ndarray
    sizes: np.ndarray
    indices: np.ndarray
    faults: tuple[Fault, ...] = ()


class Format(abc.ABC):
    """A file format of records."""

    @abc.abstractmethod
    def walk(self, content: ShardContent) -> Iterator[Any]:
        """Yield each record, or a `Fault` in its place; end after a fault from which the format cannot recover."""

    @abc.abstractmethod
    def layout(self, file: StoredFile) -> RecordLayout:
        """Find the records of an uncompressed file, without reading their content."""

    @abc.abstractmethod
    def unframe(self, frame: bytes, size_bytes: int, origin: Origin) -> Any:
        """Return the record in a frame, whose expected size is `size_bytes`, or a `Fault`."""


class RecordShard:
    """A file of records in a format, possibly compressed, read in order.

    Args:
        path: the file.
        records: the format.
        compression: "gzip", "zlib" or None.
        skips: whether unreadable records are skipped; if not, they raise.

    Attributes:
        faults: records skipped when the file was last read or scanned.
    """

    faults: tuple[Fault, ...] = ()

    def __init__(self, path: str, records: Format, compression: str | None, skips: bool):
        self.path, self._format, self._compression, self._skips = path, records, compression, skips
        self._file = stored(path)

    def __iter__(self) -> Iterator[Any]:
        faults: list[Fault] = []
        with self._file.stream() as stream:
            for item in self._walk(self._content(stream)):
                if not isinstance(item, Fault):
                    yield item
                elif self._skips:
                    faults.append(item)
                else:
                    raise item.error()
        report_skipped(self.path, faults, self.faults)
        self.faults = tuple(faults)

    def _walk(self, content: ShardContent) -> Iterator[Any]:
        index = 0
        try:
            for item in self._format.walk(content):
                index += 1
                yield item
        except CompressionError as error:
            yield Fault(Origin(self.path, index, content.offset_bytes), str(error))

    def _content(self, stream: Readable) -> ShardContent:
        if self._compression is None:
            return ShardContent(self.path, stream, self._file.size_bytes)
        inflated = io.BufferedReader(Inflated(stream, self._compression), MIB // 4)
        return ShardContent(self.path, inflated, None, self._file.size_bytes)


class IndexedShard(RecordShard):
    """An uncompressed file of records with random access.

    The offsets of its records are found on first use and cached; copies sent to other processes keep them.
    """

    def __init__(self, path: str, records: Format, skips: bool):
        super().__init__(path, records, None, skips)
        self._layout: RecordLayout | None = None

    def __len__(self) -> int:
        return len(self._scan().starts)

    def read(self, index: int) -> Any:
        """Return the record at an index among the readable ones, from 0."""
        item = self._unframe(self._scan(), index)
        if isinstance(item, Fault):
            raise item.error()
        return item

    def _scan(self) -> RecordLayout:
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

    def _without_faults(self, layout: RecordLayout) -> RecordLayout:
        """Read every record, so that the length counts the readable ones only."""
        good, faults = np.ones(len(layout.starts), bool), []
        for index in range(len(layout.starts)):
            item = self._unframe(layout, index)
            if isinstance(item, Fault):
                good[index] = False
                faults.append(item)
        return RecordLayout(layout.starts[good], layout.sizes[good], layout.indices[good], (*faults, *layout.faults))

    def _unframe(self, layout: RecordLayout, index: int) -> Any:
        start, size = int(layout.starts[index]), int(layout.sizes[index])
        origin = Origin(self.path, int(layout.indices[index]), start)
        return self._format.unframe(self._file.read_at(start, size), size, origin)


class RecordStream:
    """Records of one or more files, in order. It can be iterated repeatedly and pickled.

    Attributes:
        shards: the files.
    """

    def __init__(self, shards: Sequence[RecordShard]):
        self.shards = tuple(shards)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.shards)

    @property
    def skipped(self) -> tuple[Fault, ...]:
        """Faults skipped so far by `on_error="skip"`; a fault in a file's structure also covers all later records."""
        return tuple(itertools.chain.from_iterable(shard.faults for shard in self.shards))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_listed([shard.path for shard in self.shards])})"


class RecordSource(RecordStream, Sequence):
    """Records of one or more files as one list, suitable for `grain.MapDataset.source`.

    The files are scanned when the length or a record is first needed; iteration needs no scan.

    Attributes:
        shards: the files.
    """

    shards: tuple[IndexedShard, ...]

    def __init__(self, shards: Sequence[IndexedShard]):
        super().__init__(shards)
        self._ends: list[int] = []

    def __len__(self) -> int:
        return self._index()[-1]

    def __getitem__(self, index: int) -> Any:
        index, length = operator.index(index), len(self)
        if not -length <= index < length:
            raise IndexError(f"there is no record {index}: {self!r} has {length} records, numbered from 0")
        index %= length
        shard = bisect.bisect_right(self._ends, index)
        return self.shards[shard].read(index - (self._ends[shard - 1] if shard else 0))

    def _index(self) -> list[int]:
        if not self._ends:
            self._ends = list(itertools.accumulate(len(shard) for shard in self.shards))
        return self._ends


def open_shards(
    paths: AnyPath | Sequence[AnyPath], records: Format, compression: str | None, on_error: str
) -> RecordSource | RecordStream:
    """Return the records of files in a format: a `RecordSource` of uncompressed files, a `RecordStream` of others.

    Args:
        paths: a path, a URL, a glob pattern, or a list of them.
        records: the format.
        compression: "gzip", "zlib" or None.
        on_error: "raise" or "skip".

    Raises:
        FileError: a file is missing.
        SettingError: `compression` or `on_error` has an unknown value.
    """
    if on_error not in ("raise", "skip"):
        raise SettingError(f'on_error must be "raise" or "skip", not {on_error!r}')
    compression, skips, files = compression_of(compression), on_error == "skip", expand(paths)
    if compression is None:
        return RecordSource([IndexedShard(path, records, skips) for path in files])
    return RecordStream([RecordShard(path, records, compression, skips) for path in files])


def _listed(paths: list[str]) -> str:
    if len(paths) == 1:
        return repr(paths[0])
    return f"{len(paths)} files, {paths[0]!r} to {paths[-1]!r}"
