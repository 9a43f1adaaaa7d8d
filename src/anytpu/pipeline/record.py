"""A record of a file, its origin, and its faults.

Rule: a record stores its origin, so that an error about its content can name the file, the record and the byte.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

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
