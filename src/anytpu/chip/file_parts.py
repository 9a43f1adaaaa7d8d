"""The container format of a `.tpu` file: a list of parts with lengths and checksums, then the compressed parts.

    8 bytes    89 54 50 55 0d 0a 1a 0a   (starts no text file; a copy in text mode damages it)
    4 bytes    the format version, 1
    4 bytes    the number of parts
    28 bytes   for each part: name (8 bytes, padded with 0), compressed size (8), uncompressed size (8), checksum of the
               compressed bytes (4)
    4 bytes    the checksum of everything above
    parts      in that order, compressed by zlib; the last part ends the file

Numbers are little-endian, checksums are CRC-32C.

Rule: a reader gets every part exactly as written, or an error that describes the fault of the file. A part is
decompressed only up to a size that the reader sets, so a small file cannot fill the machine's memory.
"""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import google_crc32c

from anytpu.errors import ChipFileError
from anytpu.files.memory import check_memory, check_ratio, exceeds_unpack_ratio
from anytpu.units import KIB, MIB

FORMAT = 1
"""Version of the format that is written, and the newest that is read."""

MAGIC = b"\x89TPU\r\n\x1a\n"
"""The first bytes of a file."""

PARTS = ("header", "code", "weights", "network", "arrays")
"""Names of the parts of a file, in order."""

SAVE_AGAIN = "save it again, with ChipProgram.save or anytpu chip compile."
"""Advice for an unusable file, the end of an error message."""

_START = struct.Struct("<8sII")
_PART = struct.Struct("<8sQQI")
_SUM = struct.Struct("<I")
_BEGINNING_BYTES = _START.size + len(PARTS) * _PART.size + _SUM.size
_NUMBERS = ("weights", "arrays")
_COPY_AGAIN = f"Copy it again, or {SAVE_AGAIN}"


_PIECE_BYTES = 64 * KIB
_MAX_RATIO = 1032
"""Maximum compression ratio of zlib."""


class _Entry(NamedTuple):
    name: str
    packed_bytes: int
    unpacked_bytes: int
    checksum: int


@dataclasses.dataclass(frozen=True)
class Packed:
    """A compressed part of a file, with a verified checksum.

    Attributes:
        file: name of the file, for error messages.
        name: name of the part.
        size_bytes: recorded size after decompression, in bytes.
    """

    file: str
    name: str
    size_bytes: int
    _content: bytes

    def unpack(self, most_bytes: int) -> bytes:
        """Return the decompressed part.

        Args:
            most_bytes: maximum size that the caller accepts, in bytes.

        Raises:
            ChipFileError: the part is larger, or its content does not match its record.
        """
        if self.size_bytes > most_bytes:
            _refuse(
                self.file,
                f"cannot be used: its part {self.name!r} has {self.size_bytes:,} bytes, and {most_bytes:,} is the most "
                f"that it can have. Compile it again, or {SAVE_AGAIN}",
            )
        try:
            check_ratio(len(self._content), self.size_bytes)
            check_memory(self.size_bytes)
        except ValueError as error:
            _refuse(self.file, f"cannot be used: its part {self.name!r} is too large: {error}. {_COPY_AGAIN}")
        unpacking = zlib.decompressobj()
        try:
            content = _inflated(unpacking, self._content, self.size_bytes)
        except zlib.error:
            self._altered()
        if len(content) != self.size_bytes or not unpacking.eof or unpacking.unused_data:
            self._altered()
        return content

    def _altered(self) -> NoReturn:
        _altered(self.file, f"part {self.name!r}")


def join_parts(parts: Mapping[str, bytes]) -> bytes:
    """Return the content of a file with the parts `PARTS`."""
    packed = [_pack(name, parts[name]) for name in PARTS]
    table = [_START.pack(MAGIC, FORMAT, len(PARTS))]
    for name, content in zip(PARTS, packed, strict=True):
        table.append(_PART.pack(name.encode(), len(content), len(parts[name]), google_crc32c.value(content)))
    head = b"".join(table)
    return b"".join([head, _SUM.pack(google_crc32c.value(head)), *packed])


def split_parts(content: bytes, name: str) -> dict[str, Packed]:
    """Return the parts of a file, still compressed.

    Args:
        content: bytes of the file.
        name: name of the file, for error messages.

    Raises:
        ChipFileError: the file is empty, truncated or altered, or has another or a newer format.
    """
    return _Content(content, name).parts()


def _inflated(unpacking: Any, packed: bytes, size_bytes: int) -> bytes:
    """Decompress, and stop soon after `size_bytes` bytes; only one copy of the result is in memory."""
    gathered = io.BytesIO()
    for start in range(0, len(packed), _PIECE_BYTES):
        if unpacking.eof:
            unpacking.decompress(packed[start:])  # sets its unused_data
            break
        left, piece = packed[start : start + _PIECE_BYTES], b""
        while (left or len(piece) == MIB) and gathered.tell() <= size_bytes and not unpacking.eof:
            piece = unpacking.decompress(left, MIB)
            left = unpacking.unconsumed_tail
            gathered.write(piece)
    return gathered.getvalue()


def _pack(name: str, content: bytes) -> bytes:
    packed = _deflated(name, content)
    # A reader refuses a high compression ratio.
    return zlib.compress(content, 0) if exceeds_unpack_ratio(len(packed), len(content)) else packed


def _deflated(name: str, content: bytes) -> bytes:
    if name not in _NUMBERS:
        return zlib.compress(content)
    # Only zeros repeat in weights: a full search takes three times as long and saves 0.1 %.
    packing = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return packing.compress(content) + packing.flush()


class _Content:
    """A parser of the content of a file; each step raises an error for a mismatch."""

    def __init__(self, content: bytes, name: str):
        self._content, self._name = content, name

    def parts(self) -> dict[str, Packed]:
        """Return the parts by name, with verified checksums."""
        entries, start, parts = self._entries(), _BEGINNING_BYTES, {}
        end = start + sum(entry.packed_bytes for entry in entries)
        if len(self._content) < end:
            self._refuse(f"is cut short: it has {len(self._content):,} of {end:,} bytes. {_COPY_AGAIN}")
        if len(self._content) > end:
            self._refuse(f"has {len(self._content) - end:,} bytes too many at its end. {_COPY_AGAIN}")
        for entry in entries:
            parts[entry.name] = self._part(entry, self._content[start : start + entry.packed_bytes])
            start += entry.packed_bytes
        return parts

    def _entries(self) -> list[_Entry]:
        self._check_start()
        size = _BEGINNING_BYTES - _SUM.size
        if _SUM.unpack_from(self._content, size)[0] != google_crc32c.value(self._content[:size]):
            self._altered("beginning")
        raw_entries = [_PART.unpack_from(self._content, _START.size + n * _PART.size) for n in range(len(PARTS))]
        entries = [_Entry(raw.rstrip(b"\0").decode("latin-1"), *numbers) for raw, *numbers in raw_entries]
        if tuple(entry.name for entry in entries) != PARTS:
            self._altered("beginning")
        return entries

    def _check_start(self) -> None:
        if not self._content:
            self._refuse(f"is empty. {_COPY_AGAIN}")
        if self._content[: len(MAGIC)] != MAGIC[: len(self._content)]:
            self._refuse(f"is no program for the chip: it does not begin as one. Compile one, or {SAVE_AGAIN}")
        if len(self._content) >= _START.size:
            _, version, count = _START.unpack_from(self._content)
            if version > FORMAT:
                self._refuse(
                    f"is of format {version}, and this release of anytpu reads formats up to {FORMAT}. Install a newer "
                    "one: pip install --upgrade anytpu"
                )
            if version != FORMAT or count != len(PARTS):
                self._altered("beginning")
        if len(self._content) < _BEGINNING_BYTES:
            self._refuse(f"is cut short: it has {len(self._content)} bytes, too few for its beginning. {_COPY_AGAIN}")

    def _part(self, entry: _Entry, packed: bytes) -> Packed:
        is_possible = entry.unpacked_bytes <= _MAX_RATIO * len(packed)
        if google_crc32c.value(packed) != entry.checksum or not is_possible:
            self._altered(f"part {entry.name!r}")
        return Packed(self._name, entry.name, entry.unpacked_bytes, packed)

    def _altered(self, what: str) -> NoReturn:
        _altered(self._name, what)

    def _refuse(self, why: str) -> NoReturn:
        _refuse(self._name, why)


def _altered(file: str, what: str) -> NoReturn:
    _refuse(file, f"was altered or damaged after it was written: its {what} is not what was recorded. {_COPY_AGAIN}")


def _refuse(file: str, why: str) -> NoReturn:
    raise ChipFileError(f"The file {file!r} {why}")
