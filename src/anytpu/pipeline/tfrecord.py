"""A TFRecord reader and writer without TensorFlow.

A file is a sequence of frames. A frame begins with the record's length (8 bytes, little-endian) and the masked CRC-32C
of these 8 bytes (4 bytes). The record and its masked CRC-32C (4 bytes) follow.

Idea: each length gives the offset of the next frame, so a quick scan of the headers finds all records. Then each can be
read separately.

Rule: both checksums are verified on every read. After a length with a wrong checksum nothing more can be read.
"""

from __future__ import annotations

import array
import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import google_crc32c
import numpy as np

from anytpu._calls import explain_arguments, explain_methods
from anytpu.errors import RecordError
from anytpu.pipeline.compression import Deflated, compression_of
from anytpu.pipeline.record import Fault, Origin, Record
from anytpu.pipeline.shards import Format, RecordLayout, RecordSource, RecordStream, ShardContent, open_shards
from anytpu.pipeline.storage import AnyPath, StoredFile, created, shard_names
from anytpu.units import MIB

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_FRAME_BYTES = _HEADER.size + _CHECKSUM.size
_GZIP_MARK = b"\x1f\x8b"
_CRC_MASK_DELTA = 0xA282EAD8
_32_BITS = 0xFFFFFFFF


@explain_arguments
def records(
    paths: AnyPath | Sequence[AnyPath], *, compression: str | None = None, on_error: str = "raise"
) -> RecordSource | RecordStream:
    """Read TFRecord files.

    Args:
        paths: a path, a URL (gs://, s3://, https://), a glob pattern such as "train-?????-of-00004.tfrecord", or a list
            of them. The files of a pattern come in order of name.
        compression: "gzip", "zlib", or None when the files are not compressed.
        on_error: "raise", or "skip" to leave out unreadable records, with a warning; `skipped` lists them.

    Returns:
        The records, each of type `bytes` with an `origin`. For uncompressed files a `RecordSource`: a list with a
        length. For compressed files a `RecordStream`, which can only be iterated.

    Raises:
        FileError: a file is missing or cannot be read.
        RecordError: a file is truncated or damaged; raised while reading. The message names the file, the record and
            the byte.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "three.tfrecord"
        >>> _ = write_records(path, [b"a", b"bc", b""])
        >>> source = records(path)
        >>> len(source), source[1], list(source)
        (3, b'bc', [b'a', b'bc', b''])
    """
    return open_shards(paths, TFRecordFormat(), compression, on_error)


@explain_arguments
def write_records(
    path: AnyPath, contents: Iterable[bytes], shards: int = 1, compression: str | None = None
) -> tuple[str, ...]:
    """Write records to a TFRecord file, or to several.

    A file appears at its path only when it is complete, and not at all after an error.

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
        for index, content in enumerate(contents):
            if not isinstance(content, bytes | bytearray | memoryview):
                kind = type(content).__name__
                raise RecordError(
                    f"record {index} to write must be bytes, not {kind}; encode_example converts a dict to bytes"
                )
            files[index % shards].write(frame(bytes(content)))
    return names


@explain_methods
class RecordWriter:
    """Writes records one by one to a TFRecord file, which appears at its path when the writer is closed.

    Args:
        path: the file.
        compression: "gzip", "zlib" or None.

    Example:
        >>> with RecordWriter("/tmp/two.tfrecord") as writer:
        ...     writer.write(b"one")
        ...     writer.write(b"two")
        >>> len(records("/tmp/two.tfrecord"))
        2
    """

    def __init__(self, path: AnyPath, compression: str | None = None) -> None:
        self._stack = contextlib.ExitStack()
        (name,) = shard_names(path, 1)
        self._file = self._stack.enter_context(_writer(name, compression_of(compression)))

    def write(self, record: bytes) -> None:
        """Append a record, in bytes; `tpu.pipeline.encode_example` makes them.

        Raises:
            RecordError: the record is not bytes.
        """
        if not isinstance(record, bytes):
            raise RecordError(f"a record must be bytes, not {type(record).__name__}; encode_example makes them")
        self._file.write(frame(record))

    def flush(self) -> None:
        """Do nothing: the file appears when it is complete."""

    def close(self) -> None:
        """Complete the file."""
        self._stack.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def frame(content: bytes) -> bytes:
    """Return a record in its frame, as stored in a file.

    Example:
        >>> frame(b"").hex(" ", 4)
        '00000000 00000000 29039807 d8ea82a2'
    """
    length = _LENGTH.pack(len(content))
    return b"".join((length, _CHECKSUM.pack(masked_crc32c(length)), content, _CHECKSUM.pack(masked_crc32c(content))))


def masked_crc32c(content: bytes) -> int:
    """Return the CRC-32C of some bytes, rotated right by 15 bits and with a constant added.

    A CRC of data that contains plain CRCs would be weak; one of data with masked CRCs is not.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'
    """
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & _32_BITS


class TFRecordFormat(Format):
    """A sequence of frames, each with a length and two checksums."""

    def walk(self, content: ShardContent) -> Iterator[Any]:
        """Yield each record, or a `Fault` in its place; end after a length with a wrong checksum."""
        index = 0
        while header := content.read(_HEADER.size):
            origin = Origin(content.path, index, content.offset_bytes - len(header))
            length = _checked_length(header, origin)
            if isinstance(length, Fault):
                yield length
                return
            left_bytes = content.left_bytes()
            if left_bytes is not None and length + _CHECKSUM.size > left_bytes:
                yield _too_short(origin, length, left_bytes)
                return
            if (reason := content.fault_of(length + _CHECKSUM.size)) is not None:
                yield Fault(origin, reason)
                return
            body = content.read(length + _CHECKSUM.size)
            if len(body) < length + _CHECKSUM.size:
                yield _too_short(origin, length, len(body))
                return
            yield _checked_record(memoryview(body), origin)
            index += 1

    def layout(self, file: StoredFile) -> RecordLayout:
        """Find the records by their lengths."""
        starts, faults = array.array("q"), []
        start = 0
        for start, length in _lengths(file):
            if isinstance(length, Fault):
                faults.append(length)
                break
            starts.append(start)
            start += length + _FRAME_BYTES
        ends = np.append(np.frombuffer(starts, np.int64), start)
        return RecordLayout(ends[:-1], np.diff(ends), np.arange(len(starts)), tuple(faults))

    def unframe(self, frame: bytes, size_bytes: int, origin: Origin) -> Record | Fault:
        """Return the record of a frame, or a `Fault`."""
        length = _checked_length(frame[: _HEADER.size], origin)
        if isinstance(length, Fault):
            return length
        if len(frame) < size_bytes or length + _FRAME_BYTES != size_bytes:
            return Fault(origin, "the file has changed since it was scanned")
        return _checked_record(memoryview(frame)[_HEADER.size :], origin)


def _lengths(file: StoredFile) -> Iterator[tuple[int, int | Fault]]:
    """Yield each frame's offset and its record's length; at a length that cannot be read, yield a Fault and end."""
    start = index = chunk_start = 0
    chunk = b""
    while start < file.size_bytes:
        # Read a chunk where the header is not in the last one. The bytes of a long record are never read.
        if start + _HEADER.size > chunk_start + len(chunk):
            chunk_start, chunk = start, file.read_at(start, file.chunk_bytes)
        origin = Origin(file.path, index, start)
        length = _checked_length(chunk[start - chunk_start : start - chunk_start + _HEADER.size], origin)
        left_bytes = file.size_bytes - start - _HEADER.size
        if not isinstance(length, Fault) and length + _CHECKSUM.size > left_bytes:
            length = _too_short(origin, length, left_bytes)
        yield start, length
        if isinstance(length, Fault):
            return
        start, index = start + length + _FRAME_BYTES, index + 1


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
    expected = f"{length_bytes} bytes and a checksum of 4"
    return Fault(origin, f"the file is truncated: the record should have {expected}, and {left_bytes} bytes are left")


@contextlib.contextmanager
def _writer(path: str, compression: str | None) -> Iterator[IO[bytes] | Deflated]:
    with created(path) as unfinished, open(unfinished, "wb", buffering=MIB // 4) as file:
        if compression is None:
            yield file
        else:
            deflated = Deflated(file, compression)
            yield deflated
            deflated.finish()
