"""Image augmentation with reproducible random numbers.

Idea: each function takes one image and, if it is random, a NumPy generator. `Dataset.random_map` passes a generator
seeded by the data set's seed, the element's index and the pass. So an epoch has the same crops again after a restart,
whatever the number of threads. Layers of Keras draw from a state instead, and take hundreds of times as long for one
image.

Rule: an image is `(height, width, channels)`. The output has the input's dtype, except for `normalize` and
`standardize`, which return float32.

Example:
    >>> def augment(row, random):
    ...     image, label = row
    ...     return random_flip(random_crop(image, random), random), label
    >>> from anytpu.pipeline import Dataset
    >>> rows = np.zeros((4, 32, 32, 3), np.uint8), np.arange(4)
    >>> images, labels = next(iter(Dataset.from_arrays(rows).random_map(augment, seed=1).batch(4)))
    >>> images.shape
    (4, 32, 32, 3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anytpu._calls import explain_arguments
from anytpu.errors import DataError, SettingError


@explain_arguments
def random_crop(
    image: np.ndarray, random: np.random.Generator, size: Sequence[int] | None = None, padding: int = 4
) -> np.ndarray:
    """Crop a random window from an image padded with black: the image shifted by up to `padding` pixels.

    Args:
        image: `(height, width, channels)`; with a size for each axis an array of any shape, such as stacked images.
        random: generator of the window's offset.
        size: height and width of the window, in pixels, or the sizes of all axes; None: those of the image.
        padding: width of the black margin on each side, in pixels.

    Raises:
        SettingError: the window is larger than the padded image, or `padding` is negative.

    Example:
        >>> random_crop(np.ones((32, 32, 3)), np.random.default_rng(0), size=(24, 24), padding=0).shape
        (24, 24, 3)
    """
    if size is not None and len(size) == np.ndim(image) != 2 and padding == 0:
        return _any_window(np.asarray(image), random, [int(part) for part in size])
    height, width, _ = _shape(image)
    rows, columns = (size or (height, width))[:2]
    spare = height + 2 * padding - rows, width + 2 * padding - columns
    if padding < 0 or min(spare) < 0 or min(rows, columns) < 1:
        raise SettingError(
            f"a window of {rows} x {columns} does not fit into an image of {height} x {width} with a padding of "
            f"{padding}: use a smaller size, or a padding of at least {max(math.ceil(-min(spare) / 2) + padding, 0)}"
        )
    top, left = (int(random.integers(0, max_offset + 1)) for max_offset in spare)
    padded = np.zeros((height + 2 * padding, width + 2 * padding, image.shape[2]), image.dtype)
    padded[padding : padding + height, padding : padding + width] = image
    return padded[top : top + rows, left : left + columns]


def _any_window(array: np.ndarray, random: np.random.Generator, size: list[int]) -> np.ndarray:
    """Return a random window of an array, with a size for each axis."""
    if any(part > whole or part < 1 for part, whole in zip(size, array.shape, strict=True)):
        raise SettingError(f"a window of {size} does not fit into an array of {list(array.shape)}: use a smaller size")
    starts = [int(random.integers(0, whole - part + 1)) for part, whole in zip(size, array.shape, strict=True)]
    return array[tuple(slice(start, start + part) for start, part in zip(starts, size, strict=True))]


@explain_arguments
def random_brightness(image: np.ndarray, random: np.random.Generator, max_delta: float) -> np.ndarray:
    """Add a random number to an image, as TensorFlow does.

    Args:
        image: floating-point or uint8 `(height, width, channels)`; the result has the same type.
        random: generator of the number.
        max_delta: greatest change, as a share of the range of colors: 1 is the distance from black to white.

    Example:
        >>> random_brightness(np.zeros((1, 1, 1)), np.random.default_rng(0), 0.5).round(2).tolist()
        [[[0.14]]]
    """
    _shape(image)
    if image.dtype == np.uint8:
        return _in_float32(random_brightness, image, random, max_delta)
    return image + image.dtype.type(random.uniform(-max_delta, max_delta))


@explain_arguments
def random_contrast(image: np.ndarray, random: np.random.Generator, lower: float, upper: float) -> np.ndarray:
    """Multiply the distance of each pixel from its channel's mean by a random factor, as TensorFlow does.

    Args:
        image: floating-point or uint8 `(height, width, channels)`; the result has the same type.
        random: generator of the factor.
        lower: least factor.
        upper: greatest factor.

    Example:
        >>> random_contrast(np.array([[[0.0], [1.0]]]), np.random.default_rng(0), 0.5, 0.5).ravel().tolist()
        [0.25, 0.75]
    """
    _shape(image)
    if image.dtype == np.uint8:
        return _in_float32(random_contrast, image, random, lower, upper)
    mean = image.mean((0, 1), keepdims=True)
    return (image - mean) * image.dtype.type(random.uniform(lower, upper)) + mean


@explain_arguments
def random_saturation(image: np.ndarray, random: np.random.Generator, lower: float, upper: float) -> np.ndarray:
    """Multiply the saturation of a color image by a random factor, as TensorFlow does: the brightest channel stays.

    Args:
        image: floating-point or uint8 `(height, width, 3)`; the result has the same type.
        random: generator of the factor.
        lower: least factor.
        upper: greatest factor.

    Example:
        >>> random_saturation(np.full((1, 1, 3), [1.0, 0.5, 0.0]), np.random.default_rng(0), 0.5, 0.5).tolist()
        [[[1.0, 0.75, 0.5]]]
    """
    _shape(image)
    if image.dtype == np.uint8:
        return _in_float32(random_saturation, image, random, lower, upper)
    brightest, least = image.max(-1, keepdims=True), image.min(-1, keepdims=True)
    # A saturation, the distance of the least channel from the brightest, is at most the brightest.
    limit = brightest / np.maximum(brightest - least, np.finfo(image.dtype).tiny)
    factor = np.minimum(image.dtype.type(random.uniform(lower, upper)), limit)
    return brightest - (brightest - image) * factor


@explain_arguments
def random_hue(image: np.ndarray, random: np.random.Generator, max_delta: float) -> np.ndarray:
    """Turn the hue of a color image by a random share of the color circle, as TensorFlow does.

    Args:
        image: floating-point or uint8 `(height, width, 3)`; the result has the same type.
        random: generator of the angle.
        max_delta: greatest share of the circle, 0 to 0.5.

    Example:
        >>> random_hue(np.full((1, 1, 3), [1.0, 0.5, 0.5]), np.random.default_rng(0), 0.0).round(3).tolist()
        [[[1.0, 0.5, 0.5]]]
    """
    _shape(image)
    if image.dtype == np.uint8:
        return _in_float32(random_hue, image, random, max_delta)
    red, green, blue = np.moveaxis(image, -1, 0)
    brightest, chroma = image.max(-1), np.ptp(image, axis=-1)
    divisor = np.where(chroma == 0, 1, chroma)
    sixths = np.where(
        brightest == red,
        (green - blue) / divisor,
        np.where(brightest == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sixths = sixths + 6 * random.uniform(-max_delta, max_delta)
    # Each channel falls from the brightest value by a piecewise linear function of the hue.
    places = (np.array([5, 3, 1]) + sixths[..., None]) % 6
    falls = np.clip(np.minimum(places, 4 - places), 0, 1)
    return (brightest[..., None] - chroma[..., None] * falls).astype(image.dtype)


@explain_arguments
def random_flip(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Mirror an image left to right with probability 1/2.

    Args:
        image: `(height, width, channels)`.
        random: generator of the decision.
    """
    _shape(image)
    return image[:, ::-1] if random.random() < 0.5 else image


@explain_arguments
def resize(image: np.ndarray, size: tuple[int, int], *, method: str = "bilinear", antialias: bool = True) -> np.ndarray:
    """Resize an image. The centers of its corner pixels are half a pixel from its edges, as in TensorFlow 2.

    Args:
        image: uint8 or float32 `(height, width, channels)`, or images `(count, height, width, channels)`; any dtype
            for "nearest". Channels are independent: alpha does not weight the others.
        size: height and width, in pixels.
        method: "bilinear" interpolates; "nearest" takes the nearest pixel, so masks and labels keep their values.
        antialias: average over the pixels that a smaller image leaves out; False, the default of `tf.image.resize`,
            interpolates between neighbours only. "nearest" never averages.

    Raises:
        SettingError: a size is below 1, or `method` is another one.
        DataError: the image has another dtype.

    Example:
        >>> resize(np.full((4, 6, 3), 7, np.uint8), (2, 3))[0, 0].tolist()
        [7, 7, 7]
    """
    from PIL import Image

    if np.ndim(image) == 4:
        return np.stack([resize(single, size, method=method, antialias=antialias) for single in image])
    channels = _shape(image)[2]
    rows, columns = size
    if min(size) < 1:
        raise SettingError(f"size must be a height and a width of at least 1, not {size!r}")
    if method not in ("bilinear", "nearest"):
        raise SettingError(f'method must be "bilinear" or "nearest", not {method!r}')
    if method == "nearest":
        return image[_nearest(image.shape[0], rows)[:, None], _nearest(image.shape[1], columns)]
    if image.dtype not in (np.uint8, np.float32):
        raise DataError(f'an image to resize must be uint8 or float32, not {image.dtype}: pass image.astype("float32")')

    # Pillow's `resize` always averages over the pixels that a smaller image leaves out. Its `transform` interpolates
    # only.
    def scaled(plane: np.ndarray) -> np.ndarray:
        whole = Image.fromarray(np.ascontiguousarray(plane))
        if antialias:
            return np.asarray(whole.resize((columns, rows), Image.Resampling.BILINEAR))
        steps = (whole.width / columns, 0, 0, 0, whole.height / rows, 0)
        return np.asarray(whole.transform((columns, rows), Image.Transform.AFFINE, steps, Image.Resampling.BILINEAR))

    # Pillow has images of three channels only in uint8, and it weights the channels of RGBA by alpha. Other images are
    # resized one channel at a time.
    if image.dtype == np.uint8 and channels == 3:
        return scaled(image)
    return np.stack([scaled(image[..., channel]) for channel in range(channels)], axis=-1)


def _nearest(old: int, new: int) -> np.ndarray:
    """Return the old index nearest to each new one, along one axis; computed in float32, as TensorFlow does."""
    return np.floor((np.arange(new, dtype="float32") + np.float32(0.5)) * np.float32(old / new)).astype(int)


@explain_arguments
def normalize(
    image: np.ndarray, mean: float | Sequence[float] = 0.0, deviation: float | Sequence[float] = 255.0
) -> np.ndarray:
    """Subtract a mean and divide by a deviation, in float32. The defaults map 0 to 255 to the range 0 to 1.

    Args:
        image: any shape with channels as last axis.
        mean: a scalar, or a value for each channel.
        deviation: a scalar, or a value for each channel; not 0.

    Raises:
        SettingError: a deviation is 0.

    Example:
        >>> normalize(np.array([[[0, 51, 255]]], np.uint8)).tolist()
        [[[0.0, 0.20000000298023224, 1.0]]]
    """
    spread = np.asarray(deviation, np.float32)
    if not spread.all():
        raise SettingError(f"deviation must not contain 0, as {deviation!r} does: the image is divided by it")
    return (image.astype(np.float32) - np.asarray(mean, np.float32)) / spread


@explain_arguments
def standardize(image: np.ndarray) -> np.ndarray:
    """Scale an image, or each of a batch, to mean 0 and standard deviation 1, in float32; a uniform image becomes 0.

    The divisor is at least 1 / sqrt(number of values), as in TensorFlow's `tf.image.per_image_standardization`.

    Example:
        >>> standardize(np.array([[[1.0], [3.0]]])).ravel().tolist()
        [-1.0, 1.0]
    """
    wide = np.asarray(image, np.float32)
    if wide.ndim not in (3, 4):
        _shape(wide)
    mean, deviation = (measure(wide, axis=(-3, -2, -1), keepdims=True) for measure in (np.mean, np.std))
    return (wide - mean) / np.maximum(deviation, np.float32(1 / math.sqrt(math.prod(wide.shape[-3:]))))


def _in_float32(change: Callable, image: np.ndarray, *arguments: Any) -> np.ndarray:
    """Apply a change of colors from 0 to 1 to an image of integers from 0 to 255, rounded as TensorFlow does."""
    changed = change(image.astype(np.float32) / np.float32(255), *arguments)
    return np.clip(np.floor(changed * 255.5), 0, 255).astype(np.uint8)


def _shape(image: np.ndarray) -> tuple[int, int, int]:
    if np.ndim(image) != 3:
        raise DataError(
            f"an image must be an array (height, width, channels), not one of shape {np.shape(image)}: for a batch, "
            "call map before batch; for a grey image, add the channel with image[..., None]"
        )
    return image.shape  # pyright: ignore[reportReturnType]
