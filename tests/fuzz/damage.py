"""Ways to damage the content of a file: its bytes, its text, its JSON, the members of a zip.

Each takes the content and a `random.Random`, and returns other content. They never fail, whatever the content is.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Damage = Callable[[bytes, random.Random], bytes]

EXTREMES = (
    0,
    1,
    -1,
    127,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**33,
    2**40,
    2**62,
    2**63 - 1,
    2**64 - 1,
)
"""Lengths and counts that readers trip over."""

MAX_REPEATED_BYTES = 4096
BOMB_MIB = 3 * 512
MAX_MEMBER_BYTES = 2**24


def flip_bits(content: bytes, draw: random.Random) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8) if changed else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def set_bytes(content: bytes, draw: random.Random) -> bytes:
    """Set one to four bytes to values at the ends of their range, or to random ones."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4) if changed else 0):
        changed[draw.randrange(len(changed))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
    return bytes(changed)


def set_integer(content: bytes, draw: random.Random) -> bytes:
    """Write an extreme integer of 2, 4 or 8 bytes over what is there, in either byte order; mostly near the start."""
    size = draw.choice((2, 4, 8))
    if len(content) < size:
        return content
    near = min(len(content) - size, draw.choice((64, 512, len(content))))
    start = draw.randint(0, near)
    value = draw.choice(EXTREMES) % 2 ** (8 * size)
    return content[:start] + value.to_bytes(size, draw.choice(("little", "big"))) + content[start + size :]


def set_digits(content: bytes, draw: random.Random) -> bytes:
    """Replace a run of decimal digits by an extreme number."""
    found = list(re.finditer(rb"\d+", content[:1_000_000]))
    if not found:
        return content
    one = draw.choice(found)
    number = draw.choice((*map(str, EXTREMES), "9" * 5000, "1e400", "-0", "nan", "0x10", "1.5")).encode()
    return content[: one.start()] + number + content[one.end() :]


def truncate(content: bytes, draw: random.Random) -> bytes:
    """Cut the end off, or the beginning."""
    place = draw.randint(0, len(content))
    return content[:place] if draw.random() < 0.85 else content[place:]


def insert(content: bytes, draw: random.Random) -> bytes:
    """Insert random bytes, or a run of one byte."""
    place, size = draw.randint(0, len(content)), draw.choice((1, 2, 8, 100, MAX_REPEATED_BYTES))
    new = draw.randbytes(size) if draw.random() < 0.5 else bytes([draw.randrange(256)]) * size
    return content[:place] + new + content[place:]


def delete(content: bytes, draw: random.Random) -> bytes:
    """Delete a range."""
    start, stop = _range(content, draw)
    return content[:start] + content[stop:]


def repeat(content: bytes, draw: random.Random) -> bytes:
    """Repeat a range, up to some thousand times."""
    start, stop = _range(content, draw)
    times = draw.choice((1, 1, 2, 20, 2000))
    return content[:stop] + (content[start:stop] * times)[: 64 * MAX_REPEATED_BYTES] + content[stop:]


def swap(content: bytes, draw: random.Random) -> bytes:
    """Exchange two ranges next to each other."""
    first, second, third = sorted(draw.randint(0, len(content)) for _ in range(3))
    return content[:first] + content[second:third] + content[first:second] + content[third:]


def zero(content: bytes, draw: random.Random) -> bytes:
    """Set a range to zeros."""
    start, stop = _range(content, draw)
    return content[:start] + bytes(stop - start) + content[stop:]


def copy(content: bytes, draw: random.Random) -> bytes:
    """Write a range over another one."""
    start, stop = _range(content, draw)
    place = draw.randint(0, len(content))
    return content[:place] + content[start:stop] + content[place + stop - start :]


def _range(content: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randint(0, len(content))
    return start, min(len(content), start + draw.choice((1, 2, 4, 8, 16, 100, len(content))))


BYTES: tuple[Damage, ...] = (
    *(flip_bits, set_bytes, set_integer, set_digits, truncate),
    *(insert, delete, repeat, swap, zero, copy),
)
"""Ways to damage bytes of any format."""


_TOKEN = re.compile(rb"[A-Za-z_.]\w*|\d+|\s+|[^\w\s]")


def change_token(content: bytes, draw: random.Random) -> bytes:
    """Delete, repeat, exchange or replace a word, a number or a sign of a text."""
    tokens = _TOKEN.findall(content)
    if len(tokens) < 2:
        return content
    first, second = draw.randrange(len(tokens)), draw.randrange(len(tokens))
    match draw.randrange(5):
        case 0:
            tokens[first] = b""
        case 1:
            tokens[first] *= draw.choice((2, 3, 1000))
        case 2:
            tokens[first], tokens[second] = tokens[second], tokens[first]
        case 3:
            tokens[first] = tokens[second]
        case _:
            tokens[first] = draw.choice((b"-", b'"', b"\\", b"{", b"}", b"\xff\xfe", b"\0", "é∞".encode(), b"None"))
    return b"".join(tokens)


def change_line(content: bytes, draw: random.Random) -> bytes:
    """Delete, repeat, exchange or cut lines of a text."""
    lines = content.split(b"\n")
    first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            del lines[first]
        case 1:
            lines[first:first] = [lines[first]] * draw.choice((1, 2, 200))
        case 2:
            lines[first], lines[second] = lines[second], lines[first]
        case 3:
            lines[first] = lines[first][: draw.randint(0, len(lines[first]))]
        case _:
            lines.insert(first, draw.randbytes(draw.choice((1, 10, 100))))
    return b"\n".join(lines)


def nest(content: bytes, draw: random.Random) -> bytes:
    """Insert brackets that nest deeply, closed or not."""
    opening, closing = draw.choice(((b"(", b")"), (b"[", b"]"), (b"{", b"}"), (b"-", b""), (b'{"a":', b"}")))
    depth, place = draw.choice((2, 100, 2000, 50_000)), draw.randint(0, len(content))
    return content[:place] + opening * depth + closing * draw.choice((0, depth)) + content[place:]


def lengthen(content: bytes, draw: random.Random) -> bytes:
    """Insert a word of up to a million characters."""
    place = draw.randint(0, len(content))
    return (
        content[:place] + draw.choice((b"a", b"9", b" ", b"\xc3\xa9")) * draw.choice((300, 1_000_000)) + content[place:]
    )


TEXT: tuple[Damage, ...] = (
    *(change_token, change_token, change_token, change_line, change_line, set_digits, set_digits),
    *(nest, lengthen, truncate, flip_bits, insert, delete, repeat, swap),
)
"""Ways to damage a text."""


def change_json(content: bytes, draw: random.Random) -> bytes:
    """Change one value of a JSON text: to an extreme one, to another type, to another value of it, or to nothing."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return flip_bits(content, draw)
    places = list(_places(value))
    if not places:
        return json.dumps(draw.choice(_VALUES)).encode()
    owner, key = draw.choice(places)
    other_owner, other_key = draw.choice(places)
    match draw.randrange(4):
        case 0:
            del owner[key]
        case 1:
            owner[key] = json.loads(json.dumps(other_owner[other_key]))
        case 2 if isinstance(owner, list):
            owner[key:key] = [owner[key]] * draw.choice((1, 3, 1000))
        case _:
            owner[key] = draw.choice(_VALUES)
    return json.dumps(value).encode()


def _deep(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


_VALUES: tuple[Any, ...] = (
    *EXTREMES,
    *(1.5, float("nan"), float("inf"), None, True, False, "", "a", "float32", "object", "\0", "é" * 300),
    *([], {}, [0], [-1], [2**40, 2**40], {"a": 1}, {"dict": []}, _deep(90), 10**400, "9" * 5000),
)


def _places(value: Any) -> Any:
    owners = [value]
    while owners:
        owner = owners.pop()
        if isinstance(owner, list | dict):
            for key in range(len(owner)) if isinstance(owner, list) else list(owner):
                yield owner, key
                owners.append(owner[key])


JSON: tuple[Damage, ...] = (change_json, change_json, change_json, *TEXT)
"""Ways to damage a JSON text."""


def in_zip(change: Callable[[dict[str, bytes], random.Random], None]) -> Damage:
    """Return the damage that changes the members of a zip and writes it again, with the checksums of a right zip."""

    def damage(content: bytes, draw: random.Random) -> bytes:
        members = members_of(content)
        change(members, draw)
        return zipped(members)

    return damage


def members_of(content: bytes) -> dict[str, bytes]:
    """Return the members of a zip that can be read and are not large."""
    found = {}
    with contextlib.suppress(Exception), zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            if max(info.file_size, info.compress_size) <= MAX_MEMBER_BYTES:
                found[info.filename] = archive.read(info)
    return found


def zipped(members: dict[str, bytes]) -> bytes:
    """Return a zip of members, compressed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def change_member(members: dict[str, bytes], draw: random.Random) -> None:
    """Damage the bytes of one member."""
    if members:
        name = draw.choice(list(members))
        members[name] = draw.choice((*BYTES, change_json))(members[name], draw)


def move_member(members: dict[str, bytes], draw: random.Random) -> None:
    """Drop a member, rename it, or give it the content of another."""
    if not members:
        return
    name, other = draw.choice(list(members)), draw.choice(list(members))
    match draw.randrange(3):
        case 0:
            del members[name]
        case 1:
            members[draw.choice(("", "../up", "/root", "a" * 300, name + "x", "é.npy"))] = members.pop(name)
        case _:
            members[name] = members[other]


def swell_member(content: bytes, draw: random.Random) -> bytes:
    """Replace one member by zeros that unpack to gigabytes, or declare another size for it."""
    members = members_of(content)
    if not members:
        return content
    name = draw.choice(list(members))
    head = members[name][: draw.choice((0, 128))]
    packed, checksum = _bomb(head)
    size = len(head) + BOMB_MIB * 2**20
    declared = draw.choice((size, size, size, 100, 0, 2**31, 2**32 - 1))
    return _raw_zip(members, name, packed, checksum, declared)


_PACKED_MIB = b""


def _bomb(head: bytes) -> tuple[bytes, int]:
    """Return `head` and gigabytes of zeros, deflated, and their CRC-32."""
    global _PACKED_MIB
    if not _PACKED_MIB:
        deflating = zlib.compressobj(9, wbits=-15)
        _PACKED_MIB = deflating.compress(bytes(2**20)) + deflating.flush(zlib.Z_FULL_FLUSH)
    deflating = zlib.compressobj(9, wbits=-15)
    start = deflating.compress(head) + deflating.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, wbits=-15).flush()
    return start + _PACKED_MIB * BOMB_MIB + end, _crc_of_zeros(zlib.crc32(head))


_ZEROS_CRCS: dict[int, int] = {}


def _crc_of_zeros(start: int) -> int:
    if start not in _ZEROS_CRCS:
        checksum, piece = start, bytes(2**24)
        for _ in range(BOMB_MIB // 16):
            checksum = zlib.crc32(piece, checksum)
        _ZEROS_CRCS[start] = checksum
    return _ZEROS_CRCS[start]


def _raw_zip(members: dict[str, bytes], swollen: str, packed: bytes, checksum: int, declared: int) -> bytes:
    out, listed = io.BytesIO(), []
    for name, content in members.items():
        raw, start = name.encode(), out.tell()
        if name == swollen:
            fields = (8, 0, 33, checksum, len(packed), declared % 2**32)
            body = packed
        else:
            fields, body = (0, 0, 33, zlib.crc32(content), len(content), len(content)), content
        out.write(struct.pack("<4s2H3H3L2H", b"PK\3\4", 20, 0, *fields, len(raw), 0) + raw + body)
        listed.append(struct.pack("<4s3H3H3L5H2L", b"PK\1\2", 20, 20, 0, *fields, len(raw), 0, 0, 0, 0, 0, start) + raw)
    start, directory = out.tell(), b"".join(listed)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(listed), len(listed), len(directory), start, 0)
    return out.getvalue() + directory + end


ZIP: tuple[Damage, ...] = (*BYTES, *[in_zip(change_member)] * 6, in_zip(move_member), in_zip(move_member))
"""Ways to damage a zip; `swell_member` is apart, since it takes a second."""
