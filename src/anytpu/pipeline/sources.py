"""Records and their sources: many files as one list, or as one stream.

Idea: a data loader needs a list: its length, and record i, from any thread or process. A `RecordSource` is such a list
over any number of files. Compressed files have no random access; their `RecordStream` yields the records in order only.

Rule: a record stores its origin, so that an error about its content can name the file, the record and the byte.
"""

from __future__ import annotations

import abc
import bisect
import itertools
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from anytpu._calls import users_stacklevel
from anytpu.errors import RecordError


class Origin(NamedTuple):
    """The origin of a record.

    Attributes:
        file: path or URL.
        number: index of the record in this file, from 0.
        offset_bytes: offset of the record in the file, or in its decompressed content, in bytes; None if not known.
    """

    file: str
    number: int
    offset_bytes: int | None

    def __str__(self) -> str:
        offset = "" if self.offset_bytes is None else f" at byte {self.offset_bytes}"
        return f"{self.file}, record {self.number}{offset}"


class Record(bytes):
    """The bytes of a record, and its `origin`.

    Example:
        >>> record = Record.at(b"abc", Origin("train.tfrecord", 2, 96))
        >>> record == b"abc", str(record.origin)
        (True, 'train.tfrecord, record 2 at byte 96')
    """

    origin: Origin

    @classmethod
    def at(cls, content: bytes | memoryview, origin: Origin) -> Record:
        """Return a record with this content and origin."""
        record = cls(content)
        record.origin = origin
        return record


class Fault(NamedTuple):
    """A record, or the rest of a file, that cannot be read.

    Attributes:
        origin: origin of the record at which the fault was detected.
        reason: the fault, as a clause for a message.
    """

    origin: Origin
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"

    def error(self) -> RecordError:
        """Return the error for this fault, with the setting that skips the record."""
        return RecordError(f'{self}; on_error="skip" skips it')


class RecordShard(abc.ABC):
    """A file of records, read from its beginning to its end."""

    path: str
    faults: tuple[Fault, ...] = ()
    """Records skipped when the file was last read or scanned."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Any]: ...


class IndexedShard(RecordShard):
    """A file with a known number of records and random access."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, index: int) -> Any:
        """Return the record at an index among the readable ones, from 0."""


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


def report_skipped(path: str, faults: Sequence[Fault], known: Sequence[Fault]) -> None:
    """Warn of the skipped records of a file, unless the same warning was given before.

    Args:
        path: the file.
        faults: the skipped records.
        known: the skipped records of the previous read.
    """
    if faults and tuple(faults) != tuple(known):
        skipped = f"{len(faults)} unreadable records were" if len(faults) > 1 else "an unreadable record was"
        warnings.warn(f"{path}: {skipped} skipped. The first: {faults[0]}", stacklevel=users_stacklevel())


def _listed(paths: list[str]) -> str:
    if len(paths) == 1:
        return repr(paths[0])
    return f"{len(paths)} files, {paths[0]!r} to {paths[-1]!r}"
