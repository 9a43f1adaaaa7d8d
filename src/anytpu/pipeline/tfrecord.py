"""TFRecord files, read and written without TensorFlow.

A file is one frame after another: the record's length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes
(4), the record, its masked CRC-32C (4).

Idea: the lengths lead from frame to frame, so one quick look finds every record, and each can then be read alone.

Rule: both checksums are checked on every read. A length that fails its own ends what can be known of the file.
"""

from __future__ import annotations

import array
import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.errors import RecordError
from anytpu.pipeline.checksums import masked_crc32c
from anytpu.pipeline.compression import Deflated, compression_of
from anytpu.pipeline.shards import Content, Format, Layout, open_shards
from anytpu.pipeline.sources import Fault, Origin, Record, RecordSource, RecordStream
from anytpu.pipeline.storage import created, shard_names
from anytpu.pipeline.stored_file import AnyPath, StoredFile, Writable
from anytpu.units import MIB

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _CHECKSUM.size
_GZIP_MARK = b"\x1f\x8b"


def records(
    paths: AnyPath | Sequence[AnyPath], *, compression: str | None = None, on_error: str = "raise"
) -> RecordSource | RecordStream:
    """Read TFRecord files.

    Args:
        paths: a path, a URL (gs://, s3://, https://), a glob pattern such as "train-?????-of-00004.tfrecord", or a list
            of them. The files of a pattern come in order of name.
        compression: "gzip", "zlib", or None when the files are not compressed.
        on_error: "raise", or "skip" to leave out records that cannot be read: they are warned of, and listed in
            `skipped`.

    Returns:
        The records, each of them `bytes` that know their `origin`. Of uncompressed files a `RecordSource`: a list, with
        a length. Of compressed ones a `RecordStream`, which can only be iterated.

    Raises:
        FileError: there is no such file, or it cannot be read.
        RecordError: while reading: a file is truncated or damaged; the message names the file, the record and the byte.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "three.tfrecord"
        >>> _ = write_records(path, [b"a", b"bc", b""])
        >>> source = records(path)
        >>> len(source), source[1], list(source)
        (3, b'bc', [b'a', b'bc', b''])
    """
    return open_shards(paths, TFRecordFormat(), compression, on_error)


def write_records(
    path: AnyPath, contents: Iterable[bytes], shards: int = 1, compression: str | None = None
) -> tuple[str, ...]:
    """Write records to a TFRecord file, or to several.

    A file is in its place when all of it is written, and not at all if something fails before.

    Args:
        path: the file. With several shards, "train.tfrecord" becomes "train-00000-of-00004.tfrecord" and so on.
        contents: the records; record i goes to shard i modulo `shards`.
        shards: the number of files, 1 to 99,999.
        compression: "gzip", "zlib" or None.

    Returns:
        The files' paths.

    Raises:
        FileError: a file cannot be written.
        RecordError: a record is not bytes.
    """
    compression, names = compression_of(compression), shard_names(path, shards)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_writer(name, compression)) for name in names]
        for number, content in enumerate(contents):
            if not isinstance(content, bytes | bytearray | memoryview):
                kind = type(content).__name__
                raise RecordError(
                    f"record {number} to write must be bytes, not {kind}; encode_example makes them of a dict"
                )
            files[number % shards].write(frame(bytes(content)))
    return names


def frame(content: bytes) -> bytes:
    """Return a record in its frame, as it lies in a file.

    Example:
        >>> frame(b"").hex(" ", 4)
        '00000000 00000000 29039807 d8ea82a2'
    """
    length = _LENGTH.pack(len(content))
    return b"".join((length, _CHECKSUM.pack(masked_crc32c(length)), content, _CHECKSUM.pack(masked_crc32c(content))))


class TFRecordFormat(Format):
    """Frames one after another, each with its length and two checksums."""

    def walk(self, content: Content) -> Iterator[Any]:
        """Yield each record, or a `Fault` in its place; end after a length that cannot be believed."""
        number = 0
        while header := content.read(_HEADER.size):
            origin = Origin(content.path, number, content.offset_bytes - len(header))
            found = _checked_length(header, origin)
            if isinstance(found, Fault):
                yield found
                return
            left_bytes = content.left_bytes()
            if left_bytes is not None and found + _CHECKSUM.size > left_bytes:
                yield _too_short(origin, found, left_bytes)
                return
            if (reason := content.fault_of(found + _CHECKSUM.size)) is not None:
                yield Fault(origin, reason)
                return
            body = content.read(found + _CHECKSUM.size)
            if len(body) < found + _CHECKSUM.size:
                yield _too_short(origin, found, len(body))
                return
            yield _checked_record(memoryview(body), origin)
            number += 1

    def layout(self, file: StoredFile) -> Layout:
        """Find the records by their lengths."""
        starts, faults = array.array("q"), []
        start = 0
        for start, found in _lengths(file):
            if isinstance(found, Fault):
                faults.append(found)
                break
            starts.append(start)
            start += found + _FRAME_BYTES
        ends = np.append(np.frombuffer(starts, np.int64), start)
        return Layout(ends[:-1], np.diff(ends), np.arange(len(starts)), tuple(faults))

    def unframe(self, frame: bytes, size_bytes: int, origin: Origin) -> Record | Fault:
        """Return the record of a frame, or a `Fault`."""
        found = _checked_length(frame[: _HEADER.size], origin)
        if isinstance(found, Fault):
            return found
        if len(frame) < size_bytes or found + _FRAME_BYTES != size_bytes:
            return Fault(origin, "the file has changed since it was first looked through")
        return _checked_record(memoryview(frame)[_HEADER.size :], origin)


def _lengths(file: StoredFile) -> Iterator[tuple[int, int | Fault]]:
    """Yield where each frame begins and its record's length; a Fault, at last, where the file cannot be followed."""
    start = number = chunk_start = 0
    chunk = b""
    while start < file.size_bytes:
        if start + _HEADER.size > chunk_start + len(chunk):
            chunk_start, chunk = start, file.read_at(start, file.chunk_bytes)
        origin = Origin(file.path, number, start)
        found = _checked_length(chunk[start - chunk_start : start - chunk_start + _HEADER.size], origin)
        left_bytes = file.size_bytes - start - _HEADER.size
        if not isinstance(found, Fault) and found + _CHECKSUM.size > left_bytes:
            found = _too_short(origin, found, left_bytes)
        yield start, found
        if isinstance(found, Fault):
            return
        start, number = start + found + _FRAME_BYTES, number + 1


def _checked_length(header: bytes, origin: Origin) -> int | Fault:
    if len(header) < _HEADER.size:
        return Fault(origin, f"the file is truncated: it ends after {len(header)} of a record header's 12 bytes")
    length, checksum = _HEADER.unpack(header)
    if masked_crc32c(header[: _LENGTH.size]) == checksum:
        return length
    if origin.offset_bytes == 0 and header.startswith(_GZIP_MARK):
        return Fault(origin, 'this looks like a compressed file; pass compression="gzip"')
    return Fault(origin, "the record's length does not match its checksum, so nothing from here on can be read")


def _checked_record(body: memoryview, origin: Origin) -> Record | Fault:
    record = Record.at(body[: -_CHECKSUM.size], origin)
    if masked_crc32c(record) != _CHECKSUM.unpack(body[-_CHECKSUM.size :])[0]:
        return Fault(origin, f"the record's {len(record)} bytes do not match their checksum")
    return record


def _too_short(origin: Origin, length_bytes: int, left_bytes: int) -> Fault:
    wanted = f"{length_bytes} bytes and a checksum of 4"
    return Fault(origin, f"the file is truncated: the record should have {wanted}, and {left_bytes} bytes are left")


@contextlib.contextmanager
def _writer(path: str, compression: str | None) -> Iterator[Writable]:
    with created(path) as unfinished, open(unfinished, "wb", buffering=MIB // 4) as file:
        if compression is None:
            yield file
        else:
            deflated = Deflated(file, compression)
            yield deflated
            deflated.finish()
