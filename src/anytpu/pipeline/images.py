"""Images: JPEG, PNG and the like to arrays of pixels, and back.

Idea: decoding is what an input pipeline spends its time on. JPEGs go to simplejpeg (libjpeg-turbo), which decodes
straight from the record's bytes into the place in the batch, without Python's lock; everything else goes to Pillow.

Rule: pixels are uint8, `(height, width, channels)`, and the same on every machine: JPEGs by libjpeg's accurate
transform. The size that a file states is checked before anything is allocated for it.
"""

from __future__ import annotations

import concurrent.futures
import functools
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import simplejpeg

from anytpu.errors import RecordError, SettingError
from anytpu.pipeline.buffers import batch_array
from anytpu.pipeline.sources import Record

MAX_PIXELS = 2**27
"""The most pixels that an image may have; 400 MB as RGB."""

_JPEG_MARK = b"\xff\xd8"
_COLORSPACES = {1: "GRAY", 3: "RGB", 4: "RGBA"}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")


def decode_image(content: bytes, channels: int = 3, out: np.ndarray | None = None) -> np.ndarray:
    """Decode an image: JPEG, PNG, BMP, WebP, or the first of a GIF.

    Args:
        content: the file's bytes.
        channels: 1 for grey, 3 for RGB, 4 for RGBA; 0 for as many as the file has.
        out: the array to decode into, uint8 `(height, width, channels)` and contiguous. None makes one.

    Returns:
        uint8 `(height, width, channels)`; `out` if that was given. A rotation noted in the file is not applied.

    Raises:
        RecordError: these bytes are no such image, are damaged, or do not fit `out`; the message names the file and the
            record where the bytes came from one.
        SettingError: there is no such number of channels.

    Example:
        >>> decode_image(encode_jpeg(np.zeros((2, 3, 3), np.uint8))).shape
        (2, 3, 3)
    """
    if channels not in (0, *_COLORSPACES):
        raise SettingError(f"channels must be 1 (grey), 3 (RGB), 4 (RGBA) or 0 (as in the file), not {channels!r}")
    try:
        if content[:2] == _JPEG_MARK:
            return _decode_jpeg(content, channels, out)
        return _decode_other(content, channels, out)
    except RecordError as error:
        if isinstance(content, Record):
            raise RecordError(f"{content.origin}: {error}") from error.__cause__
        raise


def decode_images(contents: Sequence[bytes], channels: int = 3, threads: int | None = None) -> np.ndarray:
    """Decode images of one size into one array, several at a time.

    Args:
        contents: the files' bytes, at least one.
        channels: 1 for grey, 3 for RGB, 4 for RGBA; 0 for as many as the first has.
        threads: how many work on them; None: one a CPU.

    Returns:
        uint8 `(images, height, width, channels)`.

    Raises:
        RecordError: one is no image, or has another size than the first.

    Example:
        >>> black = encode_png(np.zeros((4, 4, 1), np.uint8))
        >>> decode_images([black, black], channels=1).shape
        (2, 4, 4, 1)
    """
    if not len(contents):
        raise SettingError("there is no image to decode in []")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise SettingError(f"threads must be a whole number from 1 up, or None, not {threads!r}")
    first = decode_image(contents[0], channels)
    batch = batch_array((len(contents), *first.shape))
    batch[0] = first
    workers = min(threads or os.cpu_count() or 1, len(contents))
    if workers == 1:
        _decode_every(contents, batch, 1, 1)
    else:
        pool = _pool(os.getpid(), workers)
        for done in [pool.submit(_decode_every, contents, batch, 1 + k, workers) for k in range(workers)]:
            done.result()
    return batch


def encode_jpeg(image: np.ndarray, quality: int = 95) -> bytes:
    """Write an image as JPEG.

    Args:
        image: uint8 `(height, width, 3)` for RGB, `(height, width, 1)` for grey.
        quality: 1 to 100.

    Raises:
        SettingError: the array is no such image.
    """
    image = _checked_image(image, (1, 3))
    return simplejpeg.encode_jpeg(
        image, quality, _COLORSPACES[image.shape[2]], "420" if image.shape[2] == 3 else "Gray"
    )


def encode_png(image: np.ndarray) -> bytes:
    """Write an image as PNG, which loses nothing.

    Args:
        image: uint8 `(height, width, channels)`: 1 for grey, 3 for RGB, 4 for RGBA.

    Raises:
        SettingError: the array is no such image.
    """
    from PIL import Image

    image = _checked_image(image, (1, 3, 4))
    stream = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(stream, "PNG")
    return stream.getvalue()


def _decode_jpeg(content: bytes, channels: int, out: np.ndarray | None) -> np.ndarray:
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return _decode_other(content, channels, out)  # Pillow knows more rare kinds, and says what is wrong with others
    channels = channels or (1 if colors == "Gray" else 3)
    out = _place((int(height), int(width), channels), out)
    try:
        simplejpeg.decode_jpeg(content, _COLORSPACES[channels], buffer=out)
    except ValueError as error:
        raise RecordError(f"this JPEG of {len(content)} bytes cannot be decoded: {error}") from error
    return out


def _decode_other(content: bytes, channels: int, out: np.ndarray | None) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            _check_size((image.height, image.width))
            pixels = _pixels(image, channels)
    except RecordError:
        raise
    except Exception as error:  # each decoder of Pillow's has errors of its own
        known = ", ".join(_FORMATS)
        # Pillow names the stream object, which says nothing.
        reason = str(error).split(" <_io")[0]
        raise RecordError(
            f"these {len(content)} bytes cannot be decoded as an image: {reason}; known are {known}"
        ) from error
    out = _place(pixels.shape, out)
    out[:] = pixels
    return out


def _pixels(image: Any, channels: int) -> np.ndarray:
    if image.mode.startswith("I"):
        # 16 bits a pixel: Pillow's own conversion would cut off at 255 instead of scaling.
        from PIL import Image

        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if channels:
        return np.asarray(image.convert(_MODES[channels])).reshape(image.height, image.width, channels)
    mode = {"1": "L", "L": "L", "RGBA": "RGBA", "LA": "RGBA"}.get(image.mode, "RGB")
    return np.asarray(image.convert(mode)).reshape(image.height, image.width, -1)


def _place(shape: tuple[int, ...], out: np.ndarray | None) -> np.ndarray:
    _check_size(shape)
    if out is None:
        return np.empty(shape, np.uint8)
    if out.dtype != np.uint8 or not out.flags.c_contiguous or not out.flags.writeable:
        raise SettingError("out must be a contiguous array of uint8 that can be written")
    if out.shape != shape:
        raise RecordError(f"the image has the shape {shape}, and {out.shape} was expected")
    return out


def _check_size(shape: tuple[int, ...]) -> None:
    if shape[0] * shape[1] > MAX_PIXELS:
        raise RecordError(
            f"the image has {shape[0]} x {shape[1]} pixels, more than the {MAX_PIXELS:,} that are allowed"
        )


def _decode_every(contents: Sequence[bytes], batch: np.ndarray, first: int, step: int) -> None:
    for index in range(first, len(contents), step):
        if not _decodes_at_once(contents[index], batch[index]):
            try:
                decode_image(contents[index], batch.shape[3], batch[index])
            except RecordError as error:
                raise RecordError(f"image {index} of the batch: {error}") from error.__cause__


def _decodes_at_once(content: bytes, place: np.ndarray) -> bool:
    """Decode what should be a good JPEG of the right size, and tell whether it was; its header is read only once."""
    if content[:2] != _JPEG_MARK:
        return False
    try:
        return simplejpeg.decode_jpeg(content, _COLORSPACES[place.shape[2]], buffer=place).shape == place.shape
    except ValueError:
        return False


@functools.cache
def _pool(process_id: int, threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Return threads of this process: those of a parent are not there after a fork."""
    return concurrent.futures.ThreadPoolExecutor(threads, f"anytpu-images-{process_id}")


def _checked_image(image: Any, channels: tuple[int, ...]) -> np.ndarray:
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in channels or not image.size:
        wanted = " or ".join(map(str, channels))
        raise SettingError(f"an image must be uint8 (height, width, {wanted}), not {image.dtype} {image.shape}")
    return np.ascontiguousarray(image)
