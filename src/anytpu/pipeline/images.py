"""Image decoding and encoding: JPEG, PNG and other formats to arrays of pixels, and back.

Idea: decoding takes most of an input pipeline's time. simplejpeg (libjpeg-turbo) decodes JPEGs directly from the
record's bytes into the batch, and releases Python's global lock. Pillow decodes all other formats.

Rule: pixels are uint8, `(height, width, channels)`, and the same on every machine: JPEGs use libjpeg's accurate inverse
DCT. The size that a file states is checked before any allocation.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import io
import math
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import simplejpeg

from anytpu._calls import explain_arguments
from anytpu.errors import RecordError, SettingError
from anytpu.pipeline.record import Record
from anytpu.units import MIB

MAX_PIXELS = 2**27
"""Maximum number of pixels in an image; 400 MB as RGB."""

_JPEG_MARK = b"\xff\xd8"
_COLORSPACES = {1: "GRAY", 3: "RGB", 4: "RGBA"}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")

_CACHE_LINE_BYTES = 64
# Offset of an array in its cache line. libjpeg-turbo 3 writes rows aligned to 32 bytes with non-temporal stores, around
# the cache: 10 % slower for images of 192 x 192.
_START_BYTES = 16
_MAX_IDLE = 4

_idle: dict[int, collections.deque[memoryview]] = {}
"""Free list of memory for batches: at most four buffers, all of one size."""


@explain_arguments
def decode_image(content: bytes, channels: int = 3, out: np.ndarray | None = None) -> np.ndarray:
    """Decode an image: JPEG, PNG, BMP, WebP, or the first frame of a GIF.

    Args:
        content: the file's bytes.
        channels: 1 for grey, 3 for RGB, 4 for RGBA; 0 for the number of channels in the file.
        out: the array to decode into, uint8 `(height, width, channels)` and contiguous. None: allocate one.

    Returns:
        uint8 `(height, width, channels)`; this is `out` if it is set. A rotation noted in the file is not applied.

    Raises:
        RecordError: the bytes are not an image of a known format, are damaged, or do not fit `out`. The message names
            the file and the record if the bytes come from one.
        SettingError: the number of channels is not 0, 1, 3 or 4.

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


@explain_arguments
def decode_images(contents: Sequence[bytes], channels: int = 3, threads: int | None = None) -> np.ndarray:
    """Decode images of one size into one array, in parallel.

    Args:
        contents: the files' bytes, at least one file.
        channels: 1 for grey, 3 for RGB, 4 for RGBA; 0 for the number of channels in the first image.
        threads: number of threads; None: one per CPU.

    Returns:
        uint8 `(images, height, width, channels)`.

    Raises:
        RecordError: a file is not an image, or differs in size from the first.

    Example:
        >>> black = encode_png(np.zeros((4, 4, 1), np.uint8))
        >>> decode_images([black, black], channels=1).shape
        (2, 4, 4, 1)
    """
    if not len(contents):
        raise SettingError("contents must contain at least one image, not []")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise SettingError(f"threads must be an integer of at least 1, or None, not {threads!r}")
    first = decode_image(contents[0], channels)
    batch = batch_array((len(contents), *first.shape))
    batch[0] = first
    workers = min(threads or os.cpu_count() or 1, len(contents))
    if workers == 1:
        _decode_strided(contents, batch, 1, 1)
    else:
        pool = _pool(os.getpid(), workers)
        futures = [pool.submit(_decode_strided, contents, batch, 1 + k, workers) for k in range(workers)]
        for future in futures:
            future.result()
    return batch


@explain_arguments
def encode_jpeg(image: np.ndarray, quality: int = 95) -> bytes:
    """Encode an image as JPEG.

    Args:
        image: uint8 `(height, width, 3)` for RGB, `(height, width, 1)` for grey.
        quality: 1 to 100.

    Raises:
        SettingError: the array has another dtype or shape.
    """
    image = _checked_image(image, (1, 3))
    return simplejpeg.encode_jpeg(
        image, quality, _COLORSPACES[image.shape[2]], "420" if image.shape[2] == 3 else "Gray"
    )


def encode_png(image: np.ndarray) -> bytes:
    """Encode an image as PNG, which is lossless.

    Args:
        image: uint8 `(height, width, channels)`: 1 channel for grey, 3 for RGB, 4 for RGBA.

    Raises:
        SettingError: the array has another dtype or shape.
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
        return _decode_other(content, channels, out)  # Pillow reads more rare variants, and reports damage better
    channels = channels or (1 if colors == "Gray" else 3)
    out = _output_array((int(height), int(width), channels), out)
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
    except Exception as error:  # each of Pillow's decoders raises its own exceptions
        known = ", ".join(_FORMATS)
        # Pillow's message ends with the repr of the stream, which is useless.
        reason = str(error).split(" <_io")[0]
        raise RecordError(
            f"these {len(content)} bytes cannot be decoded as an image: {reason}; known formats: {known}"
        ) from error
    out = _output_array(pixels.shape, out)
    out[:] = pixels
    return out


def _pixels(image: Any, channels: int) -> np.ndarray:
    if image.mode.startswith("I"):
        # 16 bits per pixel: Pillow's own conversion would clip at 255 instead of scaling.
        from PIL import Image

        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if channels:
        return np.asarray(image.convert(_MODES[channels])).reshape(image.height, image.width, channels)
    mode = {"1": "L", "L": "L", "RGBA": "RGBA", "LA": "RGBA"}.get(image.mode, "RGB")
    return np.asarray(image.convert(mode)).reshape(image.height, image.width, -1)


def _output_array(shape: tuple[int, ...], out: np.ndarray | None) -> np.ndarray:
    _check_size(shape)
    if out is None:
        return np.empty(shape, np.uint8)
    if out.dtype != np.uint8 or not out.flags.c_contiguous or not out.flags.writeable:
        raise SettingError("out must be a contiguous, writable array of uint8")
    if out.shape != shape:
        raise RecordError(f"the image has the shape {shape}, and {out.shape} was expected")
    return out


def _check_size(shape: tuple[int, ...]) -> None:
    if shape[0] * shape[1] > MAX_PIXELS:
        raise RecordError(f"the image has {shape[0]} x {shape[1]} pixels, more than the maximum of {MAX_PIXELS:,}")


def _decode_strided(contents: Sequence[bytes], batch: np.ndarray, first: int, step: int) -> None:
    for index in range(first, len(contents), step):
        if not _decode_expected_jpeg(contents[index], batch[index]):
            try:
                decode_image(contents[index], batch.shape[3], batch[index])
            except RecordError as error:
                raise RecordError(f"image {index} of the batch: {error}") from error.__cause__


def _decode_expected_jpeg(content: bytes, out: np.ndarray) -> bool:
    """Try to decode a JPEG of exactly the shape of `out`, parsing its header once; return whether that succeeded."""
    if content[:2] != _JPEG_MARK:
        return False
    try:
        return simplejpeg.decode_jpeg(content, _COLORSPACES[out.shape[2]], buffer=out).shape == out.shape
    except ValueError:
        return False


@functools.cache
def _pool(process_id: int, threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Return the thread pool of this process: after a fork the parent's threads do not exist in the child."""
    return concurrent.futures.ThreadPoolExecutor(threads, f"anytpu-images-{process_id}")


def _checked_image(image: Any, channels: tuple[int, ...]) -> np.ndarray:
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in channels or not image.size:
        allowed = " or ".join(map(str, channels))
        raise SettingError(f"an image must be uint8 (height, width, {allowed}), not {image.dtype} {image.shape}")
    return np.ascontiguousarray(image)


def batch_array(shape: tuple[int, ...]) -> np.ndarray:
    """Return an uninitialized uint8 array, in the memory of a released one if its size is the same.

    The operating system clears fresh memory page by page, which costs a tenth of the decoding time. Memory returns to
    the free list when the last reference to the array and its views is gone.

    Example:
        >>> batch_array((64, 192, 192, 3)).shape
        (64, 192, 192, 3)
    """
    size_bytes = math.prod(shape)
    if size_bytes < MIB:
        return np.empty(shape, np.uint8)
    memory = _take(size_bytes)
    start = (_START_BYTES - np.frombuffer(memory, np.uint8).ctypes.data) % _CACHE_LINE_BYTES
    # Views keep their base alive. `frombuffer` of a memoryview is the base of all views; that of an array would not be:
    # NumPy would collapse the chain to that array, and the finalizer would run too early.
    base = np.frombuffer(memory, np.uint8, size_bytes, start)
    weakref.finalize(base, _give_back, size_bytes, memory).atexit = False
    return base.reshape(shape)


def _take(size_bytes: int) -> memoryview:
    try:
        return _idle[size_bytes].pop()
    except (KeyError, IndexError):
        # NumPy requests huge pages, where the system has them.
        return np.empty(size_bytes + _CACHE_LINE_BYTES, np.uint8).data


def _give_back(size_bytes: int, memory: memoryview) -> None:
    # A finalizer may run in any thread at any time, even inside itself. So it takes no lock, and each statement that
    # changes `_idle` is atomic.
    idle = _idle.get(size_bytes)
    if idle is None:
        _idle.clear()
        idle = _idle.setdefault(size_bytes, collections.deque(maxlen=_MAX_IDLE))
    idle.append(memory)
