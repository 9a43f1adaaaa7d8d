"""Images: JPEG, PNG, GIF, BMP, WebP."""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.pipeline import decode_image, encode_jpeg, encode_png
from anytpu.pipeline.images import decode_images
from anytpu.pipeline.record import Origin, Record
from fuzz.battery import Battery
from fuzz.damage import EXTREMES


def _pixels(channels: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (21, 33, channels), np.uint8)


def _saved(kind: str, mode: str = "RGB") -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(_pixels(3)).convert(mode).save(stream, kind, **({"progressive": True} if kind == "JPEG" else {}))
    return stream.getvalue()


def jpegs() -> list[bytes]:
    """Return JPEGs: RGB, grey, progressive, CMYK."""
    return [encode_jpeg(_pixels(3)), encode_jpeg(_pixels(1)), _saved("JPEG"), _saved("JPEG", "CMYK")]


def pngs() -> list[bytes]:
    """Return PNGs: grey, RGB, RGBA, of a palette, of 16 bits."""
    return [*(encode_png(_pixels(channels)) for channels in (1, 3, 4)), _saved("PNG", "P"), _saved("PNG", "I;16")]


def others() -> list[bytes]:
    """Return images of the rarer formats."""
    return [_saved(kind) for kind in ("GIF", "BMP", "WEBP")]


def large_jpeg(content: bytes, draw: random.Random) -> bytes:
    """State another size in a JPEG's frame header."""
    for mark in (b"\xff\xc0", b"\xff\xc2"):
        if (start := content.find(mark)) >= 0:
            size = [draw.choice((0, 1, 100, 8000, 11_000, 65_500, 65_535)) for _ in range(2)]
            return content[: start + 5] + struct.pack(">HH", *size) + content[start + 9 :]
    return content


def png_chunk(content: bytes, draw: random.Random) -> bytes:
    """Damage one chunk of a PNG, or the size in its header, and make its checksum right again."""
    chunks, place = [], 8
    while place + 12 <= len(content):
        size = int.from_bytes(content[place : place + 4])
        chunks.append([content[place + 4 : place + 8], content[place + 8 : place + 8 + size]])
        place += 12 + size
    if not chunks:
        return content
    chosen = draw.choice(chunks)
    if chosen is chunks[0] or draw.random() < 0.3:
        size = [draw.choice((0, 1, 11_000, 60_000, *EXTREMES)) % 2**32 for _ in range(2)]
        chunks[0][1] = struct.pack(">II", *size) + chunks[0][1][8:]
    elif chosen[1]:
        changed = bytearray(chosen[1])
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        chosen[1] = bytes(changed)
    if draw.random() < 0.1:
        bomb = zlib.compress(bytes(2**24), 1)
        chunks.insert(1, [b"zTXt", b"Comment\0\0" + bomb])
    parts = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    ]
    return content[:8] + b"".join(parts)


def _read(path: Path) -> Any:
    content = Record.at(path.read_bytes(), Origin(str(path), 0, 0))
    found = [decode_image(content, channels) for channels in (0, 1, 3, 4)]
    return [found, decode_images([content, content], threads=1)]


BATTERIES = (
    Battery("jpeg", jpegs, _read, ".jpg", resealed=(large_jpeg,)),
    Battery("png", pngs, _read, ".png", resealed=(png_chunk,)),
    Battery("image", others, _read),
)
