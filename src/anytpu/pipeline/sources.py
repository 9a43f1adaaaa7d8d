"""Records, and what they are read from: many files as one list, or as one stream.

Idea: a loader wants a list: its length, and record number i, from any thread or process. A `RecordSource` is one over
any number of files. Where that cannot be, in compressed files, a `RecordStream` gives the records in order, and
nothing else.

Rule: a record knows where it came from, so that whoever finds a fault in it can name the file, the record and the byte.
"""

from __future__ import annotations

import abc
import bisect
import itertools
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from anytpu.errors import RecordError

ItemT = TypeVar("ItemT", bound="bytes | str")


class Origin(NamedTuple):
    """Where a record came from.

    Attributes:
        file: the path or URL.
        number: the record's place in this file, from 0.
        offset_bytes: where it begins in the file, or in what the compressed file holds; None where that is not known.
    """

    file: str
    number: int
    offset_bytes: int | None

    def __str__(self) -> str:
        place = "" if self.offset_bytes is None else f" at byte {self.offset_bytes}"
        return f"{self.file}, record {self.number}{place}"


class Record(bytes):
    """The bytes of a record, and `origin`: where they came from.

    Example:
        >>> record = Record.at(b"abc", Origin("train.tfrecord", 2, 96))
        >>> record == b"abc", str(record.origin)
        (True, 'train.tfrecord, record 2 at byte 96')
    """

    origin: Origin

    @classmethod
    def at(cls, content: bytes | memoryview, origin: Origin) -> Record:
        """Return these bytes as a record."""
        record = cls(content)
        record.origin = origin
        return record


class Fault(NamedTuple):
    """Why a record, or the rest of a file, cannot be read.

    Attributes:
        origin: the record where it was noticed.
        reason: what is wrong.
    """

    origin: Origin
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"

    def error(self) -> RecordError:
        """Return the error that says so, and how to go on without this record."""
        return RecordError(f'{self}; on_error="skip" goes on without it')


class Shard(abc.ABC):
    """One file of records, read from its beginning to its end."""

    path: str
    faults: tuple[Fault, ...] = ()
    """What was skipped when the file was last read or indexed."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[Any]: ...


class IndexedShard(Shard):
    """One file of records, of known number, each of which can be read alone."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, number: int) -> Any:
        """Return a record by its place among those that can be read, from 0."""


class RecordStream:
    """Records of one or more files, in order. It can be iterated any number of times, and pickled.

    Attributes:
        shards: the files.
    """

    def __init__(self, shards: Sequence[Shard]):
        self.shards = tuple(shards)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.shards)

    @property
    def skipped(self) -> tuple[Fault, ...]:
        """What `on_error="skip"` has left out so far; a fault in a file's structure stands for all after it."""
        return tuple(itertools.chain.from_iterable(shard.faults for shard in self.shards))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_listed([shard.path for shard in self.shards])})"


class RecordSource(RecordStream, Sequence):
    """Records of one or more files as one list: what `grain.MapDataset.source` takes.

    The files are looked through when the length or a record is first asked for; iterating needs no look before.

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
        number, length = operator.index(index), len(self)
        if not -length <= number < length:
            raise IndexError(f"there is no record {number}: {self!r} has {length} records, numbered from 0")
        number %= length
        place = bisect.bisect_right(self._ends, number)
        return self.shards[place].read(number - (self._ends[place - 1] if place else 0))

    def _index(self) -> list[int]:
        if not self._ends:
            self._ends = list(itertools.accumulate(len(shard) for shard in self.shards))
        return self._ends


def report_skipped(path: str, faults: Sequence[Fault], known: Sequence[Fault]) -> None:
    """Warn of the records that were left out of a file, unless that was said before.

    Args:
        path: the file.
        faults: what was left out.
        known: what was left out when it was read before.
    """
    if faults and tuple(faults) != tuple(known):
        count = (
            f"{len(faults)} records that cannot be read were" if len(faults) > 1 else "a record that cannot be read was"
        )
        warnings.warn(f"{path}: {count} skipped. The first: {faults[0]}", stacklevel=3)


def _listed(paths: list[str]) -> str:
    if len(paths) == 1:
        return repr(paths[0])
    return f"{len(paths)} files, {paths[0]!r} to {paths[-1]!r}"
