"""Augmentation of images: what makes one image many, drawn with the random numbers of the image's own.

Idea: each function takes one image and, where it draws, a NumPy generator; `Dataset.random_map` brings one for each
element, which follows from the seed, the element and the pass. So the same epoch has the same crops again after a
restart, however many threads made them.

Rule: an image is `(height, width, channels)`; what comes out has the type that went in, but for `normalize` and
`standardize`, which make float32.

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
from collections.abc import Sequence

import numpy as np

from anytpu.errors import DataError, SettingError


def random_crop(
    image: np.ndarray, random: np.random.Generator, size: tuple[int, int] | None = None, padding: int = 4
) -> np.ndarray:
    """Cut a piece out of an image with a black margin around it: the image shifted by up to `padding` pixels.

    Args:
        image: `(height, width, channels)`.
        random: draws the place.
        size: height and width of the piece; None: those of the image.
        padding: pixels of the margin on each side.

    Raises:
        SettingError: the piece is larger than the image with its margin, or `padding` is negative.

    Example:
        >>> random_crop(np.ones((32, 32, 3)), np.random.default_rng(0), size=(24, 24), padding=0).shape
        (24, 24, 3)
    """
    height, width, _ = _shape(image)
    rows, columns = size or (height, width)
    spare = height + 2 * padding - rows, width + 2 * padding - columns
    if padding < 0 or min(spare) < 0 or min(rows, columns) < 1:
        raise SettingError(
            f"a piece of {rows} x {columns} cannot be cut out of an image of {height} x {width} with a margin of "
            f"{padding}: take a smaller size, or a padding of at least {max(math.ceil(-min(spare) / 2) + padding, 0)}"
        )
    top, left = (int(random.integers(0, most + 1)) for most in spare)
    padded = np.zeros((height + 2 * padding, width + 2 * padding, image.shape[2]), image.dtype)
    padded[padding : padding + height, padding : padding + width] = image
    return padded[top : top + rows, left : left + columns]


def random_flip(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Mirror an image, left to right, or leave it as it is, each in half of the cases.

    Args:
        image: `(height, width, channels)`.
        random: decides.
    """
    _shape(image)
    return image[:, ::-1] if random.random() < 0.5 else image


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale an image, bilinear, each pixel the mean of those that it stands for when the image becomes smaller.

    Args:
        image: uint8 or float32 `(height, width, channels)`; no channel, such as one of opacity, has to do with another.
        size: height and width.

    Raises:
        SettingError: the size is none.
        DataError: the image is of another type.

    Example:
        >>> resize(np.full((4, 6, 3), 7, np.uint8), (2, 3))[0, 0].tolist()
        [7, 7, 7]
    """
    from PIL import Image

    channels = _shape(image)[2]
    rows, columns = size
    if min(size) < 1:
        raise SettingError(f"size must be a height and a width from 1 up, not {size!r}")
    if image.dtype not in (np.uint8, np.float32):
        raise DataError(f'an image to resize is uint8 or float32, not {image.dtype}: pass image.astype("float32")')

    def scaled(plane: np.ndarray) -> np.ndarray:
        whole = Image.fromarray(np.ascontiguousarray(plane))
        return np.asarray(whole.resize((columns, rows), Image.Resampling.BILINEAR))

    if image.dtype == np.uint8 and channels == 3:
        return scaled(image)
    return np.stack([scaled(image[..., channel]) for channel in range(channels)], axis=-1)


def normalize(
    image: np.ndarray, mean: float | Sequence[float] = 0.0, deviation: float | Sequence[float] = 255.0
) -> np.ndarray:
    """Subtract a mean and divide by a deviation, as float32. As it stands it takes bytes to 0 up to 1.

    Args:
        image: of any shape whose last axis is the channels.
        mean: one number, or one a channel.
        deviation: one number, or one a channel.

    Raises:
        SettingError: a deviation is 0.

    Example:
        >>> normalize(np.array([[[0, 51, 255]]], np.uint8)).tolist()
        [[[0.0, 0.20000000298023224, 1.0]]]
    """
    spread = np.asarray(deviation, np.float32)
    if not spread.all():
        raise SettingError(f"deviation must not be 0, as in {deviation!r}: nothing can be divided by it")
    return (image.astype(np.float32) - np.asarray(mean, np.float32)) / spread


def standardize(image: np.ndarray) -> np.ndarray:
    """Give an image mean 0 and deviation 1, as float32; of a plain one the deviation stays near 0.

    The deviation that is divided by is at least 1 / sqrt(number of values), as in TensorFlow's
    `tf.image.per_image_standardization`.

    Example:
        >>> standardize(np.array([[[1.0], [3.0]]])).ravel().tolist()
        [-1.0, 1.0]
    """
    wide = image.astype(np.float32)
    least = 1 / math.sqrt(wide.size)
    return (wide - wide.mean()) / max(float(wide.std()), least)


def _shape(image: np.ndarray) -> tuple[int, int, int]:
    if np.ndim(image) != 3:
        raise DataError(
            f"an image is an array (height, width, channels), not one of shape {np.shape(image)}: a batch goes "
            "image by image, with map before batch, and a grey image gets its channel by image[..., None]"
        )
    return image.shape  # pyright: ignore[reportReturnType]
