"""Arrays that the command line reads: .npy and .npz files."""

from __future__ import annotations

import io
import random
import struct

import numpy as np

from anytpu.cli.arrays import read_arrays
from fuzz.battery import Battery
from fuzz.damage import BYTES, EXTREMES, ZIP, members_of, swell_member, zipped


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npys() -> list[bytes]:
    """Return .npy files of several types and orders."""
    images = np.arange(48, dtype=np.uint8).reshape(2, 4, 6)
    return [_npy(images), _npy(np.asfortranarray(images)), _npy(np.float32(3)), _npy(np.zeros((0, 3)))]


def npzs() -> list[bytes]:
    """Return .npz files, compressed and not."""
    found = []
    for write in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        write(stream, x=np.arange(1000), y=np.zeros((4, 4), np.float32))
        found.append(stream.getvalue())
    return found


def header(content: bytes, draw: random.Random) -> bytes:
    """Write another header of NumPy's into one member of an .npz file: other shapes, dtypes, orders."""
    members = members_of(content)
    if members:
        name = draw.choice(list(members))
        members[name] = npy_header(members[name], draw)
    return zipped(members)


def npy_header(content: bytes, draw: random.Random) -> bytes:
    """Write another header of NumPy's into an .npy file."""
    sizes = [draw.choice((*EXTREMES, 3, 28, -5)) for _ in range(draw.choice((0, 1, 1, 2, 3, 40)))]
    shape = draw.choice((tuple(sizes), sizes, 3, "()", (1.5,), (True,), None))
    kind = draw.choice(("|u1", "<i8", "|O", "<f4", "<U9999999", "|V0", "|S0", "bfloat16", "x", [("a", "<i4")], 7, None))
    text = repr({"descr": kind, "fortran_order": draw.choice((False, True, 2)), "shape": shape})
    if draw.random() < 0.2:
        text = draw.choice(("(" * 5000, "{" * 90 + "}" * 90, "__import__('os')", "", "1" * 9000))
    raw = text.encode() + b"\n"
    version = draw.choice((b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\xff\xff"))
    size = struct.pack("<H" if version == b"\1\0" else "<I", len(raw) % 2**16)
    return b"\x93NUMPY" + version + size + raw + content[128:]


BATTERIES = (
    Battery("npy", npys, read_arrays, ".npy", damage=BYTES, resealed=(npy_header,)),
    Battery("npz", npzs, read_arrays, ".npz", damage=ZIP, resealed=(header,)),
    Battery("arrays_bomb", npzs, read_arrays, ".npz", damage=(swell_member,), share=0.01, limit_s=60.0),
)
