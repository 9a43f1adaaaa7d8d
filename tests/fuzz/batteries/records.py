"""Files of records: TFRecord, plain and compressed, records of one length, lines of text."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from pathlib import Path
from typing import Any

from anytpu.pipeline import fixed_records, lines, records
from anytpu.pipeline.tfrecord import frame, masked_crc32c
from fuzz.battery import Battery
from fuzz.damage import BYTES, EXTREMES, TEXT, Damage

MAX_UNPACKED_BYTES = 2**24
CONTENTS = [b"", b"a", b"bc" * 10, bytes(range(256)) * 20, b"x" * 5000]


def tfrecords() -> list[bytes]:
    """Return files of no record, of one, and of several."""
    return [b"", frame(b"one"), b"".join(map(frame, CONTENTS))]


def compressed(damage: Damage | None = None) -> Any:
    """Return the damage that unpacks gzip or zlib, applies `damage`, and packs it again."""

    def inner(content: bytes, draw: random.Random) -> bytes:
        is_gzip = content[:2] == b"\x1f\x8b"
        try:
            plain = zlib.decompressobj(31 if is_gzip else 15).decompress(content, MAX_UNPACKED_BYTES)
        except zlib.error:
            return content
        changed = (damage or draw.choice(BYTES))(plain, draw)
        return gzip.compress(changed, 1, mtime=0) if is_gzip else zlib.compress(changed, 1)

    return inner


def long_record(content: bytes, draw: random.Random) -> bytes:
    """Begin with a frame whose length is extreme, with a right checksum, and zeros that may fill it."""
    length = struct.pack("<Q", draw.choice(EXTREMES) % 2**64)
    return length + struct.pack("<I", masked_crc32c(length)) + bytes(draw.choice((0, 100, 2**22))) + content


def packed_bomb(content: bytes, draw: random.Random) -> bytes:
    """Return a member of zeros that unpacks to a gigabyte, with a record header that asks for all of it, or not."""
    size = 2**31
    head = struct.pack("<Q", size) if draw.random() < 0.7 else struct.pack("<Q", 100)
    start = head + struct.pack("<I", masked_crc32c(head))
    is_gzip = content[:2] == b"\x1f\x8b"
    deflating = zlib.compressobj(9, wbits=31 if is_gzip else 15)
    first = deflating.compress(start) + deflating.flush(zlib.Z_FULL_FLUSH)
    piece = deflating.compress(bytes(2**20)) + deflating.flush(zlib.Z_FULL_FLUSH)
    return first + piece * (size // 2**20 + 1)


def _read(compression: str | None = None) -> Any:
    def read(path: Path) -> Any:
        found = records(path, compression=compression)
        in_order = [bytes(record) for record in found]
        if compression is None:
            assert [bytes(found[number]) for number in range(len(found))] == in_order
        skipping = records(path, compression=compression, on_error="skip")
        assert [bytes(record) for record in skipping] == in_order
        return in_order

    return read


def _skipping(path: Path) -> Any:
    """Read with on_error="skip": nothing is refused, and both ways of reading give the same."""
    found = records(path, on_error="skip")
    in_order = [bytes(record) for record in found]
    assert [bytes(found[number]) for number in range(len(found))] == in_order
    return len(in_order)


def _fixed(path: Path) -> Any:
    found = fixed_records(path, 7, header_bytes=4, footer_bytes=2)
    in_order = [bytes(record) for record in found]
    assert [bytes(found[number]) for number in range(len(found))] == in_order
    return in_order


def _lines(path: Path) -> Any:
    found = lines(path)
    in_order = list(found)
    assert [found[number] for number in range(len(found))] == in_order
    return in_order


BATTERIES = (
    Battery("tfrecord", tfrecords, _read(), ".tfrecord", damage=BYTES, resealed=(long_record,)),
    Battery("tfrecord_skip", tfrecords, _skipping, ".tfrecord", damage=(*BYTES, long_record)),
    Battery(
        "tfrecord_gzip",
        lambda: [gzip.compress(file, 1, mtime=0) for file in tfrecords()],
        _read("gzip"),
        ".gz",
        damage=BYTES,
        resealed=(*[compressed()] * 40, *[compressed(long_record)] * 19, packed_bomb),
    ),
    Battery(
        "tfrecord_zlib",
        lambda: [zlib.compress(file, 1) for file in tfrecords()],
        _read("zlib"),
        ".zz",
        damage=BYTES,
        resealed=(*[compressed()] * 40, *[compressed(long_record)] * 19, packed_bomb),
    ),
    Battery("fixed", lambda: [b"HEADend", b"HEAD" + b"seven..." * 7 + b"..", b"HEAD.."][1:], _fixed),
    Battery("lines", lambda: ["one\ntwo\r\n\ndrei é\n".encode(), b"", b"last"], _lines, ".txt", damage=TEXT),
)
