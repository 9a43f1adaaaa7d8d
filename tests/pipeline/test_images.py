from __future__ import annotations

import functools
import io
import json
import struct
import threading
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anytpu.errors import RecordError, SettingError
from anytpu.pipeline import decode_image, decode_images, encode_jpeg, encode_png, images
from anytpu.pipeline.images import batch_array
from anytpu.pipeline.record import Origin, Record
from anytpu.units import MIB
from error_texts import error_text

GOLDEN = Path(__file__).parent / "golden"
FACTS = json.loads((GOLDEN / "golden.json").read_text())["image"]
JPEG = (GOLDEN / "image.jpg").read_bytes()
PNG = (GOLDEN / "image.png").read_bytes()


def picture(height=24, width=16, channels=3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)


def saved(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


error_of = functools.partial(error_text, kind=RecordError)


def test_the_pixels_of_tensorflow():
    assert decode_image(JPEG).tobytes().hex() == FACTS["rgb"]
    assert decode_image(JPEG, channels=1).tobytes().hex() == FACTS["grey"]
    assert list(decode_image(PNG).shape) == FACTS["shape"]
    y, x = np.mgrid[0:24, 0:16]
    assert np.array_equal(decode_image(PNG), np.stack([x * 16, y * 10, x * y % 256], -1))


def test_the_pixels_of_pillow():
    image = Image.fromarray(picture(33, 47))
    for options in ({}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}):
        content = saved(image, "JPEG", **options)
        assert np.array_equal(decode_image(content), np.asarray(Image.open(io.BytesIO(content))))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_keeps_every_pixel(channels):
    image = picture(channels=channels)
    assert np.array_equal(decode_image(encode_png(image), channels), image)
    assert np.array_equal(decode_image(encode_png(image), channels=0), image)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_there_and_back(channels):
    smooth = np.linspace(0, 255, 24 * 16, dtype=np.float32).reshape(24, 16, 1).repeat(channels, 2).astype(np.uint8)
    found = decode_image(encode_jpeg(smooth), channels=0)
    assert found.shape == smooth.shape
    assert np.abs(found.astype(int) - smooth).max() <= 4


@pytest.mark.parametrize(
    ("mode", "kind", "stored"),
    [
        ("L", "PNG", 1), ("1", "PNG", 1), ("LA", "PNG", 4), ("P", "PNG", 3), ("RGBA", "PNG", 4),
        ("RGB", "BMP", 3), ("P", "GIF", 3), ("RGB", "WEBP", 3), ("L", "JPEG", 1), ("CMYK", "JPEG", 3),
    ],
)  # fmt: skip
def test_kinds_of_files(mode, kind, stored):
    content = saved(Image.fromarray(picture()).convert(mode), kind)
    assert decode_image(content, channels=0).shape == (24, 16, stored)
    for channels in (1, 3, 4):
        assert decode_image(content, channels).shape == (24, 16, channels)


def test_16_bits_a_pixel_are_scaled():
    deep = np.arange(24 * 16, dtype=np.uint16).reshape(24, 16) * 170
    content = saved(Image.fromarray(deep), "PNG")
    assert np.array_equal(decode_image(content, channels=1)[..., 0], deep >> 8)


@pytest.mark.parametrize("content", [JPEG, PNG])
def test_into_a_place(content):
    batch = np.zeros((2, 24, 16, 3), np.uint8)
    place = decode_image(content, out=batch[1])
    assert np.shares_memory(place, batch)
    assert np.array_equal(batch[1], decode_image(content))
    assert not batch[0].any()


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_batch(threads):
    images = [picture(8, 8) + np.uint8(i) for i in range(7)]
    found = decode_images([encode_png(image) for image in images], threads=threads)
    assert np.array_equal(found, images)
    assert decode_images([JPEG], channels=1, threads=threads).shape == (1, 24, 16, 1)


def test_a_batch_of_different_sizes():
    contents = [Record.at(encode_png(picture(8, w)), Origin("a", w, 10)) for w in (8, 8, 9)]
    assert error_of(decode_images, contents) == (
        "image 2 of the batch: a, record 9 at byte 10: the image has the shape (8, 9, 3), and (8, 8, 3) was expected"
    )


def test_damaged_at_every_byte_and_truncated():
    for content in (JPEG, PNG):
        for place in range(0, len(content), 3):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            for bad in (bytes(damaged), content[:place]):
                try:
                    assert decode_image(bad).ndim == 3
                except RecordError as error:
                    assert str(error)


def test_what_is_said_of_damage():
    record = Record.at(JPEG[:-50], Origin("train.tfrecord", 7, 1234))
    assert error_of(decode_image, record) == (
        f"train.tfrecord, record 7 at byte 1234: this JPEG of {len(JPEG) - 50} bytes cannot be decoded: "
        "Premature end of JPEG file"
    )
    assert error_of(decode_image, b"no image") == (
        "these 8 bytes cannot be decoded as an image: cannot identify image file; known formats: JPEG, PNG, "
        "GIF, BMP, WEBP"
    )


def forged_png(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return PNG[:8] + chunk + PNG[33:]


def forged_jpeg(width: int, height: int) -> bytes:
    start = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:start] + struct.pack(">HH", height, width) + JPEG[start + 4 :]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("forged", [forged_png(12_000, 12_000), forged_jpeg(65_000, 65_000)], ids=["png", "jpeg"])
def test_a_forged_size_never_allocates(forged):
    tracemalloc.start()
    message = error_of(decode_image, forged)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.endswith("pixels, more than the maximum of 134,217,728")
    assert peak_bytes < MIB


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: decode_image(JPEG, channels=2),
            "channels must be 1 (grey), 3 (RGB), 4 (RGBA) or 0 (as in the file), not 2",
        ),
        (lambda: decode_images([]), "contents must contain at least one image, not []"),
        (lambda: decode_images([JPEG], threads=0), "threads must be an integer of at least 1, or None, not 0"),
        (
            lambda: decode_image(JPEG, out=np.zeros((24, 16, 3))),
            "out must be a contiguous, writable array of uint8",
        ),
        (
            lambda: encode_jpeg(np.zeros((4, 4, 3))),
            "an image must be uint8 (height, width, 1 or 3), not float64 (4, 4, 3)",
        ),
        (
            lambda: encode_png(np.zeros((4, 4), np.uint8)),
            "an image must be uint8 (height, width, 1 or 3 or 4), not uint8 (4, 4)",
        ),
    ],
)
def test_arguments(call, message):
    with pytest.raises(SettingError) as caught:
        call()
    assert str(caught.value) == message


# The memory of batches.


def place(array: np.ndarray) -> int:
    return array.ctypes.data


def test_shape_and_alignment():
    for shape in ((3, 5), (2 * MIB + 3,), (300, 10000), (0,)):
        array = batch_array(shape)
        assert (array.shape, array.dtype, array.flags.writeable) == (shape, np.uint8, True)
        array[...] = 7
        assert (array == 7).all()
        if array.nbytes >= MIB:
            assert place(array) % 64 == 16


def test_memory_is_used_again():
    array = batch_array((2 * MIB,))
    first = place(array)
    del array
    again = batch_array((2, MIB))
    assert place(again) == first


def test_not_while_anything_holds_it():
    array = batch_array((2 * MIB,))
    array[:] = 1
    held = [array[5:10], array.reshape(2, -1).T, memoryview(array)]
    first = place(array)
    del array
    while held:
        other = batch_array((2 * MIB,))
        other[:] = 2
        assert place(other) != first
        assert np.asarray(held[-1]).min() == 1
        del other
        held.pop()
    # The last memory to be given back is the first to be taken.
    assert place(batch_array((2 * MIB,))) == first


def test_little_lies_idle():
    for size in (MIB, 2 * MIB, 3 * MIB):
        arrays = [batch_array((size,)) for _ in range(6)]
        del arrays
    assert {size: len(idle) for size, idle in images._idle.items()} == {3 * MIB: 4}


def test_from_several_threads():
    faults = []

    def fill(number: int) -> None:
        for _ in range(200):
            array = batch_array((MIB,))
            array[::4096] = number
            if not (array[::4096] == number).all():
                faults.append(number)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
