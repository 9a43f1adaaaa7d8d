"""Keras's own files: MNIST, IMDB, the batches of CIFAR-10 and their archive; and Kaggle's flowers."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import shutil
import struct
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.pipeline import cifar10, flowers, imdb, make_flowers, make_imdb, make_mnist, mnist
from fuzz.battery import Battery
from fuzz.damage import BYTES, EXTREMES, ZIP, members_of, swell_member, zipped

SMALL = {"train": 10, "test": 4}


def _made(make: Any, name: str, **sizes: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        make(folder, **sizes)
        return next(Path(folder).rglob(name)).read_bytes()


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


OPCODES = b"".join(bytes([number]) for number in range(256))
NAMES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy", "_codecs", "os", "builtins", "copyreg")
CALLS = ("_reconstruct", "scalar", "ndarray", "dtype", "encode", "system", "eval", "_reconstructor", "_frombuffer")


def opcode(content: bytes, draw: random.Random) -> bytes:
    """Insert, delete or exchange opcodes of a pickle."""
    import pickletools

    try:
        places = [place for _, _, place in pickletools.genops(content)]
    except Exception:
        return content
    spans = list(zip(places, [*places[1:], len(content)], strict=True))
    first, second = draw.choice(spans), draw.choice(spans)
    match draw.randrange(5):
        case 0:
            return content[: first[0]] + content[first[1] :]
        case 1:
            return content[: first[0]] + content[second[0] : second[1]] + content[first[0] :]
        case 2:
            return content[: first[0]] + content[second[0] : second[1]] + content[first[1] :]
        case 3:
            called = f"c{draw.choice(NAMES)}\n{draw.choice(CALLS)}\n".encode() + draw.choice(
                (b"", b")R", b"(K\3tR", b")\x81")
            )
            return content[: first[0]] + called + content[first[0] :]
        case _:
            odd = draw.choice(
                (b"(" * 5000, b"]" * 5000, b"2" * 5000, b"\x8a\xff" + bytes(255), b"h\xff", b"j\xff\xff\xff\xff")
            )
            many = (
                b"r\xff\xff\xff\x7f",
                b"\x8e" + b"\xff" * 8,
                b"B\xff\xff\xff\x7f",
                b"\x8b\xff\xff\xff\x7f",
                b"I" + b"9" * 9999 + b"\n",
            )
            return content[: first[0]] + draw.choice((odd, *many, OPCODES)) + content[first[0] :]


def batches() -> list[bytes]:
    """Return batches of CIFAR-10: as Python 2 wrote them, and in each protocol that Python 3 has."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3072), np.uint8)
    row = {b"batch_label": b"data_batch_1", b"labels": [3, 1, 2, 0], b"data": pixels, b"filenames": [b"a.png"] * 4}
    return [python2_batch(pixels), *(pickle.dumps(row, protocol=number) for number in range(6))]


def python2_batch(pixels: np.ndarray) -> bytes:
    """Return a batch as the published files are: protocol 2 of Python 2, strings of bytes."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<I", len(value)) + value

    dtype = b"cnumpy\ndtype\nq\6U\2u1K\0K\1\x87Rq\7(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\3cnumpy\nndarray\nq\4K\0\x85U\1b\x87Rq\5(K\1"
        + b"K%cM\0\x0c\x86" % len(pixels)
        + dtype
        + b"\x89"
        + text(pixels.tobytes())
        + b"tb"
    )
    labels = b"]q\x09(" + b"".join(b"K%c" % (index % 10) for index in range(len(pixels))) + b"e"
    return (
        b"\x80\2}q\1(U\x0bbatch_labelq\2"
        + text(b"testing batch 1 of 1")
        + b"U\4data"
        + array
        + b"U\6labels"
        + labels
        + b"u."
    )


def _cifar10(path: Path) -> Any:
    """Read one damaged batch beside five good ones."""
    folder = path.parent / "cifar"
    folder.mkdir(exist_ok=True)
    for number in range(2, 6):
        name = folder / f"data_batch_{number}"
        if not name.exists():
            name.write_bytes(batches()[3])
            (folder / "test_batch").write_bytes(batches()[3])
    shutil.copy(path, folder / path.name)
    (folder / "data_batch_1").unlink(missing_ok=True)
    (folder / path.name).rename(folder / "data_batch_1")
    try:
        return cifar10(folder)[0][0][:4]
    except Exception as error:
        if "data_batch_1" in str(error):
            error.args = (f"{path.name}: {error}",)
        raise


def archives() -> list[bytes]:
    """Return the archive of CIFAR-10, small."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number, content in enumerate(batches()[:6]):
            name = f"data_batch_{number}" if number else "test_batch"
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return [gzip.compress(stream.getvalue(), 1, mtime=0), stream.getvalue()]


def in_tar(content: bytes, draw: random.Random) -> bytes:
    """Damage what an archive holds before it is compressed, mostly one of its headers."""
    try:
        plain = zlib.decompressobj(31).decompress(content, 2**20) if content[:2] == b"\x1f\x8b" else content
    except zlib.error:
        return content
    place = 512 * draw.randrange(max(1, len(plain) // 512))
    changed = plain[:place] + draw.choice(BYTES)(plain[place : place + 512], draw) + plain[place + 512 :]
    return gzip.compress(changed, 1, mtime=0)


def _flowers(path: Path) -> Any:
    folder = path.parent / "flowers" / "train"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder / f"{path.stem}.tfrec")
    return [dict(row) for row in flowers(folder.parent, "train")]


BATTERIES = (
    Battery("mnist", lambda: [_made(make_mnist, "mnist.npz", **SMALL)], mnist, ".npz", damage=ZIP, resealed=(header,)),
    Battery("imdb", lambda: [_made(make_imdb, "imdb.npz", **SMALL)], imdb, ".npz", damage=ZIP, resealed=(header,)),
    Battery(
        "npz_bomb",
        lambda: [_made(make_mnist, "mnist.npz", **SMALL)],
        mnist,
        ".npz",
        damage=(swell_member,),
        share=0.01,
        limit_s=60.0,
    ),
    Battery("cifar10", batches, _cifar10, damage=BYTES, resealed=(opcode,)),
    Battery("cifar10_archive", archives, cifar10, ".tar.gz", damage=BYTES, resealed=(in_tar,)),
    Battery(
        "flowers",
        lambda: [_made(make_flowers, "train/00-*.tfrec", train=4, size=32)],
        _flowers,
        ".tfrec",
        is_checked=True,
    ),
)
